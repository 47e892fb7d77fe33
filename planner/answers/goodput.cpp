#include "planner/answers/goodput.hpp"

#include <algorithm>
#include <cmath>

namespace sextant {
namespace {

// x - 1 + exp(-x), without cancellation for small x.
double excess(double x) { return x < 1e-3 ? x * x / 2 * (1 - x / 3 * (1 - x / 4)) : x + std::expm1(-x); }

// Solves excess(x) = a, a >= 0: convex and increasing from 0, so Newton's steps come down to it from the right.
double solve(double a) {
  if (a <= 0) return 0;
  double x = std::sqrt(2 * a) + a;
  for (int i = 0; i < 100; ++i) {
    const double next = x - (excess(x) - a) / -std::expm1(-x);
    if (std::abs(next - x) <= 1e-15 * x) return next;
    x = next;
  }
  return x;
}

}  // namespace

CheckpointSize checkpoint_size(const ModelSpec& model, const TrainingSpec& t, const StackSpec& stack) {
  CheckpointSize size;
  size.elements = parameter_counts(model).total;
  const Dtype master = t.parameter == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32;
  const bool same = size_bytes(t.parameter) == size_bytes(master);
  size.master = Bytes(size.elements * size_bytes(master));
  size.moments = Bytes(2 * size.elements * size_bytes(t.optimizer_state));
  if (stack.rules.checkpoint_parameters && !same)
    size.parameters = Bytes(size.elements * size_bytes(t.parameter));
  return size;
}

namespace {
int nodes_of(const ClusterSpec& c, int ranks) { return (ranks + c.node.gpus - 1) / c.node.gpus; }
}  // namespace

std::optional<SaveTimes> save_times(const Job& job, int ranks) {
  const ClusterSpec& c = job.cluster;
  if (c.storage.write.v <= 0) return std::nullopt;
  const int nodes = nodes_of(c, ranks);
  const auto rate = [&](BytesPerSecond all) {
    return c.storage.node.v > 0 ? std::min(all.v, c.storage.node.v * nodes) : all.v;
  };
  const auto bytes = static_cast<double>(checkpoint_size(job.model, job.training, job.stack).total().v);
  SaveTimes s;
  s.copy = Seconds(bytes / ranks / c.device.host_link.v);
  s.write = Seconds(bytes / rate(c.storage.write));
  s.read = Seconds(bytes / rate(c.storage.read.v > 0 ? c.storage.read : c.storage.write));
  return s;
}

std::optional<FailureModel> failure_model(const Job& job, int ranks, SaveKind kind) {
  const ClusterSpec& c = job.cluster;
  const auto save = save_times(job, ranks);
  if (!save || c.failures.node_mtbf_hours <= 0) return std::nullopt;
  FailureModel m;
  m.mtbf = Seconds(c.failures.node_mtbf_hours * 3600 / nodes_of(c, ranks));
  m.pause = save->pause(kind);
  m.lag = kind == SaveKind::blocking ? Seconds() : save->write;
  m.restart = c.failures.restart + save->read;
  return m;
}

double goodput_share(const FailureModel& m, Seconds interval) {
  const double x = (interval.v + m.pause.v) / m.mtbf.v;
  const double outside = std::exp(-(m.lag.v + m.restart.v) / m.mtbf.v);
  if (x <= 0) return outside;  // the limit: checkpoints that cost nothing, always
  return interval.v / m.mtbf.v / std::expm1(x) * outside;
}

Seconds best_interval(const FailureModel& m) {
  const double free = solve(m.pause.v / m.mtbf.v) * m.mtbf.v - m.pause.v;
  return Seconds(std::max({0.0, free, m.lag.v - m.pause.v}));
}

Seconds young_interval(const FailureModel& m) { return Seconds(std::sqrt(2 * m.pause.v * m.mtbf.v)); }

Seconds daly_interval(const FailureModel& m) {
  const double d = m.pause.v, M = m.mtbf.v;
  if (d >= 2 * M) return m.mtbf;
  return Seconds(std::sqrt(2 * d * M) * (1 + std::sqrt(d / (2 * M)) / 3 + d / (2 * M) / 9) - d);
}

GoodputSplit goodput_split(const FailureModel& m, Seconds interval) {
  GoodputSplit s;
  s.lasting = goodput_share(m, interval);
  s.saving = interval.v > 0 ? s.lasting * m.pause.v / interval.v : 0;  // of the checkpoints that were reached
  s.restarting = -std::expm1(-m.restart.v / m.mtbf.v);
  s.redone = std::max(0.0, 1 - s.lasting - s.saving - s.restarting);
  return s;
}

std::optional<PlanGoodput> goodput(const Job& job, const ParallelPlan& plan, Seconds step, SaveKind kind) {
  const auto m = failure_model(job, plan.world(), kind);
  if (!m) return std::nullopt;
  const auto whole_steps = [&](double n) { return Seconds(step.v * std::max(1.0, n)); };
  // Goodput has one maximum: of the two whole numbers of steps beside it, the better; not below what a save takes.
  const double wanted = best_interval(*m).v / step.v;
  const double least = std::ceil((m->lag.v - m->pause.v) / step.v * (1 - 1e-12));
  const double below = std::max(std::floor(wanted), least), above = std::max(std::ceil(wanted), least);
  const Seconds low = whole_steps(below), high = whole_steps(above);
  const Seconds interval = goodput_share(*m, low) >= goodput_share(*m, high) ? low : high;
  PlanGoodput g;
  g.checkpoint_GB = static_cast<double>(checkpoint_size(job.model, job.training, job.stack).total().v) / 1e9;
  g.save_s = m->pause.v + m->lag.v;
  g.pause_s = m->pause.v;
  g.job_mtbf_s = m->mtbf.v;
  g.interval_s = interval.v;
  g.interval_steps = static_cast<int>(std::lround(std::min(interval / step, 2e9)));
  g.goodput = goodput_share(*m, interval);
  g.tokens_per_s = g.goodput * job.training.global_batch * job.training.seq_len / step.v;
  return g;
}

}  // namespace sextant
