// Export to the embedded runtime: the plan file is what it runs, beside scripts that start its ranks and say where.
#include <fmt/format.h>

#include "kernels/cpu/cpu_kernels.hpp"
#include "runtime/execution/trainer/rank_trainer.hpp"
#include "tools/export/export_target.hpp"

namespace sextant {
namespace {

TargetFeatures runtime_features(const std::string&, const StackCapabilities& can) {
  TargetFeatures t;
  t.can = can;
  t.whole_model = t.offload_horizon = true;
  t.axis_orders.clear();
  return t;
}

// The runtime itself is asked. Its number formats go together; the nearest are those that it trains large models in.
std::vector<Inexpressible> runtime_rules(const PlanFile& file, const std::string&) {
  std::vector<Inexpressible> found;
  const PlanChange formats{"compute and parameters bf16, all else fp32", [](PlanFile& f) {
                             f.training.compute = f.training.parameter = Dtype::bf16;
                             f.training.gradient = f.training.reduction = f.training.optimizer_state =
                                 Dtype::fp32;
                           }};
  const PlanChange over_tokens =
      set_field("sequence_parallel true", [](ParallelPlan& q) { q.sequence_parallel = true; });
  const ParallelPlan& plan = file.plan;
  for (const Problem& p : runtime_refuses(file.model, file.training, plan, file.stack, cpu_kernels())) {
    // What the stack's abilities have said already.
    if (p.key == "plan.overlap_tp" || (p.key == "plan.tp" && plan.tp > file.model.n_kv_heads)) continue;
    const std::string reason = "the runtime takes " + p.expected;
    if (p.key == "stack.rules.scatter_p2p")
      found.push_back({"sequence_parallel",
                       "false",
                       "the runtime splits what stages pass on over tokens",
                       {over_tokens}});
    else if (p.key.starts_with("training."))
      found.push_back({p.key, p.value, reason, {formats}});
    else
      found.push_back({p.key.starts_with("plan.") ? p.key.substr(5) : p.key, p.value, reason, {}});
  }
  return found;
}

ExportContent write_runtime(const PlanFile& file, const std::string&) {
  ExportContent out;
  const bool gpu = file.cluster.device.generation != "cpu";
  const std::string run =
      fmt::format("\"${{SEXTANT:-sextant}}\" run plan.json --device {}", gpu ? "cuda" : "cpu");
  out.setup = {
      "command -v \"${SEXTANT:-sextant}\" > /dev/null || { echo 'SEXTANT names no sextant' >&2; exit 1; }"};
  out.program = "--no-python " + run + " --comm env";
  out.mpi_program = run + " --comm mpi";
  out.needs = fmt::format("sextant itself on every node{}", gpu ? ", built with CUDA and NCCL" : "");
  out.trial = "\"${SEXTANT:-sextant}\" simulate plan.json \"$@\"";
  out.trial_needs = "no GPU; the very graph on a virtual clock";
  out.checker = "sextant_runtime";
  out.notes.push_back("tokens are synthetic: bash launch.sh --data DIR trains on a data set of sextant data");
  if (file.plan.world() > file.cluster.node.gpus)
    out.notes.push_back(
        "torchrun's processes prove a secret to each other: export SEXTANT_SECRET=... alike on every node, "
        "or share "
        "home folders");
  return out;
}

}  // namespace

ExportTarget sextant_target() {
  return {.name = "sextant",
          .title = "sextant's own runtime",
          .versions = {"0.1"},
          .package = "",
          .place = "this program",
          .stack = "sextant",
          .features = runtime_features,
          .rules = runtime_rules,
          .write = write_runtime};
}

}  // namespace sextant
