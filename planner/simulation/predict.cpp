#include "planner/simulation/predict.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "core/plan/plan_key.hpp"
#include "core/plan/plan_rules.hpp"
#include "planner/lowering/graph_size.hpp"
#include "planner/lowering/lower.hpp"
#include "planner/simulation/residual.hpp"
#include "planner/simulation/stage_memory.hpp"

namespace sextant {
namespace {

int nodes_used(const Job& job, const ParallelPlan& plan) {
  return (plan.world() + job.cluster.node.gpus - 1) / std::max(1, job.cluster.node.gpus);
}

// The step if every collective, transfer and copy took no time.
template <class Graph>
double without_communication(const Graph& graph, std::vector<OpCost> costs, const SimulateOptions& how,
                             SimulateScratch& scratch) {
  for (std::size_t w = 0; w < costs.size(); ++w)
    if (!std::holds_alternative<BlockWork>(graph.works[w]) &&
        !std::holds_alternative<StateWork>(graph.works[w]))
      costs[w].duration = Seconds(0);
  return simulated_step(graph, costs, how, scratch).v;
}

struct StepOfPlan {
  Seconds simulated;
  double exposed_share = 0;
  std::optional<CostShares> predicted_from;
};

// A profiled step is simulated operation by operation: those of one lane may rest on different sources.
StepOfPlan step_of(const Job& job, const ParallelPlan& plan) {
  const PlanLinks links = plan_links(job.topology, plan);
  const SimulateOptions how = simulate_options(job, plan);
  SimulateScratch scratch;
  StepOfPlan step;
  const auto simulate_all = [&](const auto& graph) {
    std::vector<OpCost> costs = price(graph, job.cost);
    step.simulated = simulated_step(graph, costs, how, scratch);
    step.exposed_share = 1 - without_communication(graph, costs, how, scratch) / step.simulated.v;
    return costs;
  };
  if (!job.profiled) {
    simulate_all(lower_folded(job.model, job.training, links, plan, job.stack));
    return step;
  }
  const ExecutionGraph graph = lower(job.model, job.training, links, plan, job.stack, {.operands = false});
  const std::vector<OpCost> costs = simulate_all(graph);
  step.predicted_from = cost_shares(breakdown(graph, simulate(graph, costs, how)), costs);
  return step;
}

// A field that needs another one is inconsistent; everything else is arithmetic.
RejectReason reason_of(const ParallelPlan& plan, std::string_view key) {
  const bool inconsistent = key == "sequence_parallel" || key == "overlap_tp" || key == "vp" ||
                            key == "schedule" || key == "recompute_layers" || key == "activation_offload" ||
                            (key == "shard_degree" && plan.zero_stage == 0);
  return inconsistent ? RejectReason::inconsistent : RejectReason::not_divisible;
}

}  // namespace

PlanMemory plan_memory(const Job& job, const ParallelPlan& plan) {
  const MemoryEstimate estimate = estimate_memory(job.model, job.training, plan, job.stack);
  const StageMemory& stage = estimate.stages[static_cast<std::size_t>(estimate.heaviest)];
  auto on_device = stage.at_peak;
  on_device[static_cast<std::size_t>(BufferKind::host)] = 0;
  const auto largest = std::max_element(on_device.begin(), on_device.end()) - on_device.begin();
  std::int64_t host = 0;
  for (const StageMemory& s : estimate.stages) host = std::max(host, s.host);
  const double of_node = job.stack.memory.host_factor * static_cast<double>(host) *
                         std::min(job.cluster.node.gpus, plan.world());
  return {estimate.needed(), Bytes(host), Bytes(std::llround(of_node)), estimate.heaviest,
          words(name(static_cast<BufferKind>(largest)))};
}

namespace {
// By stage, the largest factor of its ranks where each does `share(its place)` of what the graph says.
template <class Share>
std::vector<double> slowest_of_stages(const Job& job, const ParallelPlan& plan, const Share& share) {
  const RankGrid grid(plan);
  std::vector<double> factors(static_cast<std::size_t>(plan.pp), 1.0);
  for (int rank = 0; rank < plan.world(); ++rank) {
    const RankCoord at = grid.coord(rank);
    double& factor = factors[static_cast<std::size_t>(at.pp)];
    factor = std::max(factor, share(at) / job.topology.compute_factor(rank));
  }
  return factors;
}

bool has_slower_device(const Job& job) {
  return std::ranges::any_of(job.cluster.defects, [](const Defect& d) { return d.compute_factor < 1; });
}
}  // namespace

std::vector<double> stage_compute_factors(const Job& job, const ParallelPlan& plan) {
  if (!has_slower_device(job)) return {};
  return slowest_of_stages(job, plan,
                           [&](const RankCoord& at) { return share_of_most(plan, job.training, at.dp); });
}

std::vector<double> stage_update_factors(const Job& job, const ParallelPlan& plan) {
  if (!has_slower_device(job) || (plan.replica_microbatches.empty() && plan.shard_weights.empty())) return {};
  const std::vector<double> owned = shares_of_largest(plan);
  return slowest_of_stages(
      job, plan, [&](const RankCoord& at) { return owned[static_cast<std::size_t>(shard_of(plan, at))]; });
}

SimulateOptions simulate_options(const Job& job, const ParallelPlan& plan) {
  SimulateOptions options = with_interference(job.stack.kernels);
  options.stage_compute_factor = stage_compute_factors(job, plan);
  options.stage_update_factor = stage_update_factors(job, plan);
  if (job.residual)
    options.time_scale = std::exp(
        job.residual->log_factor(layout_point(job.model, job.training, plan, job.cluster.device.generation)) -
        job.residual_taken);
  return options;
}

Seconds measured_step(const Job& job, const ParallelPlan& plan, Seconds simulated) {
  const double stragglers =
      1.0 + job.stack.kernels.straggler_per_log2_node * std::log2(static_cast<double>(nodes_used(job, plan)));
  return simulated * stragglers + job.stack.kernels.step_overhead;
}

Seconds simulated_of(const Job& job, int gpus, Seconds step) {
  ParallelPlan plan;
  plan.dp = gpus;
  const Seconds fixed = measured_step(job, plan, Seconds(0));
  return Seconds((step - fixed) / (measured_step(job, plan, Seconds(1)) - fixed));
}

void set_step_interval(Prediction& p, double half_width) {
  const double model = std::log1p(half_width);
  const auto away = [&](double jitter) { return std::exp(std::hypot(model, std::max(0.0, jitter))); };
  p.step_lower = p.step * (1 / (p.jitter ? away(std::log(p.step / p.jitter->p05)) : 1 + half_width));
  p.step_upper = p.step * (p.jitter ? away(std::log(p.jitter->p95 / p.step)) : 1 + half_width);
}

Seconds ranked_step(const Prediction& p, RankBy by) {
  if (!p.jitter || by == RankBy::expected) return p.step;
  return by == RankBy::p90 ? p.jitter->p90 : p.jitter->undisturbed;
}

Breakdown step_breakdown(const Job& job, const ParallelPlan& plan) {
  const ExecutionGraph graph =
      lower(job.model, job.training, plan_links(job.topology, plan), plan, job.stack, {.operands = false});
  return breakdown(graph, simulate(graph, price(graph, job.cost), simulate_options(job, plan)));
}

std::map<std::string, double> step_parts(const TimeSplit& mean, const Prediction& p) {
  std::map<std::string, double> parts;
  const Seconds undisturbed = ranked_step(p, RankBy::undisturbed);
  double rest = undisturbed.v;
  for (int c = 0; c < kTimeCategories; ++c) {
    const double seconds = mean[static_cast<std::size_t>(c)];
    parts[std::string(name(static_cast<TimeCategory>(c)))] = seconds;
    rest -= seconds;
  }
  parts["jitter"] = (p.step - undisturbed).v;
  parts["stragglers_and_host"] = rest;
  return parts;
}

std::optional<RejectReason> unlawful_reason(const Job& job, const ParallelPlan& plan) {
  if (const std::string_view key = broken_rule(plan, job.model, job.training); !key.empty())
    return reason_of(plan, key);
  return refusal(job.stack, plan, job.model, job.training);
}

std::optional<Rejection> unlawful(const Job& job, const ParallelPlan& plan) {
  auto problems = validate_checked(plan, job.model, job.training);
  if (problems.empty()) {
    if (const int m = microbatches(plan, job.training); has_too_many_passes(job.model, m))
      return Rejection{RejectReason::not_divisible, too_many_passes(job.model, m), 0, 0};
    return refuses(job.stack, plan, job.model, job.training);
  }
  hint_unequal_replicas(problems, job.stack, plan, job.training.global_batch);
  std::vector<std::string> texts;
  for (const Problem& p : problems)
    texts.push_back(fmt::format("{} is {}, expected {}{}", p.key, p.value, p.expected,
                                p.key == kBatchOfReplicas && !p.hint.empty() ? " (" + p.hint + ")" : ""));
  if (degrees_fit(plan))
    if (const auto refusal = refuses(job.stack, plan, job.model, job.training))
      texts.push_back(refusal->text);
  return Rejection{reason_of(plan, problems.front().key), fmt::format("{}", fmt::join(texts, "; ")), 0, 0};
}

std::optional<Rejection> too_large(const Job& job, const PlanMemory& memory) {
  const Bytes have = job.cluster.device.memory;
  if (const Bytes host = job.cluster.node.host_memory; memory.host_of_node > host)
    return Rejection{
        RejectReason::out_of_memory,
        fmt::format("what is offloaded needs {:.4g} GiB of a node's host memory, which has {:.4g} GiB",
                    gib(memory.host_of_node), gib(host)),
        static_cast<double>(memory.host_of_node.v), static_cast<double>(host.v)};
  if (memory.peak <= have) return std::nullopt;
  return Rejection{RejectReason::out_of_memory,
                   fmt::format("needs {:.1f} GiB, has {:.1f} GiB (most of it {} of stage {})",
                               gib(memory.peak), gib(have), memory.largest, memory.stage),
                   static_cast<double>(memory.peak.v), static_cast<double>(have.v)};
}

Prediction predict(const Job& job, const ParallelPlan& plan, double interval) {
  const StepOfPlan step = step_of(job, plan);
  Prediction p;
  p.step = measured_step(job, plan, step.simulated);
  p.exposed_share = step.exposed_share;
  p.predicted_from = step.predicted_from;
  p.memory = plan_memory(job, plan);
  p.memory_available = job.cluster.device.memory;
  p.fits = !too_large(job, p.memory);

  const double world = plan.world();
  const double tokens = static_cast<double>(job.training.global_batch) * job.training.seq_len;
  p.tokens_per_s = tokens / p.step.v;
  p.tokens_per_s_gpu = p.tokens_per_s / world;
  const double flops = model_flops_per_token(job.model, job.training.seq_len) * p.tokens_per_s_gpu;
  const double causal =
      model_flops_per_token(job.model, job.training.seq_len, AttentionFlops::causal) * p.tokens_per_s_gpu;
  p.model_tflops_gpu = flops * 1e-12;
  double peak = 0;  // dense 16-bit; an fp32-only device is held against what it has
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32})
    if (const auto found = job.cluster.device.peak.find(dtype);
        peak == 0 && found != job.cluster.device.peak.end())
      peak = found->second.v;
  if (peak > 0) {
    p.mfu = flops / peak;
    p.mfu_causal = causal / peak;
  }
  if (job.cluster.device.price_usd_per_hour > 0)
    p.usd_per_million_tokens = job.cluster.device.price_usd_per_hour * world / 3600.0 / p.tokens_per_s * 1e6;

  const double filled = static_cast<double>(p.memory.peak.v) / static_cast<double>(p.memory_available.v);
  p.chance_of_overflow = chance_of_overflow(p.memory.peak, p.memory_available, overflow_scale(job.stack));
  SEXTANT_CHECK(job.uncertainty != nullptr, "a prediction needs the rules of its intervals");
  p.uncertainty = uncertainty_of(*job.uncertainty, plan, job.cluster, job.stack, filled, p.exposed_share);
  const double wider = interval * job.interval;
  const double m = job.uncertainty->memory_half_width(p.uncertainty, job.stack) * wider;
  p.step_half_width = job.uncertainty->step_half_width(p.uncertainty) * wider;
  set_step_interval(p, p.step_half_width);
  const auto bytes = static_cast<double>(p.memory.peak.v);
  p.memory_lower = Bytes(std::llround(bytes / (1 + m)));
  p.memory_upper = Bytes(std::llround(bytes * (1 + m)));
  return p;
}

}  // namespace sextant
