// Export to DeepSpeed: ds_config.json, and a script that trains a LLaMA under it (the degree of a pipeline is no part of the file).
// Key names and what excludes what: deepspeedai/DeepSpeed edaa722, the same in the wheel 0.19.8: runtime/config.py, zero/config.py,
// zero/offload_config.py, runtime/engine.py (_do_optimizer_sanity_check, _configure_zero_optimizer), runtime/pipe/engine.py,
// runtime/bf16_optimizer.py.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/decimal.hpp"
#include "tools/export/deepspeed_config.hpp"
#include "tools/export/export_target.hpp"
#include "tools/export/python_text.hpp"

namespace sextant {
namespace {

TargetFeatures deepspeed_features(const std::string&, const StackCapabilities& can) {
  TargetFeatures t = deepspeed_engine_features(can);
  t.every_bias = t.own_head_dim = true;
  t.rope_scaling = {kScriptRopeScaling};
  return t;
}

std::vector<Inexpressible> deepspeed_rules(const PlanFile& file, const std::string&) {
  std::vector<Inexpressible> found = deepspeed_engine_rules(file);
  const ParallelPlan& p = file.plan;
  if (p.tp > 1 && p.pp > 1) {
    const auto into_dp = [](int ParallelPlan::*member) {
      return [member](ParallelPlan& q) {
        q.dp *= q.*member;
        q.*member = 1;
        if (q.pp == 1) {
          q.vp = 1;
          q.schedule = PipelineSchedule::one_f_one_b;
          q.chunks.clear();
        }
      };
    };
    found.push_back({"tp",
                     fmt::format("{}", p.tp),
                     "its own tensor parallelism (AutoTP) has no pipeline stages beside it",
                     {set_field(fmt::format("tp 1, dp {}", p.dp * p.tp), into_dp(&ParallelPlan::tp)),
                      set_field(fmt::format("pp 1, dp {}", p.dp * p.pp), into_dp(&ParallelPlan::pp))}});
  }
  return found;
}

std::string deepspeed_settings(const PlanFile& file) {
  const ParallelPlan& p = file.plan;
  const TrainingSpec& t = file.training;
  const std::vector<int> stages = layer_counts(layer_ranges(p, file.model.n_layers));
  std::string text = fmt::format("# The plan {}, as train.py reads it.\n", plan_key(p));
  text += python_model_settings(file.model);
  text += fmt::format("MAX_POSITIONS, BIASES = {}, {}\n", file.model.max_positions,
                      python_bool(file.model.linear_bias));
  text += fmt::format("SEQ_LEN, MICRO_BATCH, MICRO_BATCHES = {}, {}, {}\n", t.seq_len, p.micro_batch,
                      microbatches(p, t));
  text += "# Ranks that split matrices, replicas, and the layers of each pipeline stage.\n";
  text += fmt::format("TP, DP, STAGES = {}, {}, [{}]\n", p.tp, p.dp, fmt::join(stages, ", "));
  text += fmt::format("DTYPE = \"{}\"\n", t.parameter == Dtype::bf16   ? "bfloat16"
                                          : t.parameter == Dtype::fp16 ? "float16"
                                                                       : "float32");
  return text + fmt::format("RECOMPUTE, ACTIVATION_OFFLOAD = \"{}\", {}\n", name(p.recompute.kind),
                            python_bool(p.activation_offload > 0));
}

ExportContent write_deepspeed(const PlanFile& file, const std::string& version) {
  ExportContent out;
  const ParallelPlan& p = file.plan;
  out.files.push_back({"ds_config.json", deepspeed_config(file).dump(2) + "\n"});
  out.files.push_back({"settings.py", deepspeed_settings(file)});
  out.copied = {{"deepspeed_train.py", "train.py"}, {"check_rope.py", "check_rope.py"}};
  out.environment = {{"PYTORCH_ALLOC_CONF", "expandable_segments:True"}};
  out.program = "train.py";
  out.needs = fmt::format("deepspeed {}, torch and transformers 5{}", version,
                          p.optimizer_offload > 0 ? "; a C++ compiler for its Adam on the host" : "");
  out.checker = "deepspeed";
  out.notes.push_back(
      "torchrun --nproc-per-node N train.py --tiny runs the layout with a small model, on N CPUs too");
  if (p.tp > 1)
    out.notes.push_back(
        "AutoTP leaves the embedding whole on every rank and gathers logits: more memory than predicted");
  if (p.tp > 1)
    out.notes.push_back(
        "beside AutoTP DeepSpeed multiplies train_batch_size by tp, so that micro-batch and accumulation "
        "alone are written");
  if (p.pp > 1)
    out.notes.push_back("another program than train.py states the stages itself: PipelineModule(num_stages)");
  return out;
}

}  // namespace

ExportTarget deepspeed_target() {
  return {.name = "deepspeed",
          .title = "DeepSpeed",
          .versions = {"0.19"},
          .package = "deepspeed",
          .stack = "deepspeed-zero",
          .features = deepspeed_features,
          .rules = deepspeed_rules,
          .write = write_deepspeed};
}

}  // namespace sextant
