#include <algorithm>

#include <fmt/format.h>

#include "core/base/decimal.hpp"
#include "core/base/words.hpp"
#include "core/model/model_files.hpp"
#include "core/plan/stage_cuts.hpp"
#include "tools/import/foreign_keys.hpp"
#include "tools/import/import_settings.hpp"

namespace sextant {

namespace {

const std::vector<std::string> kTitanNoEffect = {"job",
                                                 "profiling",
                                                 "profiler",
                                                 "metrics",
                                                 "optimizer",
                                                 "lr_scheduler",
                                                 "checkpoint",
                                                 "validation",
                                                 "validator",
                                                 "comm",
                                                 "debug",
                                                 "memory_estimation",
                                                 "fault_tolerance",
                                                 "experimental",
                                                 "constants",
                                                 "rope",
                                                 "model.hf_assets_path",
                                                 "model.tokenizer_path",
                                                 "model.print_after_conversion",
                                                 "training.dataset*",
                                                 "training.max_norm",
                                                 "training.steps",
                                                 "training.gc_*",
                                                 "training.dataloader",
                                                 "training.disable_cuda_graphs",
                                                 "training.mixed_precision_reduce",
                                                 "parallelism.disable_loss_parallel",
                                                 "parallelism.context_parallel_load_balancer",
                                                 "parallelism.context_parallel_rotate_method",
                                                 "parallelism.spmd_backend",
                                                 "activation_checkpoint.early_stop",
                                                 "activation_checkpoint.preserve_rng_state",
                                                 "activation_checkpoint.determinism_check",
                                                 "activation_checkpoint.debug",
                                                 "activation_checkpoint.per_op_sac*",
                                                 "activation_checkpoint.memory_budget",
                                                 "quantize",
                                                 "parallelism.pipeline_parallel_expert_parallel_overlap",
                                                 "compile.components",
                                                 "compile.backend",
                                                 "training.seed",
                                                 "training.deterministic",
                                                 "parallelism.expert_parallel_comm_backend",
                                                 "parallelism.expert_*_degree"};

// The shape that a module of `sextant export` states as constants.
ModelSpec model_of_constants(const nlohmann::json& c, const nlohmann::json& rope) {
  ModelSpec m;
  m.name = "torchtitan model";
  m.hidden = c.at("DIM");
  m.n_layers = c.at("LAYERS");
  m.ffn_hidden = c.at("FFN");
  m.vocab_size = c.at("VOCAB");
  m.n_heads = c.at("HEADS");
  m.n_kv_heads = c.at("KV_HEADS");
  m.head_dim = c.at("HEAD_DIM");
  m.norm_eps = c.at("NORM_EPS");
  m.tied_embeddings = c.at("TIED");
  m.rope_theta = rope.at("theta");
  m.max_positions = rope.contains("max_seq_len") ? rope.at("max_seq_len") : rope.at("max_context_length");
  if (rope.contains("scaling")) {
    m.rope_scaling = RopeScaling{};
    m.rope_scaling->factor = rope.at("scaling_factor");
    m.rope_scaling->low_freq_factor = rope.at("low_freq_factor");
    m.rope_scaling->high_freq_factor = rope.at("high_freq_factor");
    m.rope_scaling->original_max_positions = rope.at("original_max_position_embeddings");
  }
  return m;
}

void read_titan_model(ForeignKeys& k, ImportedRun& run, const ImportSource& source) {
  const nlohmann::json& s = k.settings();
  const std::string family = lower(k.text("model.name").value_or("llama3")),
                    flavor = k.text("model.flavor").value_or("");
  if (s.contains("constants") && s["constants"].contains("DIM")) {
    try {
      run.model = model_of_constants(s["constants"], s.value("rope", nlohmann::json::object()));
    } catch (const nlohmann::json::exception&) {
      k.wrong("", "constants DIM, LAYERS, ... that are no numbers", "a module as sextant export writes it",
              "");
    }
    return;
  }
  if (family != "llama3" && family != "qwen3")
    k.wrong("model.name", family, "llama3 or qwen3",
            "--model takes another model's config.json; sextant plans decoders of equal dense layers");
  if (flavor.empty()) return;
  if (lower(flavor).starts_with("debugmodel")) {
    ModelSpec& m = run.model.emplace();
    m.name = "torchtitan debugmodel";
    m.hidden = 256;
    m.n_layers = 6;
    m.n_heads = m.n_kv_heads = 16;
    m.head_dim = 16;
    m.ffn_hidden = 768;
    m.vocab_size = 2048;
    m.rope_theta = 500000;
    return;
  }
  const std::string size = lower(flavor.substr(0, flavor.find('_')));
  const std::string version = family == "qwen3"              ? "qwen3"
                              : size == "1b" || size == "3b" ? "llama-3.2"
                                                             : "llama-3.1";
  const std::string preset = preset_of_name(version + "-" + size, source.presets);
  if (preset.empty())
    k.wrong("model.flavor", "a flavor that a preset has: 1B, 3B, 8B, 70B or 405B of llama3",
            "--model states another");
  run.model = load_model(preset, source.presets);
  run.assumed.push_back(fmt::format("the model {} ({} {})", preset, family, flavor));
}

// Layers per chunk as the lists of module names state them, or those of a module of `sextant export`.
std::optional<std::vector<int>> named_layers(const nlohmann::json& parts, const nlohmann::json& settings) {
  std::vector<int> out;
  if (parts.is_array()) {
    for (const auto& part : parts)
      out.push_back(static_cast<int>(std::ranges::count_if(part, [](const nlohmann::json& name) {
        return name.is_string() && name.get<std::string>().starts_with("layers.");
      })));
    return out;
  }
  if (!settings.contains("constants") || !settings["constants"].contains("CHUNKS")) return std::nullopt;
  for (const auto& chunk : settings["constants"]["CHUNKS"])
    if (chunk.is_array() && chunk.size() == 2 && chunk[0].is_number() && chunk[1].is_number())
      out.push_back(chunk[1].get<int>() - chunk[0].get<int>());
  return out;
}

void read_titan_pipeline(ForeignKeys& k, int layers, ImportedRun& run) {
  ParallelPlan& p = run.plan;
  const std::string schedule = k.text("parallelism.pipeline_parallel_schedule").value_or("1F1B");
  const auto per_stage = k.count("parallelism.pipeline_parallel_layers_per_stage");
  const int first = k.count("parallelism.pipeline_parallel_first_stage_less_layers", 0).value_or(1),
            last = k.count("parallelism.pipeline_parallel_last_stage_less_layers", 0).value_or(1);
  const nlohmann::json* parts = k.value("parallelism.module_fqns_per_model_part");
  if (const auto csv = k.text("parallelism.pipeline_parallel_schedule_csv"); csv && !csv->empty() && p.pp > 1)
    run.unread.push_back("parallelism.pipeline_parallel_schedule_csv: taken as " + schedule);
  if (p.pp == 1 || p.pp > kMaxChunks) return;
  const std::string kind = lower(schedule);
  const bool one_stage = kind == "1f1b" || kind == "gpipe";
  if (kind == "gpipe") p.schedule = PipelineSchedule::gpipe;
  if (!one_stage && kind != "interleaved1f1b")
    run.unread.push_back(
        fmt::format("parallelism.pipeline_parallel_schedule {}: taken as Interleaved1F1B", schedule));
  std::optional<std::vector<int>> chunks = parts ? named_layers(*parts, k.settings()) : std::nullopt;
  if (!chunks && layers > 0) {
    const int stages =
        per_stage ? (layers + first + last + *per_stage - 1) / *per_stage : p.pp * (one_stage ? 1 : 2);
    if (stages % p.pp != 0 || (stages == p.pp) != one_stage)
      k.wrong("parallelism.pipeline_parallel_layers_per_stage",
              fmt::format("what makes {} for {} ranks and the schedule {}",
                          one_stage ? "one stage a rank" : "several stages a rank", p.pp, schedule));
    chunks = cut_with_ends(layers, stages, first, last);
    if (!chunks)
      k.wrong("parallelism.pipeline_parallel_degree",
              fmt::format("at most as many stages as layers: {}", layers));
  }
  if (!chunks) {
    if (!one_stage) {
      p.vp = 2;
      p.schedule = PipelineSchedule::interleaved;
    }
    if (per_stage)
      run.unread.push_back(fmt::format(
          "parallelism.pipeline_parallel_layers_per_stage {}: no model states the number of layers",
          *per_stage));
    return;
  }
  if (chunks->empty() || static_cast<int>(chunks->size()) % p.pp != 0)
    k.wrong("parallelism.module_fqns_per_model_part", fmt::format("{} parts", chunks->size()),
            fmt::format("a multiple of {} ranks", p.pp), "");
  p.vp = static_cast<int>(chunks->size()) / p.pp;
  if (p.vp > 1) p.schedule = PipelineSchedule::interleaved;
  p.chunks = chunks_of(*chunks);
  if (layers > 0 && equal_chunks(p, layers)) p.chunks.clear();
}

void read_titan_degrees(ForeignKeys& k, ImportedRun& run) {
  ParallelPlan& p = run.plan;
  p.tp = k.count("parallelism.tensor_parallel_degree").value_or(1);
  p.pp = k.count("parallelism.pipeline_parallel_degree").value_or(1);
  p.cp = k.count("parallelism.context_parallel_degree").value_or(1);
  p.sequence_parallel = p.tp > 1 && k.flag("parallelism.enable_sequence_parallel").value_or(true);
  const bool async = k.is("parallelism.enable_async_tensor_parallel"),
             compiled_async = k.is("compile.enable_async_tensor_parallel");
  p.overlap_tp = p.tp > 1 && (async || compiled_async);
  const int replicate = k.count("parallelism.data_parallel_replicate_degree").value_or(1),
            shard = k.count("parallelism.data_parallel_shard_degree", -1).value_or(-1);
  if (shard == 0) k.wrong("parallelism.data_parallel_shard_degree", "-1 or a number from 1");
  const std::string reshard = k.text("parallelism.fsdp_reshard_after_forward").value_or("default");
  if (reshard != "default" && reshard != "always" && reshard != "never")
    k.wrong("parallelism.fsdp_reshard_after_forward", "default, always or never");
  const bool sharded = shard != 1 || p.cp > 1;
  p.zero_stage = !sharded ? 0 : reshard == "never" || (reshard == "default" && p.pp > 1) ? 2 : 3;
  if (shard > 0) run.dp = replicate * shard;
  run.state_copies = replicate;
  if (!run.dp && !sharded) run.dp = replicate;
}

void read_titan_batch(ForeignKeys& k, ImportedRun& run) {
  ParallelPlan& p = run.plan;
  const auto context = k.count("training.max_context_length");
  run.seq_len = context ? context : k.count("training.seq_len").value_or(2048);
  const auto tokens = k.count("training.num_tokens_per_microbatch_per_dp_rank");
  const auto step = k.count("training.num_tokens_per_train_step", -1);
  const int stages = k.count("parallelism.num_pp_microbatches").value_or(1);
  if (context || tokens) {  // counted in tokens since 2026
    const auto sequences = [&](const char* key, int n) {
      if (n % *run.seq_len != 0) k.wrong(key, fmt::format("whole sequences of {} tokens", *run.seq_len));
      return n / *run.seq_len;
    };
    p.micro_batch = sequences("training.num_tokens_per_microbatch_per_dp_rank", tokens.value_or(16384));
    if (step.value_or(-1) > 0)
      run.global_batch = sequences("training.num_tokens_per_train_step", *step);
    else
      run.accumulation = stages;
    return;
  }
  const int local = k.count("training.local_batch_size").value_or(8);
  const int global = k.count("training.global_batch_size", -1).value_or(-1);
  const int micro = k.count("parallelism.pipeline_parallel_microbatch_size").value_or(1);
  p.micro_batch = p.pp > 1 ? micro : local;
  if (p.pp > 1 && local % micro != 0)
    k.wrong("parallelism.pipeline_parallel_microbatch_size",
            fmt::format("a divisor of the local batch {}", local));
  if (global > 0)
    run.global_batch = global;
  else
    run.accumulation = local / p.micro_batch;
}

void read_titan_recompute(ForeignKeys& k, int layers, ImportedRun& run) {
  Recompute& r = run.plan.recompute;
  const std::string mode = k.text("activation_checkpoint.mode").value_or("selective"),
                    option = k.text("activation_checkpoint.selective_ac_option").value_or("2");
  const nlohmann::json constants = k.settings().value("constants", nlohmann::json::object());
  if (mode == "full") {
    r.kind = RecomputeKind::full;
    const int chunks = run.plan.pp * run.plan.vp;
    if (constants.contains("RECOMPUTED") && constants["RECOMPUTED"].is_array() && chunks > 0)
      r.layers = static_cast<int>(constants["RECOMPUTED"].size()) / chunks;
  } else if (mode == "selective" && option == "op") {
    r.kind = RecomputeKind::selective;
  } else if (mode == "selective") {
    const auto every = parse_count(option, kMaxLayers);
    if (!every || *every < 1)
      k.wrong("activation_checkpoint.selective_ac_option", "\"op\" or a whole number from 1 in quotes");
    r.kind = RecomputeKind::full;
    const int chunks = run.plan.pp * run.plan.vp;
    if (*every > 1 && layers > 0) {
      r.layers = std::max(1, (layers / chunks) / static_cast<int>(*every));
      run.assumed.push_back(fmt::format("one layer of {} recomputed: {} of each chunk", *every, r.layers));
    } else if (*every > 1) {
      run.unread.push_back(
          fmt::format("activation_checkpoint.selective_ac_option {}: taken as full, as no model states "
                      "the number of layers",
                      *every));
    }
  } else if (mode == "memory_budget") {
    run.unread.push_back("activation_checkpoint.mode memory_budget: taken as none");
  } else if (mode != "none") {
    k.wrong("activation_checkpoint.mode", "none, selective, full or memory_budget");
  }
}

void read_titan_formats(ForeignKeys& k, ImportedRun& run) {
  ImportedFormats& f = run.formats;
  const auto format = [&](const char* key, const char* usual) {
    const std::string name = k.text(key).value_or(usual);
    if (name != "bfloat16" && name != "float32") k.wrong(key, "bfloat16 or float32");
    return name == "bfloat16" ? Dtype::bf16 : Dtype::fp32;
  };
  f.parameter = f.compute = format("training.mixed_precision_param", "bfloat16");
  f.gradient = f.reduction = f.optimizer_state = Dtype::fp32;
  if (format("training.dtype", "float32") == Dtype::bf16) {
    f.parameter = f.compute = f.gradient = f.optimizer_state = Dtype::bf16;
    run.assumed.emplace_back(
        "fp32 copies of the parameters beside training.dtype bfloat16, which keeps none");
  }
  if (const nlohmann::json* converters = k.value("model.converters"); converters && converters->is_array())
    for (const auto& converter : *converters) {
      const std::string name = converter.is_string() ? lower(converter.get<std::string>()) : "";
      if (name.find("float8") != std::string::npos)
        f.compute = Dtype::fp8;
      else
        run.unread.push_back("model.converters " + converter.dump());
    }
  if (k.is("training.enable_cpu_offload")) {
    run.plan.parameter_offload = true;
    run.plan.optimizer_offload = 1.0;
  }
}

}  // namespace

bool is_torchtitan(const nlohmann::json& s) {
  if (!s.is_object()) return false;
  const auto section = [&](const char* name) { return s.contains(name) && s[name].is_object(); };
  // "parallelism", "model" and "training" are words of many: what stands in them is torchtitan's.
  const auto in = [&](const char* name, std::initializer_list<const char*> keys) {
    return section(name) && std::ranges::any_of(keys, [&](const char* key) { return s[name].contains(key); });
  };
  const bool degrees =
      section("parallelism") && !s["parallelism"].contains("tp") &&
      (s["parallelism"].empty() || std::ranges::any_of(s["parallelism"].items(), [](const auto& item) {
         return item.key().find("parallel") != std::string::npos || item.key().starts_with("fsdp_") ||
                item.key().starts_with("enable_");
       }));
  const bool trains =
      in("training", {"local_batch_size", "global_batch_size", "seq_len", "data_parallel_degree",
                      "data_parallel_shard_degree", "tensor_parallel_degree", "mixed_precision_param"});
  return degrees || (trains && section("model")) || (section("activation_checkpoint") && trains) ||
         (in("model", {"flavor"}) && section("training"));
}

ImportedRun import_torchtitan(const nlohmann::json& settings, const ImportSource& source) {
  ForeignKeys k(settings, source.file, kTitanNoEffect);
  ImportedRun run;
  run.file = source.file;
  run.what = "a torchtitan configuration";
  run.stack = "torchtitan";
  read_titan_model(k, run, source);
  read_titan_degrees(k, run);
  const int layers = source.layers > 0 ? source.layers : run.model ? run.model->n_layers : 0;
  read_titan_pipeline(k, layers, run);
  read_titan_batch(k, run);
  read_titan_recompute(k, layers, run);
  read_titan_formats(k, run);
  if (!k.is("compile.enable")) run.stack = "torchtitan-eager";
  // TOML files ended in February 2026 (#2386), two months before the loss came in chunks (#2937).
  if (settings.contains("job") || source.file.ends_with(".toml")) {
    run.whole_logits_bytes = k.is("compile.enable") ? 6 : 12;
    run.assumed.emplace_back("the loss of all tokens at once, as before April 2026");
  }
  for (std::string& key : k.unread()) run.unread.push_back(std::move(key));
  return run;
}

}  // namespace sextant
