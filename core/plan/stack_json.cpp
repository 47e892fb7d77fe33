// StackSpec to and from JSON, and the preset folder.
#include <array>
#include <cctype>
#include <cstdint>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/annotated.hpp"
#include "core/base/former_keys.hpp"
#include "core/base/json_io.hpp"
#include "core/base/preset_path.hpp"
#include "core/base/words.hpp"
#include "core/plan/former_stack.hpp"
#include "core/plan/stack_spec.hpp"

namespace sextant {

namespace {

constexpr std::array<std::string_view, 7> kAttentionNames = {"unfused", "fused_softmax", "flash1", "flash2",
                                                             "flash3",  "cudnn",         "triton"};

constexpr std::array<std::string_view, 2> kFp8ScalesNames = {"tensor", "row"};

constexpr auto kCapabilities = [](auto& io, auto& c) {
  io.optional("zero_stages", c.zero_stages, between(0, 3));
  io.optional("max_zero_with_pp", c.max_zero_with_pp, between(0, 3));
  io.optional("tensor_parallel", c.tensor_parallel);
  io.optional("copies_kv_heads", c.copies_kv_heads);
  io.optional("pipeline_parallel", c.pipeline_parallel);
  io.optional("sequence_parallel", c.sequence_parallel);
  io.optional("context_parallel", c.context_parallel);
  io.optional("interleaved", c.interleaved);
  io.optional("interleaved_from_pp", c.interleaved_from_pp, between(2, 64));
  io.optional("interleaved_microbatches", c.interleaved_microbatches, kInterleavedCountNames);
  io.optional("gpipe", c.gpipe);
  io.optional("zero_bubble", c.zero_bubble);
  io.optional("uneven_stages", c.uneven_stages, kUnevenStagesNames);
  io.optional("axis_orders", c.axis_orders, kAxisNames);
  io.optional("usual_end_layers", c.usual_end_layers, at_least(0));
  io.optional("uneven_microbatches", c.uneven_microbatches);
  io.optional("uneven_shards", c.uneven_shards);
  io.optional("shard_degree", c.shard_degree);
  io.optional("replicas_divide_hidden", c.replicas_divide_hidden);
  io.optional("context_parallel_shards", c.context_parallel_shards);
  io.optional("bf16_shards_from_pp", c.bf16_shards_from_pp, at_least(0));
  io.optional("recompute_selective", c.recompute_selective);
  io.optional("recompute_full", c.recompute_full);
  io.optional("recompute_layers", c.recompute_layers);
  io.optional("optimizer_offload", c.optimizer_offload);
  io.optional("parameter_offload", c.parameter_offload);
  io.optional("activation_offload", c.activation_offload);
  io.optional("activation_offload_needs_recompute", c.activation_offload_needs_recompute);
  io.optional("activation_offload_with_pp", c.activation_offload_with_pp);
  io.optional("activation_offload_with_recompute", c.activation_offload_with_recompute);
  io.optional("activation_offload_of_all_layers", c.activation_offload_of_all_layers);
  io.optional("parameter_offload_needs_optimizer", c.parameter_offload_needs_optimizer);
  io.optional("optimizer_offload_needs_parameters", c.optimizer_offload_needs_parameters);
  io.optional("offload_with_pp", c.offload_with_pp);
  io.optional("offload_of_one_replica", c.offload_of_one_replica);
  io.optional("offload_with_accumulation", c.offload_with_accumulation);
  io.optional("shard_degree_from_zero", c.shard_degree_from_zero, between(0, 3));
  io.optional("parameter_offload_from_zero", c.parameter_offload_from_zero, between(0, 3));
  io.optional("optimizer_offload_from_zero", c.optimizer_offload_from_zero, between(0, 3));
  io.optional("optimizer_offload_to_zero", c.optimizer_offload_to_zero, between(0, 3));
  io.optional("partial_offload_from_zero", c.partial_offload_from_zero, between(0, 4));
  io.optional("fp32_sums_from_zero", c.fp32_sums_from_zero, between(0, 3));
  io.optional("overlap_grad_reduce", c.overlap_grad_reduce);
  io.optional("overlap_param_gather", c.overlap_param_gather);
  io.optional("overlap_tp", c.overlap_tp);
  io.optional("overlap_tp_needs_sequence_parallel", c.overlap_tp_needs_sequence_parallel);
  io.optional("overlap_tp_to_zero", c.overlap_tp_to_zero, between(0, 3));
  io.optional("advised_zero_with_tp", c.advised_zero_with_tp, between(0, 3));
  io.optional("bucket_size", c.bucket_size);
  io.optional("last_bucket_split", c.last_bucket_split);
  io.optional("fp8", c.fp8);
};

constexpr auto kRules = [](auto& io, auto& r) {
  io.optional("reduce_every_microbatch", r.reduce_every_microbatch);
  io.optional("zero3_reduce_every_microbatch", r.zero3_reduce_every_microbatch);
  io.optional("reduce_every_microbatch_with_pp", r.reduce_every_microbatch_with_pp);
  io.optional("grad_reduce_overlaps_to_zero", r.grad_reduce_overlaps_to_zero, between(0, 3));
  io.optional("host_sums_gradients", r.host_sums_gradients);
  io.optional("host_parameters_are_master", r.host_parameters_are_master);
  io.optional("shards_are_master", r.shards_are_master);
  io.optional("pipelined_update", r.pipelined_update);
  io.optional("param_gather_overlaps_forward", r.param_gather_overlaps_forward);
  io.optional("p2p_overlaps_compute_1f1b", r.p2p_overlaps_compute_1f1b);
  io.optional("p2p_overlaps_compute_interleaved", r.p2p_overlaps_compute_interleaved);
  io.optional("bucket_elements", r.bucket_elements, at_least(1));
  io.optional("bucket_elements_per_replica", r.bucket_elements_per_replica, at_least(0));
  io.optional("prefetch_blocks", r.prefetch_blocks, between(0, 1000));
  io.optional("fetch_modules", r.fetch_modules);
  io.optional("zero3_regather_in_backward", r.zero3_regather_in_backward);
  io.optional("zero2_by_units", r.zero2_by_units);
  io.optional("selective_by_operation", r.selective_by_operation);
  io.optional("head_fused_with_loss", r.head_fused_with_loss);
  io.optional("fused_projections", r.fused_projections);
  io.optional("gradients_begin_written", r.gradients_begin_written);
  io.optional("head_logits_GiB", r.head_logits);
  io.optional("short_logits", r.short_logits);
  io.optional("loss_gathers_logits", r.loss_gathers_logits);
  io.optional("vocab_multiple", r.vocab_multiple, between(1, 1 << 20));
  io.optional("scatter_p2p", r.scatter_p2p);
  io.optional("cp_ring", r.cp_ring);
  io.optional("clip_gradients", r.clip_gradients);
  io.optional("tied_gradients_apart", r.tied_gradients_apart);
  io.optional("checkpoint_parameters", r.checkpoint_parameters);
};

constexpr auto kKernels = [](auto& io, auto& k) {
  io.optional("attention", k.attention, kAttentionNames);
  io.optional("blocks", k.blocks, kBlocksNames);
  io.optional("norm_fused", k.norm_fused);
  io.optional("pointwise_passes", k.pointwise_passes, at_least(0));
  io.optional("loss_bytes_per_logit", k.loss_bytes_per_logit, at_least(0));
  io.optional("host_forward_per_layer_us", k.host_forward_per_layer, at_least(0));
  io.optional("host_tp_per_layer_us", k.host_tp_per_layer, at_least(0));
  io.optional("gemm_bonus", k.gemm_bonus, between(0.1, 2));
  io.optional("fp8_scales", k.fp8_scales, kFp8ScalesNames);
  io.optional("fp8_row_gemm_share", k.fp8_row_gemm_share, between(0.1, 1));
  io.optional("fp8_row_bytes", k.fp8_row_bytes, at_least(0));
  io.optional("cp_imbalance", k.cp_imbalance, between(0, 1));
  io.optional("tp_hidden_share", k.tp_hidden_share, between(0, 1));
  io.optional("accumulate_bytes", k.accumulate_bytes, at_least(0));
  io.optional("update_bytes", k.update_bytes, at_least(0));
  io.optional("norm_bytes", k.norm_bytes, at_least(0));
  io.optional("step_overhead_ms", k.step_overhead, at_least(0));
  io.optional("straggler_per_log2_node", k.straggler_per_log2_node, at_least(0));
  io.optional("comm_slows_compute", k.comm_slows_compute, at_least(0));
  io.optional("compute_slows_comm", k.compute_slows_comm, at_least(0));
  io.optional("copy_slows_compute", k.copy_slows_compute, at_least(0));
  io.optional("compute_slows_copy", k.compute_slows_copy, at_least(0));
};

constexpr auto kMemory = [](auto& io, auto& m) {
  io.optional("exact_tensors", m.exact_tensors);
  io.optional("saved_hidden", m.saved_hidden, at_least(0));
  io.optional("saved_norm", m.saved_norm, at_least(0));
  io.optional("saved_ffn", m.saved_ffn, at_least(0));
  io.optional("saved_rope", m.saved_rope, at_least(0));
  io.optional("saved_tp", m.saved_tp, at_least(0));
  io.optional("saved_tp_shard", m.saved_tp_shard, at_least(0));
  io.optional("async_tp_ranks", m.async_tp_ranks, at_least(0));
  io.optional("attention_scores", m.attention_scores, at_least(0));
  io.optional("attention_scores_eager", m.attention_scores_eager, at_least(0));
  io.optional("full_recompute_hidden", m.full_recompute_hidden, at_least(0));
  io.optional("recompute_share", m.recompute_share, between(0, 1));
  io.optional("logits_bytes", m.logits_bytes, at_least(0));
  io.optional("logits_tp_factor", m.logits_tp_factor, at_least(1));
  io.optional("loss_hidden_bytes", m.loss_hidden_bytes, at_least(0));
  io.optional("logits_kept_bytes", m.logits_kept_bytes, at_least(0));
  io.optional("loss_gather_bytes", m.loss_gather_bytes, at_least(0));
  io.optional("transient_hidden", m.transient_hidden, at_least(0));
  io.optional("saves_fp8_inputs", m.saves_fp8_inputs);
  io.optional("wgrad_placeholder_bytes", m.wgrad_placeholder_bytes, at_least(0));
  io.optional("gradient_bytes", m.gradient_bytes, at_least(0));
  io.optional("gradients_as_parameters", m.gradients_as_parameters);
  io.optional("runs_state_reduction", m.runs_state_reduction);
  io.optional("ddp_extra_bytes", m.ddp_extra_bytes, at_least(0));
  io.optional("sharded_master_of_fp32", m.sharded_master_of_fp32);
  io.optional("bf16_sums_beside_gradients", m.bf16_sums_beside_gradients);
  io.optional("part_offload_moves_gradients", m.part_offload_moves_gradients);
  io.optional("sharded_gradients_fp32", m.sharded_gradients_fp32);
  io.optional("gradients_in_parameters", m.gradients_in_parameters);
  io.optional("offload_from_whole", m.offload_from_whole);
  io.optional("update_copies", m.update_copies, kUpdateCopiesNames);
  io.optional("zero2_sums_apart", m.zero2_sums_apart);
  io.optional("update_frees_gradients", m.update_frees_gradients, between(0, 1));
  io.optional("update_extra_bytes", m.update_extra_bytes, at_least(0));
  io.optional("zero3_update_elements", m.zero3_update_elements, at_least(0));
  io.optional("fragmentation", m.fragmentation, between(1, 10));
  io.optional("reserve_needed", m.reserve_needed, between(0, 1));
  io.optional("host_extra_bytes", m.host_extra_bytes, at_least(0));
  io.optional("host_factor", m.host_factor, between(1, 10));
  io.optional("host_gradients_fp32", m.host_gradients_fp32);
  io.optional("host_places_bytes", m.host_places_bytes, at_least(0));
  io.optional("host_whole_bytes", m.host_whole_bytes, at_least(0));
  io.optional("outside_GiB", m.outside, at_least(0));
  io.optional("outside_alone_GiB", m.outside_alone, at_least(0));
};

constexpr auto kStack = [](auto& io, auto& s) {
  io.required("name", s.name);
  io.optional("title", s.title);
  io.optional("version", s.version);
  io.optional("source", s.source);
  io.optional("assumes", s.assumes);
  io.optional("with_blocks", s.with_blocks);
  io.ignored("about");
  io.ignored("on_generation");  // load_stack() has merged what is for the device
  io.optional("can", s.can);
  io.optional("rules", s.rules);
  io.optional("kernels", s.kernels);
  io.optional("memory", s.memory);
};

// What people call a framework, or what runs on one, and no preset is called: how a plain word begins, and what is meant.
struct OtherName {
  std::string_view begins, meant;
};
constexpr std::string_view kOfHuggingFace =
    "it runs on what its configuration names: deepspeed-zero for DeepSpeed, torchtitan-eager for FSDP2, "
    "fsdp1-eager for FSDP1";
constexpr std::string_view kCoreByVersion =
    "by version: megatron-lm-2024 is core 0.5 to 0.7, nemo-2024 and nemo-dgxc are NeMo 24.03 to 24.09 and "
    "24.11 to "
    "25.05 on the cores between, megatron-core is core 0.20";
constexpr std::string_view kMegatronByYear =
    "did you mean megatron-core, or megatron-lm-2024 or megatron-lm-2021 for those years?";
constexpr std::array kOtherNames = {
    OtherName{"megatroncore0", kCoreByVersion},
    OtherName{"megatroncorev0", kCoreByVersion},
    OtherName{"mcore0", kCoreByVersion},
    OtherName{"mcorev0", kCoreByVersion},
    OtherName{"corev0", kCoreByVersion},
    OtherName{"megatronlm2022", kMegatronByYear},
    OtherName{"megatronlm2023", "did you mean megatron-lm-2024? It is Megatron-LM of 2023 too"},
    OtherName{"megatronlm2025", "did you mean megatron-core?"},
    OtherName{"megatronlm2026", "did you mean megatron-core?"},
    OtherName{"nemo2", "did you mean nemo-2024, or nemo-dgxc for its containers since 24.11?"},
    OtherName{"zero", "did you mean deepspeed-zero?"},
    OtherName{"ds", "did you mean deepspeed-zero?"},
    OtherName{"fsdp2", "did you mean torchtitan, or torchtitan-eager for blocks that are not compiled?"},
    OtherName{"pytorch", "did you mean torchtitan (FSDP2) or fsdp1-eager (FSDP1)?"},
    OtherName{"torch", "did you mean torchtitan (FSDP2) or fsdp1-eager (FSDP1)?"},
    OtherName{"mcore", "did you mean megatron-core?"},
    OtherName{"megatronlm", kMegatronByYear},
    OtherName{"megatrondeepspeed",
              "did you mean megatron-deepspeed-bloom, megatron-deepspeed-zero3 or deepspeed-zero?"},
    OtherName{"mosaic", "did you mean llm-foundry?"},
    OtherName{"composer", "did you mean llm-foundry?"},
    OtherName{"accelerate", kOfHuggingFace},
    OtherName{"hf", kOfHuggingFace},
    OtherName{"huggingface", kOfHuggingFace},
    OtherName{"transformers", kOfHuggingFace},
    OtherName{"trl", kOfHuggingFace},
    OtherName{"axolotl", kOfHuggingFace},
    OtherName{"llamafactory", kOfHuggingFace},
    OtherName{"lightning", kOfHuggingFace},
    OtherName{"gptneox", "it is Megatron's layers on DeepSpeed: megatron-deepspeed-bloom, or -bloom-bf16"},
    OtherName{"neox", "it is Megatron's layers on DeepSpeed: megatron-deepspeed-bloom, or -bloom-bf16"},
    OtherName{"levanter", "no framework on JAX is among them but alpa; times of others would be a guess"},
    OtherName{"paddlenlp", "did you mean paddle-llama?"},
    OtherName{"internevo", "did you mean aleph-alpha? Its eager LLaMA code comes nearest"},
    OtherName{"sagemaker", "did you mean smp-v2?"},
    OtherName{"bridge", "did you mean nemo-dgxc? Megatron-Bridge is NeMo's successor"},
    OtherName{"megatronbridge", "did you mean nemo-dgxc? Megatron-Bridge is NeMo's successor"},
    OtherName{"ddp", "no preset is DDP alone: fsdp1-eager or torchtitan-eager with z0 in the key"},
    OtherName{"unsloth", kOfHuggingFace},
    OtherName{"torchtune", "did you mean torchtitan-eager? It runs FSDP2 too"},
    OtherName{"litgpt", "did you mean fsdp1-eager? It runs FSDP1 too"},
    OtherName{"maxtext", "no framework on JAX is among them but alpa; times of others would be a guess"},
    OtherName{"jax", "no framework on JAX is among them but alpa; times of others would be a guess"},
    OtherName{"pax", "no framework on JAX is among them but alpa; times of others would be a guess"}};

enum class Spelling : std::uint8_t { exact, with_slips };

// Which presets a framework's other name means. `longer_than`: only beginnings that are longer.
std::string stack_by_other_name(const std::string& name, Spelling spelling, std::size_t longer_than = 0) {
  const std::string plain = plain_word(name);
  std::string_view meant;
  std::size_t longest = longer_than;
  for (const OtherName& other : kOtherNames)
    if (plain.starts_with(other.begins) && other.begins.size() > longest) {
      meant = other.meant;
      longest = other.begins.size();
    }
  if (!meant.empty() || spelling == Spelling::exact) return std::string(meant);
  std::vector<std::string> words;
  constexpr std::size_t kLongEnough = 5;  // one slip in a shorter word makes another
  for (const OtherName& other : kOtherNames)
    if (other.begins.size() >= kLongEnough) words.emplace_back(other.begins);
  const std::string near = closest(plain, words);
  for (const OtherName& other : kOtherNames)
    if (!near.empty() && other.begins == near) meant = other.meant;
  return std::string(meant);
}

// Of a name that goes on with a version where the preset's ends: which version that is.
std::string version_of(const std::string& name, const std::string& near,
                       const std::filesystem::path& presets) {
  const std::string typed = plain_word(name), known = plain_word(near);
  if (!typed.starts_with(known) || typed.size() == known.size()) return "";
  const char next = typed[known.size()];
  const auto path = find_preset(presets, "stacks", near);
  if (!path || (next != 'v' && std::isdigit(static_cast<unsigned char>(next)) == 0)) return "";
  const nlohmann::json j = read_plain_values(*path);
  if (!j.contains("version") || !j["version"].is_string()) return "";
  return fmt::format(" It is {}", j["version"].get<std::string>());
}

std::filesystem::path preset_path(const std::string& name, const std::filesystem::path& presets) {
  if (const auto path = find_preset(presets, "stacks", name)) return *path;
  const std::string near = nearest_preset(presets, {"stacks"}, name);
  // A slip in the whole of a name says more than its first word, which may be another's.
  constexpr std::size_t kSlip = 1;
  const bool slip = !near.empty() && plain_word(name).size() + kSlip >= plain_word(near).size();
  std::string hint = stack_by_other_name(name, Spelling::exact, slip ? plain_word(near).size() - 1 : 0);
  if (hint.empty() && !near.empty()) hint = "did you mean " + near + "?" + version_of(name, near, presets);
  if (hint.empty()) hint = stack_by_other_name(name, Spelling::with_slips);
  throw ConfigError(Problem{"", "stack", name,
                            fmt::format("one of {}, or a JSON file", fmt::join(stack_names(presets), ", ")),
                            hint});
}

// The file over its base, over the base of that, and so on. `former`: what of them is in the spelling of version 0.1.
nlohmann::json resolved(const std::filesystem::path& path, const std::filesystem::path& presets,
                        std::vector<std::string>& former, int depth = 0) {
  constexpr int kDeepestBase = 8;
  nlohmann::json j = read_plain_values(path);
  for (std::string& change : take_present_spelling(j)) former.push_back(std::move(change));
  if (!j.is_object() || !j.contains("base")) return j;
  if (!j["base"].is_string() || depth >= kDeepestBase)
    throw ConfigError(
        Problem{path.string(), "base", j["base"].dump(), "the name of another stack, without a circle", ""});
  auto whole = resolved(preset_path(j["base"].get<std::string>(), presets), presets, former, depth + 1);
  j.erase("base");
  whole.merge_patch(j);
  return whole;
}

}  // namespace

std::string_view name(AttentionKernel k) { return kAttentionNames[static_cast<std::size_t>(k)]; }

std::vector<Problem> validate(const StackCapabilities& c) {
  std::vector<Problem> out;
  for (std::size_t i = 0; i < c.axis_orders.size(); ++i) {
    AxisOrder sorted = c.axis_orders[i];
    std::ranges::sort(sorted);
    if (std::ranges::adjacent_find(sorted) == sorted.end()) continue;
    out.push_back({"", fmt::format("axis_orders[{}]", i), order_text(c.axis_orders[i]),
                   "tp, cp, dp and pp once each, innermost first", ""});
  }
  return out;
}

void to_json(nlohmann::json& j, const StackCapabilities& c) { write_object(j, c, kCapabilities); }
void from_json(const nlohmann::json& j, StackCapabilities& c) {
  const auto present = present_capabilities(j);
  read_object(present ? *present : j, c, kCapabilities);
}
void to_json(nlohmann::json& j, const StackRules& r) { write_object(j, r, kRules); }
void from_json(const nlohmann::json& j, StackRules& r) {
  const auto present = present_rules(j);
  read_object(present ? *present : j, r, kRules);
}
void to_json(nlohmann::json& j, const StackKernels& k) { write_object(j, k, kKernels); }
void from_json(const nlohmann::json& j, StackKernels& k) { read_object(j, k, kKernels); }
void to_json(nlohmann::json& j, const StackMemory& m) { write_object(j, m, kMemory); }
void from_json(const nlohmann::json& j, StackMemory& m) { read_object(j, m, kMemory); }
void to_json(nlohmann::json& j, const StackSpec& s) { write_object(j, s, kStack); }
void from_json(const nlohmann::json& j, StackSpec& s) { read_object(j, s, kStack); }

std::vector<std::string> stack_names(const std::filesystem::path& presets) {
  return preset_names(presets, "stacks");
}

StackSpec load_stack(const std::string& name_or_path, const std::filesystem::path& presets,
                     std::string_view generation, std::vector<std::string>* notes) {
  const bool is_path = name_or_path.ends_with(".json") || name_or_path.find('/') != std::string::npos;
  const std::filesystem::path path =
      is_path ? std::filesystem::path(name_or_path) : preset_path(name_or_path, presets);
  StackSpec s;
  with_file(path.string(), [&] {
    std::vector<std::string> former;
    auto j = resolved(path, presets, former);
    if (const auto found = j.find("on_generation"); found != j.end()) {
      const nlohmann::json by_generation = *found;
      const bool objects =
          std::ranges::all_of(by_generation, [](const auto& own) { return own.is_object(); });
      if (!by_generation.is_object() || !objects)
        throw ConfigError(
            Problem{"", "on_generation", by_generation.dump(),
                    "an object of objects: for each generation of devices the fields that differ", ""});
      if (const auto own = by_generation.find(generation); own != by_generation.end()) j.merge_patch(*own);
    }
    if (notes && !former.empty()) notes->push_back(former_text(path.string(), former));
    from_json(j, s);
  });
  return s;
}

}  // namespace sextant
