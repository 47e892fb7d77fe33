#include "core/plan/parallel_plan.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"

namespace sextant {
namespace {

constexpr Range kDegree = between(1, kMaxDegree);
constexpr Range kCount = between(0, kMaxDegree);

constexpr auto kPlanKeys = [](auto& io, auto& p) {
  io.optional("tp", p.tp, kDegree);
  io.optional("cp", p.cp, kDegree);
  io.optional("pp", p.pp, kDegree);
  io.optional("dp", p.dp, kDegree);
  io.optional("vp", p.vp, kDegree);
  io.optional("sequence_parallel", p.sequence_parallel);
  io.optional("schedule", p.schedule, kScheduleNames);
  io.optional("zero_stage", p.zero_stage, between(0, 3));
  io.optional("shard_degree", p.shard_degree, kCount);
  io.optional("micro_batch", p.micro_batch, kDegree);
  io.optional("replica_microbatches", p.replica_microbatches, kDegree);
  io.optional("shard_weights", p.shard_weights, between(1, kMaxShardWeight));
  io.optional("recompute", p.recompute.kind, kRecomputeNames);
  io.optional("recompute_layers", p.recompute.layers, between(-1, kMaxDegree));
  io.optional("optimizer_offload", p.optimizer_offload, between(0, 1));
  io.optional("parameter_offload", p.parameter_offload);
  io.optional("activation_offload", p.activation_offload, kCount);
  io.optional("offload_horizon", p.offload_horizon, kCount);
  io.optional("bucket_elements", p.bucket_elements, at_least(0));
  io.optional("last_bucket_split", p.last_bucket_split, kDegree);
  io.optional("overlap_grad_reduce", p.overlap_grad_reduce);
  io.optional("overlap_param_gather", p.overlap_param_gather);
  io.optional("overlap_tp", p.overlap_tp);
  io.optional("axis_order", p.axis_order, kAxisNames);
  // Chunks follow one another, so their lengths say all.
  std::vector<int> layers = layer_counts(p.chunks);
  io.optional("chunk_layers", layers, between(0, kMaxLayers));
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(p)>>) p.chunks = chunks_of(layers);
};

}  // namespace

ParallelPlan without_offload(ParallelPlan p) {
  const ParallelPlan fresh;
  p.activation_offload = fresh.activation_offload;
  p.offload_horizon = fresh.offload_horizon;
  p.optimizer_offload = fresh.optimizer_offload;
  p.parameter_offload = fresh.parameter_offload;
  return p;
}

std::vector<int> layer_counts(std::span<const LayerRange> chunks) {
  std::vector<int> counts;
  counts.reserve(chunks.size());
  for (const LayerRange& chunk : chunks) counts.push_back(chunk.count);
  return counts;
}

std::vector<LayerRange> chunks_of(const std::vector<int>& layers) {
  std::vector<LayerRange> chunks;
  chunks.reserve(layers.size());
  int first = 0;
  for (const int count : layers) {
    chunks.push_back({first, count});
    first = static_cast<int>(std::min<std::int64_t>(std::int64_t{first} + count, kMaxDegree));
  }
  return chunks;
}

bool degrees_fit(const ParallelPlan& p) {
  // Each degree is at most 2^20 and the product so far at most 2^24: no step overflows.
  std::int64_t world = 1;
  for (const int degree : {p.tp, p.cp, p.pp, p.dp}) {
    if (degree < 1 || degree > kMaxDegree) return false;
    world *= degree;
    if (world > kMaxWorld) return false;
  }
  return p.vp >= 1 && p.vp <= kMaxDegree && std::int64_t{p.pp} * p.vp <= kMaxChunks;
}

std::vector<LayerRange> layer_ranges(const ParallelPlan& plan, int n_layers) {
  if (!plan.chunks.empty()) return plan.chunks;
  const int n_chunks = plan.pp * plan.vp;
  std::vector<LayerRange> ranges;
  ranges.reserve(static_cast<std::size_t>(n_chunks));
  int first = 0;
  for (int c = 0; c < n_chunks; ++c) {
    const int count = n_layers / n_chunks + (c < n_layers % n_chunks ? 1 : 0);
    ranges.push_back({first, count});
    first += count;
  }
  return ranges;
}

bool equal_chunks(const ParallelPlan& plan, int n_layers) {
  const int n_chunks = plan.pp * plan.vp;
  return n_layers % n_chunks == 0 && std::ranges::all_of(plan.chunks, [&](const LayerRange& c) {
           return c.count == n_layers / n_chunks;
         });
}

int microbatches(const ParallelPlan& plan, const TrainingSpec& training) {
  if (!plan.replica_microbatches.empty()) return std::ranges::max(plan.replica_microbatches);
  const std::int64_t sequences = static_cast<std::int64_t>(plan.micro_batch) * plan.dp;
  if (sequences <= 0 || training.global_batch % sequences != 0) return 0;
  return static_cast<int>(training.global_batch / sequences);
}

int microbatches_of(const ParallelPlan& plan, const TrainingSpec& training, int dp) {
  return plan.replica_microbatches.empty() ? microbatches(plan, training)
                                           : plan.replica_microbatches[static_cast<std::size_t>(dp)];
}

double share_of_most(const ParallelPlan& plan, const TrainingSpec& training, int dp) {
  if (plan.replica_microbatches.empty()) return 1;
  const double filling = static_cast<double>(plan.pp - 1) / plan.vp;
  return (microbatches_of(plan, training, dp) + filling) / (microbatches(plan, training) + filling);
}

int shard_of(const ParallelPlan& plan, const RankCoord& at) {
  return (at.dp * plan.cp + at.cp) % plan.shards();
}

std::vector<int> shard_weights_of(const ParallelPlan& plan) {
  return plan.shard_weights.empty() ? std::vector<int>(static_cast<std::size_t>(plan.shards()), 1)
                                    : plan.shard_weights;
}

std::vector<double> shares_of_largest(const ParallelPlan& plan) {
  const std::vector<int> weights = shard_weights_of(plan);
  const double largest = std::ranges::max(weights);
  std::vector<double> shares;
  shares.reserve(weights.size());
  for (const int weight : weights) shares.push_back(weight / largest);
  return shares;
}

void to_json(nlohmann::json& j, const ParallelPlan& p) { write_object(j, p, kPlanKeys); }

void from_json(const nlohmann::json& j, ParallelPlan& out) {
  if (j.is_string()) return void(out = parse_plan_key(j.get<std::string>()));
  JsonReader reader(j);
  ParallelPlan p;
  kPlanKeys(reader, p);
  std::vector<Problem> more;
  if (!degrees_fit(p))
    more.push_back(
        {"", "tp * cp * pp * dp", "", "",
         fmt::format("more than {} ranks, or pp * vp more than {} chunks", kMaxWorld, kMaxChunks)});
  reader.finish(std::move(more));
  out = std::move(p);
}

}  // namespace sextant
