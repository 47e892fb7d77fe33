#include "planner/adaptation/drift.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/base/error.hpp"
#include "core/base/median.hpp"

namespace sextant {
namespace {

constexpr double kSafety = 10;         // approximation, heavy tails and a spread that is estimated
constexpr double kLeastSpread = 0.01;  // clocks and schedulers vary by as much
constexpr int kBiasSteps =
    200;  // from which a bias is learnt; more, and a slow drift would be learnt as well
constexpr double kOvershoot = 1.166;  // of a sum of normal steps beyond its threshold

// Mean steps to a false alarm of one sum.
double run_length(double k, double h) {
  const double b = h + kOvershoot;
  return (std::exp(std::min(2 * k * b, 700.0)) - 2 * k * b - 1) / (2 * k * k);
}

}  // namespace

DriftWatch::DriftWatch(ExpectedStep expected, const DriftOptions& options)
    : expected_(std::move(expected)), options_(options) {
  SEXTANT_CHECK(expected_.compute.size() == expected_.stage.size() && !expected_.stage.empty(),
                "every rank has a stage");
  ranks_.series.resize(expected_.compute.size());
  nodes_.series.resize(expected_.network.size());
  all_.series.resize(1);
}

double DriftWatch::Kind::spread() const {
  if (count < 2) return kLeastSpread;
  const auto n = static_cast<double>(count);
  // Of few steps the spread may be twice what was seen.
  return std::max(kLeastSpread,
                  (1 + 2 / std::sqrt(n)) * std::sqrt(std::max(0.0, (squares - sum * sum / n) / (n - 1))));
}

// A bias that was learnt from n steps may be off by a spread over the root of n, or a little more.
double DriftWatch::slack(const Kind& kind) const {
  const double unsure = 1.25 / std::sqrt(static_cast<double>(std::min(seen_, kBiasSteps)));
  return std::min(kClip - 1, unsure + std::max(0.5, std::log1p(options_.least_effect) / 2 / kind.spread()));
}

double DriftWatch::threshold(const Kind& kind) const {
  const double k = slack(kind);
  const auto sums = 2.0 * static_cast<double>(ranks_.series.size() + nodes_.series.size() + 1);
  const double needed = kSafety * sums * options_.steps_per_false_alarm;
  double low = 0, high = 200;
  for (int i = 0; i < 60; ++i) (run_length(k, (low + high) / 2) < needed ? low : high) = (low + high) / 2;
  return std::max(high, (kSteps - 0.5) * (kClip - k));
}

std::optional<Drift> DriftWatch::observe(const StepObservation& step) {
  SEXTANT_CHECK(step.compute.size() == ranks_.series.size() && step.network.size() == nodes_.series.size(),
                "the ranks and nodes that are watched");
  std::vector<double> ranks, nodes;
  for (std::size_t r = 0; r < step.compute.size(); ++r)
    ranks.push_back(std::log(std::max(step.compute[r], 1e-9) / expected_.compute[r]));
  const double crowd = lower_median(ranks);
  for (double& z : ranks) z -= crowd;
  for (std::size_t n = 0; n < step.network.size(); ++n)
    nodes.push_back(step.network[n] > 0 ? std::log(std::max(step.network[n], 1e-9) / expected_.network[n])
                                        : 0);
  const std::vector<double> all = {crowd};
  if (!warm()) {
    learn(ranks_, ranks);
    learn(nodes_, nodes);
    learn(all_, all);
    if (++seen_ == options_.warm_up) end_warm_up();
    return std::nullopt;
  }
  ++seen_;
  const bool alarms[] = {test(ranks_, ranks, step.step), test(nodes_, nodes, step.step),
                         test(all_, all, step.step)};
  if (std::ranges::none_of(alarms, [](bool alarm) { return alarm; })) return std::nullopt;
  Drift drift;
  drift.onset = drift.seen = step.step;
  drift.ranks = drifted(ranks_, drift.onset);
  drift.nodes = drifted(nodes_, drift.onset);
  for (const Drift::Part& part : drifted(all_, drift.onset)) drift.everything = part.times;
  if (drift.ranks.empty() && drift.nodes.empty() && drift.everything == 1) return std::nullopt;
  return drift;
}

void DriftWatch::learn(Kind& kind, std::span<const double> z) {
  for (std::size_t i = 0; i < z.size(); ++i) kind.series[i].first.push_back(z[i]);
}

void DriftWatch::end_warm_up() {
  // The bias of a stage is that of its faster ranks: a rank that is slow from the beginning is no bias.
  std::map<int, std::vector<double>> of_stage;
  for (std::size_t r = 0; r < ranks_.series.size(); ++r)
    of_stage[expected_.stage[r]].push_back(lower_median(ranks_.series[r].first));
  for (std::size_t r = 0; r < ranks_.series.size(); ++r)
    ranks_.series[r].bias = lower_median(of_stage[expected_.stage[r]]);
  std::vector<double> of_nodes;
  for (const Series& s : nodes_.series) of_nodes.push_back(lower_median(s.first));
  for (Series& s : nodes_.series) s.bias = lower_median(of_nodes);
  all_.series[0].bias = lower_median(all_.series[0].first);
  for (Kind* kind : {&ranks_, &nodes_, &all_})
    for (Series& s : kind->series) {
      const double own = mean(s.first);  // what a series is off has no part in its noise
      for (const double z : s.first) {
        kind->sum += z - own;
        kind->squares += (z - own) * (z - own);
      }
      kind->count += static_cast<std::int64_t>(s.first.size()) - 1;
      s.first.clear();
    }
}

bool DriftWatch::test(Kind& kind, std::span<const double> z, std::int64_t step) {
  if (kind.series.empty()) return false;
  const double spread = kind.spread(), k = slack(kind), h = threshold(kind);
  bool alarm = false;
  for (std::size_t i = 0; i < z.size(); ++i) {
    Series& s = kind.series[i];
    const double off = z[i] - s.bias;
    const double x = std::clamp(off / spread, -kClip, kClip);
    const auto add = [&](double& sum, double signed_x, std::vector<double>& since, std::int64_t& from) {
      sum = std::max(0.0, sum + signed_x - k);
      if (sum == 0) return since.clear();
      if (since.empty()) from = step;
      since.push_back(off);
    };
    add(s.up, x, s.since_up, s.up_from);
    add(s.down, -x, s.since_down, s.down_from);
    alarm = alarm || s.up > h || s.down > h;
    if (seen_ < kBiasSteps && std::abs(x) < kClip / 2) s.bias += x * spread / seen_;
    kind.sum += x * spread;
    kind.squares += x * spread * x * spread;
    ++kind.count;
  }
  return alarm;
}

// Those beyond half of the threshold; they start anew from where they are.
std::vector<Drift::Part> DriftWatch::drifted(Kind& kind, std::int64_t& onset) {
  std::vector<Drift::Part> found;
  if (kind.series.empty()) return found;
  const double h = threshold(kind);
  for (std::size_t i = 0; i < kind.series.size(); ++i) {
    Series& s = kind.series[i];
    const bool up = s.up > h / 2, down = s.down > h / 2;
    if (!up && !down) continue;
    const double shift = lower_median(up ? s.since_up : s.since_down);
    if (std::abs(shift) >= std::log1p(options_.least_effect)) {
      found.push_back({static_cast<int>(i), std::exp(shift)});
      onset = std::min(onset, up ? s.up_from : s.down_from);
    }
    s.bias += shift;
    s.up = s.down = 0;
    s.since_up.clear();
    s.since_down.clear();
  }
  return found;
}

}  // namespace sextant
