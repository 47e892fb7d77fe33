// Export to SageMaker's model parallelism library, SMP v2: its JSON file, and what a training script under it must say itself. Keys:
// AWS, "The SageMaker model parallel library v2 reference", SMP v2 core feature configuration parameters
// (docs.aws.amazon.com/sagemaker/latest/dg/distributed-model-parallel-v2-reference.html). The library is in AWS's containers alone.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/export/export_target.hpp"
#include "tools/export/python_text.hpp"

namespace sextant {
namespace {

TargetFeatures smp_features(const std::string&, const StackCapabilities& can) {
  TargetFeatures t;
  t.can = can;
  t.can.recompute_layers = t.can.overlap_tp = false;
  t.without_grad_overlap = t.without_param_overlap = false;
  t.offload_horizon = true;
  t.formats = {{Dtype::bf16, Dtype::bf16, Dtype::fp32, Dtype::fp32, Dtype::fp32},
               {Dtype::fp32, Dtype::fp32, Dtype::fp32, Dtype::fp32, Dtype::fp32}};
  t.every_bias = t.qkv_bias = t.own_head_dim = true;  // the model is the script's own
  t.rope_scaling = {kScriptRopeScaling};
  return t;
}

std::vector<Inexpressible> smp_rules(const PlanFile& file, const std::string&) {
  std::vector<Inexpressible> found;
  const ParallelPlan& p = file.plan;
  int most = 0;
  for (const LayerRange& r : layer_ranges(p, file.model.n_layers)) most = std::max(most, r.count);
  if (p.activation_offload > 0 && p.activation_offload < most)
    found.push_back({"activation_offload",
                     fmt::format("{}", p.activation_offload),
                     "sm_activation_offloading is for all checkpointed layers",
                     {set_field(fmt::format("activation_offload {}", most),
                                [most](ParallelPlan& q) { q.activation_offload = most; }),
                      set_field("activation_offload 0", [](ParallelPlan& q) { q.activation_offload = 0; })}});
  return found;
}

ExportContent write_smp(const PlanFile& file, const std::string& version) {
  const ParallelPlan& p = file.plan;
  const TrainingSpec& t = file.training;
  ExportContent out;
  nlohmann::ordered_json config = {{"hybrid_shard_degree", p.shards()},
                                   {"tensor_parallel_degree", p.tp},
                                   {"context_parallel_degree", p.cp},
                                   {"expert_parallel_degree", 1},
                                   {"sm_activation_offloading", p.activation_offload > 0}};
  if (p.activation_offload > 0) config["activation_loading_horizon"] = p.offload_horizon;
  config["random_seed"] = 12345;
  out.files.push_back({"smp_config.json", config.dump(2) + "\n"});
  std::string text = fmt::format("# The plan {}: what smp_config.json has no key for.\n", plan_key(p));
  text += python_model_settings(file.model);
  text += fmt::format("SEQ_LEN, MICRO_BATCH, MICRO_BATCHES = {}, {}, {}\n", t.seq_len, p.micro_batch,
                      microbatches(p, t));
  text += fmt::format("SHARDING_STRATEGY = \"{}\"  # of FullyShardedDataParallel\n",
                      p.shards() == 1              ? "NO_SHARD"
                      : p.shards() == p.replicas() ? "FULL_SHARD"
                                                   : "HYBRID_SHARD");
  text += fmt::format("PARAM_DTYPE, REDUCE_DTYPE = \"{}\", \"float32\"  # of its MixedPrecision\n",
                      t.parameter == Dtype::bf16 ? "bfloat16" : "float32");
  text += fmt::format("RECOMPUTE = {}  # each decoder layer in checkpoint_wrapper\n",
                      python_bool(p.recompute.kind == RecomputeKind::full));
  out.files.push_back({"settings.py", text});
  out.setup = {
      ": \"${SMP_TRAIN:?set SMP_TRAIN to your FSDP script, which calls "
      "torch.sagemaker.init('smp_config.json')}\""};
  out.program = "\"$SMP_TRAIN\"";
  out.needs = fmt::format(
      "a SageMaker container with SMP {} (it is not on PyPI), and an FSDP script of your own", version);
  out.checker = "smp";
  out.own_parser = false;
  out.notes.push_back(
      "check.py holds smp_config.json against AWS's list of parameters: the library itself cannot be "
      "installed elsewhere");
  out.notes.push_back("settings.py is what your script must set itself: SMP's file has no key for it");
  return out;
}

}  // namespace

ExportTarget smp_target() {
  return {.name = "smp",
          .title = "SageMaker SMP",
          .versions = {"v2"},
          .package = "",
          .place = "AWS's containers",
          .stack = "smp-v2",
          .features = smp_features,
          .rules = smp_rules,
          .write = write_smp};
}

}  // namespace sextant
