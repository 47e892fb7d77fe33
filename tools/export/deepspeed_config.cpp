#include "tools/export/deepspeed_config.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/decimal.hpp"

namespace sextant {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::int64_t kDefaultBucket = 500'000'000;  // reduce_bucket_size, elements
constexpr std::int64_t kPrefetch = 50'000'000, kPersistence = 100'000, kLive = 1'000'000'000;

const char* format_name(Dtype d) { return d == Dtype::bf16 ? "bf16" : d == Dtype::fp16 ? "fp16" : "fp32"; }

// engine.py 1994: bf16 parameters whose gradients are summed in fp32 get a wrapper of their own at stage 1; without ZeRO there is no
// such sum (2021).
bool bf16_wrapper(const PlanFile& file) {
  const ParallelPlan& p = file.plan;
  return file.training.parameter == Dtype::bf16 && file.training.gradient == Dtype::fp32 &&
         p.zero_stage == 1 && p.optimizer_offload == 0;
}

// Gradients are reduced by the engine behind the last backward pass, in buckets of 5e8.
bool reduced_by_engine(const PlanFile& file) { return file.plan.zero_stage == 0 || bf16_wrapper(file); }

void check_reduction(const PlanFile& file, std::vector<Inexpressible>& found) {
  const ParallelPlan& p = file.plan;
  if (p.replicas() == 1) return;
  const char* why = p.pp > 1             ? "pipeline stages reduce gradients after the last backward pass"
                    : p.zero_stage == 0  ? "stage 0 reduces gradients after the last backward pass"
                    : bf16_wrapper(file) ? "bf16 parameters with fp32 gradients at stage 1 are reduced "
                                           "after the last backward pass"
                                         : nullptr;
  if (p.overlap_grad_reduce && why)
    found.push_back(
        {"overlap_grad_reduce", "true", why, {set_field("overlap_grad_reduce false", [](ParallelPlan& q) {
           q.overlap_grad_reduce = false;
         })}});
  if (p.bucket_elements > 0 && p.bucket_elements != kDefaultBucket && reduced_by_engine(file))
    found.push_back({"bucket_elements",
                     fmt::format("{}", p.bucket_elements),
                     "gradients that the engine reduces go in buckets of 500000000",
                     {set_field("bucket_elements 0", [](ParallelPlan& q) { q.bucket_elements = 0; })}});
  if (p.zero_stage == 3 && p.overlap_param_gather && !p.overlap_grad_reduce)
    found.push_back(
        {"overlap_param_gather",
         "true",
         "overlap_comm covers gathers and reductions alike",
         {set_field("overlap_grad_reduce true", [](ParallelPlan& q) { q.overlap_grad_reduce = true; }),
          set_field("overlap_param_gather false", [](ParallelPlan& q) { q.overlap_param_gather = false; })}});
}

void check_offload(const PlanFile& file, std::vector<Inexpressible>& found) {
  const ParallelPlan& p = file.plan;
  const PlanChange none = set_field("optimizer_offload 0", [](ParallelPlan& q) {
    q.optimizer_offload = 0;
    q.parameter_offload = false;
  });
  const PlanChange sharded = set_field("zero_stage 1", [](ParallelPlan& q) { q.zero_stage = 1; });
  if (p.optimizer_offload > 0 && p.zero_stage == 0)
    found.push_back({"optimizer_offload",
                     decimal(p.optimizer_offload),
                     "offload_optimizer is a key of ZeRO stages 1 to 3",
                     {sharded, none}});
  if (p.optimizer_offload > 0 && p.optimizer_offload < 1 && p.zero_stage < 3)
    found.push_back(
        {"optimizer_offload",
         decimal(p.optimizer_offload),
         "a ratio below 1 goes with stage 3 alone",
         {set_field("optimizer_offload 1", [](ParallelPlan& q) { q.optimizer_offload = 1; }), none}});
  if (p.parameter_offload && p.zero_stage < 3)
    found.push_back(
        {"parameter_offload",
         "true",
         "offload_param goes with stage 3 alone",
         {set_field("zero_stage 3", [](ParallelPlan& q) { q.zero_stage = 3; }),
          set_field("parameter_offload false", [](ParallelPlan& q) { q.parameter_offload = false; })}});
  int most = 0;
  for (const LayerRange& r : layer_ranges(p, file.model.n_layers)) most = std::max(most, r.count);
  const PlanChange all_layers = set_field(fmt::format("activation_offload {}", most),
                                          [most](ParallelPlan& q) { q.activation_offload = most; });
  if (p.activation_offload > 0 && p.activation_offload < most)
    found.push_back(
        {"activation_offload",
         fmt::format("{}", p.activation_offload),
         "cpu_checkpointing keeps the inputs of all recomputed layers on the host",
         {all_layers, set_field("activation_offload 0", [](ParallelPlan& q) { q.activation_offload = 0; })}});
}

}  // namespace

TargetFeatures deepspeed_engine_features(const StackCapabilities& can) {
  TargetFeatures t;
  t.can = can;
  t.can.shard_degree = false;  // MiCS is gone since 0.19.8, and hpZ shards parameters alone
  t.can.sequence_parallel = t.can.copies_kv_heads = t.can.recompute_selective = t.can.overlap_tp = false;
  for (const Dtype low : {Dtype::bf16, Dtype::fp16})
    for (const Dtype sums : {low, Dtype::fp32})
      for (const Dtype wire : {low, Dtype::fp32}) t.formats.push_back({low, low, sums, wire, Dtype::fp32});
  t.formats.push_back({Dtype::fp32, Dtype::fp32, Dtype::fp32, Dtype::fp32, Dtype::fp32});
  return t;
}

std::vector<Inexpressible> deepspeed_engine_rules(const PlanFile& file) {
  std::vector<Inexpressible> found;
  const ParallelPlan& p = file.plan;
  const TrainingSpec& t = file.training;
  const auto sums = [](Dtype d) {
    return PlanChange{fmt::format("gradients {}", name(d)), [d](PlanFile& f) { f.training.gradient = d; }};
  };
  if (size_bytes(t.parameter) < size_bytes(t.gradient) && p.zero_stage == 0)
    found.push_back(
        {"training.gradient",
         std::string(name(t.gradient)),
         fmt::format("without ZeRO gradients of {0} parameters are summed in {0}", name(t.parameter)),
         {sums(t.parameter), set_field("zero_stage 1", [](ParallelPlan& q) { q.zero_stage = 1; })}});
  if (p.zero_stage > 0 && p.shards() == 1 && p.replicas() > 1)
    found.push_back({"shard_degree",
                     "1",
                     "state is sharded over all replicas or none",
                     {set_field("shard_degree 0", [](ParallelPlan& q) { q.shard_degree = 0; })}});
  check_reduction(file, found);
  check_offload(file, found);
  return found;
}

nlohmann::ordered_json deepspeed_config(const PlanFile& file) {
  const ParallelPlan& p = file.plan;
  const TrainingSpec& t = file.training;
  Json config;
  if (p.tp == 1) config["train_batch_size"] = t.global_batch;
  config["train_micro_batch_size_per_gpu"] = p.micro_batch;
  config["gradient_accumulation_steps"] = microbatches(p, t);
  if (t.parameter == Dtype::bf16) config["bf16"] = {{"enabled", true}};
  if (t.parameter == Dtype::fp16) config["fp16"] = {{"enabled", true}, {"loss_scale", 0}};
  config["data_types"] = {{"grad_accum_dtype", format_name(t.gradient)}};
  config["communication_data_type"] = format_name(t.reduction);
  Json zero = {{"stage", p.zero_stage}};
  const std::int64_t bucket = p.bucket_elements > 0 ? p.bucket_elements : kDefaultBucket;
  zero["overlap_comm"] = p.zero_stage > 0 && p.replicas() > 1 && p.overlap_grad_reduce;
  zero["contiguous_gradients"] = zero["reduce_scatter"] = true;
  zero["reduce_bucket_size"] = zero["allgather_bucket_size"] = bucket;
  if (p.zero_stage == 3) {
    zero["stage3_prefetch_bucket_size"] = p.overlap_param_gather ? kPrefetch : 0;
    zero["stage3_param_persistence_threshold"] = kPersistence;
    zero["stage3_max_live_parameters"] = zero["stage3_max_reuse_distance"] = zero["sub_group_size"] = kLive;
  }
  if (p.optimizer_offload > 0) {
    zero["offload_optimizer"] = {{"device", "cpu"}, {"pin_memory", true}};
    if (p.optimizer_offload < 1) zero["offload_optimizer"]["ratio"] = p.optimizer_offload;
  }
  if (p.parameter_offload) zero["offload_param"] = {{"device", "cpu"}, {"pin_memory", true}};
  config["zero_optimization"] = zero;
  if (p.tp > 1) config["tensor_parallel"] = {{"autotp_size", p.tp}};
  if (p.activation_offload > 0)
    config["activation_checkpointing"] = {{"partition_activations", false}, {"cpu_checkpointing", true}};
  // Adam of torch on the device, so that nothing is compiled there; DeepSpeed's own on the host.
  config["optimizer"] = {{"type", "AdamW"},
                         {"params",
                          {{"lr", 3e-4},
                           {"betas", {0.9, 0.95}},
                           {"eps", 1e-8},
                           {"weight_decay", 0.1},
                           {"torch_adam", p.optimizer_offload == 0}}}};
  config["gradient_clipping"] = 1.0;
  config["steps_per_print"] = 1000000000;
  return config;
}

}  // namespace sextant
