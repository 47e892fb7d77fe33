#include <algorithm>
#include <cmath>
#include <map>

#include "core/base/median.hpp"
#include "planner/validation/validate.hpp"

namespace sextant {

namespace {

double quantile(std::vector<double> v, double q) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  const double at = q * static_cast<double>(v.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, v.size() - 1);
  return v[low] + (at - static_cast<double>(low)) * (v[high] - v[low]);
}

// Seconds per sequence: groups may mix batches.
struct LayoutTime {
  double predicted = 0, measured = 0;
  bool offered = true;  // predicted to fit: the planner names no other
};

// How much slower than the best of the group is the best measured of the k layouts that the planner would offer first?
// Percent. A group of which none is predicted to fit is ranked as a whole.
double regret(std::vector<LayoutTime> group, std::size_t k) {
  const auto offered = [](const LayoutTime& l) { return l.offered; };
  const bool any = std::any_of(group.begin(), group.end(), offered);
  const auto last = any ? std::stable_partition(group.begin(), group.end(), offered) : group.end();
  const auto candidates = static_cast<std::size_t>(last - group.begin());
  std::stable_sort(group.begin(), last,
                   [](const LayoutTime& a, const LayoutTime& b) { return a.predicted < b.predicted; });
  const auto faster = [](const LayoutTime& a, const LayoutTime& b) { return a.measured < b.measured; };
  const double best = std::min_element(group.begin(), group.end(), faster)->measured;
  const auto end = group.begin() + static_cast<std::ptrdiff_t>(std::min(k, candidates));
  return 100 * (std::min_element(group.begin(), end, faster)->measured / best - 1);
}

void score_groups(const std::map<std::string, std::vector<LayoutTime>>& groups, SourceScore& s) {
  constexpr std::size_t kSmallestGroup = 4;
  std::vector<double> tau, r1, r2, r3;
  for (const auto& [id, group] : groups) {
    if (group.size() < kSmallestGroup) continue;
    std::vector<double> predicted, measured;
    for (const LayoutTime& l : group) {
      predicted.push_back(l.predicted);
      measured.push_back(l.measured);
    }
    tau.push_back(kendall_tau(predicted, measured));
    r1.push_back(regret(group, 1));
    r2.push_back(regret(group, 2));
    r3.push_back(regret(group, 3));
    if (s.worst_group.empty() || r1.back() > s.worst_regret) {
      s.worst_group = id;
      s.worst_regret = r1.back();
    }
  }
  s.groups = static_cast<int>(tau.size());
  s.kendall_tau = mean(tau);
  s.regret_1 = mean(r1);
  s.regret_2 = mean(r2);
  s.regret_3 = mean(r3);
}

struct Samples {
  std::vector<double> error, memory_error;
  std::map<std::string, std::vector<LayoutTime>> groups;
};

void add(const RunRow& row, const RunPrediction& p, SourceScore& s, Samples& samples) {
  if (p.fits && (row.out_of_memory || row.step_time || row.peak_memory_GiB)) {
    s.oom_true += !*p.fits && row.out_of_memory;
    const bool assumed = std::ranges::find(row.assumed, "recompute") != row.assumed.end();
    (assumed ? s.oom_unknown : s.oom_false) += !*p.fits && !row.out_of_memory;
    s.oom_missed += *p.fits && row.out_of_memory;
  }
  if (row.peak_memory_GiB && p.memory_GiB) {
    const double measured = *row.peak_memory_GiB;
    samples.memory_error.push_back(100 * (*p.memory_GiB / measured - 1));
    s.memory_covered += p.memory_lower_GiB && p.memory_upper_GiB && *p.memory_lower_GiB <= measured &&
                        measured <= *p.memory_upper_GiB;
  }
  if (!row.step_time) return;
  ++s.rows;
  if (!p.step_s) {
    ++s.unpredicted;
    return;
  }
  const double measured = row.step_time->v;
  samples.error.push_back(100 * (*p.step_s / measured - 1));
  s.covered += p.step_lower_s && p.step_upper_s && *p.step_lower_s <= measured && measured <= *p.step_upper_s;
  if (!row.group_id.empty())
    samples.groups[row.group_id].push_back(
        {*p.step_s / row.training.global_batch, measured / row.training.global_batch, p.fits.value_or(true)});
}

}  // namespace

double SourceScore::oom_precision() const {
  return oom_true + oom_false == 0 ? 1.0 : static_cast<double>(oom_true) / (oom_true + oom_false);
}
double SourceScore::oom_recall() const {
  return oom_true + oom_missed == 0 ? 1.0 : static_cast<double>(oom_true) / (oom_true + oom_missed);
}

double kendall_tau(std::span<const double> a, std::span<const double> b) {
  const std::size_t n = std::min(a.size(), b.size());
  if (n < 2) return 1;
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = i + 1; j < n; ++j) {
      const double product = (a[i] - a[j]) * (b[i] - b[j]);
      sum += product > 0 ? 1 : product < 0 ? -1 : 0;
    }
  return sum / (static_cast<double>(n) * static_cast<double>(n - 1) / 2);
}

std::vector<SourceScore> score_runs(std::span<const RunRow> rows, std::span<const RunPrediction> predictions,
                                    const ScoreOptions& options) {
  std::map<std::string, SourceScore> scores;
  std::map<std::string, Samples> samples;
  for (std::size_t i = 0; i < rows.size() && i < predictions.size(); ++i) {
    if (rows[i].quality == 'c' && !options.with_quality_c) continue;
    auto& s = scores[rows[i].source];
    s.source = rows[i].source;
    add(rows[i], predictions[i], s, samples[rows[i].source]);
  }
  std::vector<SourceScore> out;
  for (auto& [source, s] : scores) {
    const Samples& x = samples[source];
    std::vector<double> absolute;
    for (const double e : x.error) absolute.push_back(std::abs(e));
    s.mape = mean(absolute);
    s.median = quantile(absolute, 0.5);
    s.p90 = quantile(absolute, 0.9);
    s.bias = mean(x.error);
    std::vector<double> memory;
    for (const double e : x.memory_error) memory.push_back(std::abs(e));
    s.memory_rows = static_cast<int>(memory.size());
    s.memory_mape = mean(memory);
    score_groups(x.groups, s);
    out.push_back(s);
  }
  return out;
}

}  // namespace sextant
