// Export to PyTorch alone: a script that trains a LLaMA with fully_shard (FSDP2) on a device mesh, TP beside it, and the settings
// of the plan that it reads. Names: torch 2.15, torch.distributed.fsdp, torch.distributed.tensor.parallel.
#include <fmt/format.h>

#include "core/plan/pipeline_order.hpp"
#include "tools/export/export_target.hpp"
#include "tools/export/python_text.hpp"

namespace sextant {
namespace {

TargetFeatures fsdp2_features(const std::string&, const StackCapabilities& can) {
  TargetFeatures t;
  t.can = can;
  t.can.pipeline_parallel = t.can.context_parallel = t.can.overlap_tp = false;
  t.without_grad_overlap = t.without_param_overlap = false;
  t.formats = {{Dtype::bf16, Dtype::bf16, Dtype::fp32, Dtype::fp32, Dtype::fp32},
               {Dtype::fp32, Dtype::fp32, Dtype::fp32, Dtype::fp32, Dtype::fp32}};
  t.own_head_dim = true;
  t.rope_scaling = {kScriptRopeScaling};
  return t;
}

std::vector<Inexpressible> fsdp2_rules(const PlanFile& file, const std::string&) {
  std::vector<Inexpressible> found;
  const ParallelPlan& p = file.plan;
  if (p.tp > 1 && p.sequence_parallel && file.training.seq_len % p.tp != 0)
    found.push_back(
        {"sequence_parallel",
         "true",
         fmt::format("the sequence must be a multiple of tp {}", p.tp),
         {set_field("sequence_parallel false", [](ParallelPlan& q) { q.sequence_parallel = false; })}});
  return found;
}

std::string settings_text(const PlanFile& file) {
  const ParallelPlan& p = file.plan;
  const TrainingSpec& t = file.training;
  std::string text = fmt::format("# The plan {}, as train.py reads it.\n", plan_key(p));
  text += python_model_settings(file.model);
  text += fmt::format("SEQ_LEN, MICRO_BATCH, MICRO_BATCHES = {}, {}, {}\n", t.seq_len, p.micro_batch,
                      microbatches(p, t));
  text += "# The mesh, outermost first: copies, ranks that share out the state, ranks that split matrices.\n";
  text += fmt::format("REPLICATE, SHARD, TP = {}, {}, {}\n", p.dp / p.shards(), p.shards(), p.tp);
  text += fmt::format("SEQUENCE_PARALLEL = {}\n", python_bool(p.tp > 1 && p.sequence_parallel));
  text += "# True: parameters are gathered anew for the backward pass (ZeRO-3). False: they stay (ZeRO-2).\n";
  text += fmt::format("RESHARD_AFTER_FORWARD = {}\n", python_bool(p.zero_stage == 3));
  text += fmt::format("PARAM_DTYPE = \"{}\"\n", t.parameter == Dtype::bf16 ? "bfloat16" : "float32");
  text += fmt::format("CPU_OFFLOAD = {}\n", python_bool(p.parameter_offload));
  text += fmt::format("# none, selective or full; of the first layers only, or of all (-1)\n");
  return text + fmt::format("RECOMPUTE, RECOMPUTE_LAYERS = \"{}\", {}\n", name(p.recompute.kind),
                            p.recompute.layers);
}

ExportContent write_fsdp2(const PlanFile& file, const std::string& version) {
  ExportContent out;
  out.files.push_back({"settings.py", settings_text(file)});
  out.copied = {{"fsdp2_train.py", "train.py"}, {"check_rope.py", "check_rope.py"}};
  out.environment = {{"PYTORCH_ALLOC_CONF", "expandable_segments:True"}};
  out.program = "train.py";
  out.needs = fmt::format("torch {} (pip install torch), nothing else", version);
  out.trial = "python train.py --fake --steps 1 \"$@\"";
  out.trial_needs = "one GPU; collectives are faked";
  out.checker = "fsdp2";
  out.notes.push_back(
      "torchrun --nproc-per-node N train.py --tiny runs the layout with a small model, on N CPUs too");
  out.notes.push_back("weights and tokens are random: batches() in train.py is yours, as are checkpoints");
  if (file.plan.tp == 1)
    out.notes.push_back(
        "the loss is made in 8 chunks of the sequence, so that logits take less memory than predicted");
  return out;
}

}  // namespace

ExportTarget fsdp2_target() {
  return {.name = "fsdp2",
          .title = "FSDP2 of PyTorch",
          .versions = {"2.15"},
          .package = "torch",
          .stack = "torchtitan",
          .features = fsdp2_features,
          .rules = fsdp2_rules,
          .write = write_fsdp2};
}

}  // namespace sextant
