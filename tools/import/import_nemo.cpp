// NeMo 1's configuration holds Megatron-Core's settings in its own words: they become Megatron-LM's options, which one reader knows.
// Names: NVIDIA/NeMo v1.23 to v2.0, examples/nlp/language_modeling/conf/megatron_gpt_config.yaml and megatron_llama_config.yaml.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "core/base/decimal.hpp"
#include "core/base/words.hpp"
#include "tools/import/foreign_keys.hpp"
#include "tools/import/import_megatron.hpp"
#include "tools/import/import_settings.hpp"

namespace sextant {

namespace {

struct NemoKey {
  const char* path;
  const char* option;
};
constexpr std::array kNemoValues = {
    NemoKey{"model.num_layers", "--num-layers"},
    NemoKey{"model.hidden_size", "--hidden-size"},
    NemoKey{"model.ffn_hidden_size", "--ffn-hidden-size"},
    NemoKey{"model.num_attention_heads", "--num-attention-heads"},
    NemoKey{"model.num_query_groups", "--num-query-groups"},
    NemoKey{"model.kv_channels", "--kv-channels"},
    NemoKey{"model.layernorm_epsilon", "--norm-epsilon"},
    NemoKey{"model.max_position_embeddings", "--max-position-embeddings"},
    NemoKey{"model.rotary_base", "--rotary-base"},
    NemoKey{"model.encoder_seq_length", "--seq-length"},
    NemoKey{"model.micro_batch_size", "--micro-batch-size"},
    NemoKey{"model.global_batch_size", "--global-batch-size"},
    NemoKey{"model.tensor_model_parallel_size", "--tensor-model-parallel-size"},
    NemoKey{"model.pipeline_model_parallel_size", "--pipeline-model-parallel-size"},
    NemoKey{"model.virtual_pipeline_model_parallel_size", "--num-virtual-stages-per-pipeline-rank"},
    NemoKey{"model.context_parallel_size", "--context-parallel-size"},
    NemoKey{"model.activations_checkpoint_granularity", "--recompute-granularity"},
    NemoKey{"model.activations_checkpoint_method", "--recompute-method"},
    NemoKey{"model.activations_checkpoint_num_layers", "--recompute-num-layers"}};
constexpr std::array kNemoSwitches = {NemoKey{"model.sequence_parallel", "--sequence-parallel"},
                                      NemoKey{"model.qk_layernorm", "--qk-layernorm"},
                                      NemoKey{"model.ub_tp_comm_overlap", "--tp-comm-overlap"},
                                      NemoKey{"model.optim.overlap_grad_sync", "--overlap-grad-reduce"},
                                      NemoKey{"model.optim.overlap_param_sync", "--overlap-param-gather"}};

// What changes no step, or is read in words of its own below.
const std::vector<std::string> kNemoNoEffect = {"name",
                                                "restore_from_path",
                                                "defaults",
                                                "hydra",
                                                "run",
                                                "exp_manager",
                                                "cluster*",
                                                "trainer.max_*",
                                                "trainer.*_interval",
                                                "trainer.*_batches",
                                                "trainer.accelerator",
                                                "trainer.logger",
                                                "trainer.enable_*",
                                                "trainer.use_distributed_sampler",
                                                "trainer.replace_sampler_ddp",
                                                "trainer.gradient_clip_val",
                                                "trainer.benchmark",
                                                "trainer.strategy",
                                                "trainer.log_every_n_steps",
                                                "model.data",
                                                "model.tokenizer",
                                                "model.init_method_std",
                                                "model.*dropout*",
                                                "model.make_vocab_size_divisible_by",
                                                "model.pre_process",
                                                "model.post_process",
                                                "model.persist_layer_norm",
                                                "model.seed",
                                                "model.resume_from_checkpoint",
                                                "model.use_cpu_initialization",
                                                "model.onnx_safe",
                                                "model.apex_transformer_log_level",
                                                "model.gradient_as_bucket_view",
                                                "model.sync_batch_comm",
                                                "model.native_amp_*",
                                                "model.hysteresis",
                                                "model.nsys_profile",
                                                "model.mcore_gpt",
                                                "model.transformer_engine",
                                                "model.attention_softmax_in_fp32",
                                                "model.apply_query_key_layer_scaling",
                                                "model.use_scaled_init_method",
                                                "model.normalize_attention_scores",
                                                "model.headscale",
                                                "model.*_fusion",
                                                "model.fp8_*",
                                                "model.optim.lr",
                                                "model.optim.weight_decay",
                                                "model.optim.betas",
                                                "model.optim.sched",
                                                "model.optim.eps",
                                                "model.optim.contiguous_*",
                                                "model.grad_allreduce_chunk_size_mb",
                                                "model.grad_div_ar_fusion",
                                                "model.use_flash_attention",
                                                "model.transformer_block_type",
                                                "model.openai_gelu",
                                                "model.tp_only_amax_red",
                                                "model.batch_p2p_comm",
                                                "model.defer_embedding_wgrad_compute",
                                                "model.wgrad_deferral_limit",
                                                "model.expert_model_parallel_size",
                                                "model.megatron_amp_O2",
                                                "model.moe_*",
                                                "model.reduce_amax",
                                                "model.use_emha",
                                                "model.gc_interval",
                                                "model.ub_tp_comm_overlap_cfg"};

// Numbers that the file leaves to OmegaConf: "${multiply:4, ${.hidden_size}}" of the example is known, others are not.
std::string resolved_number(ForeignKeys& k, const std::string& path, const std::string& value) {
  if (!value.starts_with("${")) return value;
  const auto hidden = k.count("model.hidden_size");
  const std::size_t colon = value.find(':');
  if (value.starts_with("${multiply:") && value.find("hidden_size") != value.npos && hidden &&
      colon != value.npos)
    if (const auto times = parse_decimal(value.substr(colon + 1, value.find(',') - colon - 1)))
      return fmt::format("{}", std::llround(*times * *hidden));
  if (value == "${.encoder_seq_length}" || value == "${model.encoder_seq_length}")
    return k.text("model.encoder_seq_length").value_or(value);
  k.wrong(path, value, "a number", "OmegaConf fills it in: write the number in its place");
}

void nemo_shape(ForeignKeys& k, CommandFlags& flags) {
  if (k.count("model.num_moe_experts", 0).value_or(0) > 1)
    k.wrong("model.num_moe_experts", "null: sextant plans no mixtures of experts");
  for (const char* part :
       {"model.encoder", "model.decoder", "model.unet_config", "model.vision", "model.mm_cfg"})
    if (const auto* inner = k.value(part); inner && inner->is_object())
      k.wrong(part, "a section of its own", "a decoder's configuration, as of megatron_gpt_pretraining",
              "sextant plans no other models");
  const std::string activation = lower(k.text("model.activation").value_or("gelu"));
  if (activation == "swiglu" || activation == "fast-swiglu")
    flags.options["--swiglu"] = {};
  else if (activation != "gelu")
    k.wrong("model.activation", "swiglu, fast-swiglu or gelu", "sextant plans no other MLPs");
  const std::string norm = lower(k.text("model.normalization").value_or("layernorm1p"));
  flags.options["--normalization"] = {norm == "rmsnorm" ? "RMSNorm" : "LayerNorm"};
  if (!k.flag("model.bias").value_or(true)) flags.options["--disable-bias-linear"] = {};
  const std::string position = lower(k.text("model.position_embedding_type").value_or("learned_absolute"));
  flags.options["--position-embedding-type"] = {position};
  if (!k.flag("model.share_embeddings_and_output_weights").value_or(true))
    flags.options["--untie-embeddings-and-output-weights"] = {};
  for (const char* path : {"model.tokenizer.model", "model.tokenizer.type"})
    if (const auto name = k.text(path); name && !flags.has("--tokenizer-model"))
      flags.options["--tokenizer-model"] = {*name};
  const auto library = lower(k.text("model.tokenizer.library").value_or("")),
             type = lower(k.text("model.tokenizer.type").value_or(""));
  if (library == "megatron" && type.starts_with("gpt2")) {
    flags.options["--tokenizer-type"] = {"GPT2BPETokenizer"};
    flags.options.erase("--tokenizer-model");
  }
}

// 16, "bf16", "bf16-mixed", "16-mixed"; and what reduces gradients.
void nemo_formats(ForeignKeys& k, CommandFlags& flags) {
  const std::string precision = lower(k.text("trainer.precision").value_or("32"));
  const bool bf16 = precision.starts_with("bf16"),
             fp16 = precision.starts_with("16") || precision.starts_with("fp16");
  if (!bf16 && !fp16 && !precision.starts_with("32")) k.wrong("trainer.precision", "bf16, 16 or 32");
  if (bf16) flags.options["--bf16"] = {};
  if (fp16) flags.options["--fp16"] = {};
  if (k.is("model.fp8")) flags.options["--fp8-format"] = {"hybrid"};
  const std::string sums = lower(k.text("model.optim.grad_sync_dtype").value_or(""));
  if (bf16 && sums.starts_with("bf")) flags.options["--grad-reduce-in-bf16"] = {};
}

void nemo_state(ForeignKeys& k, CommandFlags& flags, ImportedRun& run) {
  if (lower(k.text("model.optim.name").value_or("")).starts_with("distributed_"))
    flags.options["--use-distributed-optimizer"] = {};
  run.overlap_stated = k.value("model.optim.overlap_grad_sync") || k.value("model.optim.overlap_param_sync");
  if (!k.is("model.fsdp")) return;
  const std::string strategy = lower(k.text("model.fsdp_sharding_strategy").value_or("full"));
  if (strategy != "full" && strategy != "hybrid" && strategy != "grad")
    k.wrong("model.fsdp_sharding_strategy", "full, hybrid or grad");
  flags.options["--use-torch-fsdp2"] = {};
  if (strategy == "grad") flags.options["--torch-fsdp2-no-reshard-after-forward"] = {};
  run.shards_in_node = strategy == "hybrid";
}

bool is_section(const nlohmann::json& s, const char* name) { return s.contains(name) && s[name].is_object(); }

}  // namespace

bool is_nemo(const nlohmann::json& s) {
  if (!s.is_object() || !is_section(s, "model")) return false;
  const auto& model = s["model"];
  const bool own = is_section(s, "trainer") || is_section(s, "exp_manager") ||
                   model.contains("micro_batch_size") || model.contains("encoder_seq_length") ||
                   is_section(model, "optim");
  return own && !model.contains("_target_") &&
         (model.contains("tensor_model_parallel_size") || model.contains("pipeline_model_parallel_size") ||
          model.contains("encoder_seq_length"));
}

ImportedRun import_nemo(const nlohmann::json& settings, const ImportSource& source) {
  ForeignKeys k(settings, source.file, kNemoNoEffect);
  CommandFlags flags;
  for (const NemoKey& key : kNemoValues)
    if (const auto value = k.text(key.path))
      flags.options[key.option] = {resolved_number(k, key.path, *value)};
  for (const NemoKey& key : kNemoSwitches)
    if (k.is(key.path)) flags.options[key.option] = {};
  if (flags.has("--num-query-groups")) flags.options["--group-query-attention"] = {};
  nemo_shape(k, flags);
  nemo_formats(k, flags);
  ImportedRun state;
  nemo_state(k, flags, state);
  if (const auto devices = k.count("trainer.devices", -1), nodes = k.count("trainer.num_nodes");
      devices && *devices > 0)
    flags.gpus = *devices * nodes.value_or(1);
  ImportedRun run = import_megatron(flags, source.file);
  run.what = "a NeMo 1 configuration";
  run.stack = "nemo-2024";
  run.overlap_stated = state.overlap_stated;
  run.shards_in_node = state.shards_in_node;
  if (k.value("model.rampup_batch_size") && run.global_batch)
    run.assumed.push_back(fmt::format("the batch of {} at which rampup_batch_size ends", *run.global_batch));
  if (const double turned = k.real("model.rotary_percentage").value_or(1); turned != 1)
    run.unread.push_back(fmt::format("model.rotary_percentage {}: taken as 1, which costs as much", turned));
  for (std::string& key : k.unread()) run.unread.push_back(std::move(key));
  return run;
}

// NVIDIA/Megatron-LM, examples/gpt3/gpt_config.yaml: names are those of its arguments, in sections.
bool is_megatron_yaml(const nlohmann::json& s) {
  return s.is_object() && is_section(s, "model_parallel") && is_section(s, "language_model");
}

ImportedRun import_megatron_yaml(const nlohmann::json& settings, const ImportSource& source) {
  CommandFlags flags;
  const auto add = [&](const std::string& key, const nlohmann::json& value) {
    if (value.is_structured() || value.is_null() || value == false || value == "None" || value == "False")
      return;
    std::string name = "--" + key;
    std::replace(name.begin(), name.end(), '_', '-');
    if (key == "virtual_pipeline_model_parallel_size") name = "--num-virtual-stages-per-pipeline-rank";
    if (key == "layernorm_epsilon") name = "--norm-epsilon";
    if (key == "gated_linear_unit") name = "--swiglu";
    const bool on = value == true || value == "True";
    flags.options[name] =
        on ? std::vector<std::string>()
           : std::vector<std::string>{value.is_string() ? value.get<std::string>() : value.dump()};
  };
  for (const auto& [key, value] : settings.items())
    if (value.is_object())
      for (const auto& [inner, item] : value.items()) add(inner, item);
    else
      add(key, value);
  const auto& model = settings.at("language_model");
  if (model.contains("activation_func") && model["activation_func"] == "swiglu")
    flags.options["--swiglu"] = {};
  if (model.contains("add_bias_linear") && model["add_bias_linear"] == false)
    flags.options["--disable-bias-linear"] = {};
  if (flags.has("--num-query-groups")) flags.options["--group-query-attention"] = {};
  ImportedRun run = import_megatron(flags, source.file);
  run.what = "a Megatron-LM configuration (--yaml-cfg)";
  // All arguments stand in it: those that nobody asked for are no news.
  std::erase_if(run.unread,
                [](const std::string& option) { return option.find(": taken as") == option.npos; });
  return run;
}

}  // namespace sextant
