#include "planner/validation/plausible.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace sextant {

namespace {

// Every input of a prediction, as text.
std::string all_of(const ResolvedRun& r) {
  ModelSpec model = r.model;
  model.name.clear();
  const nlohmann::json inputs = {model, r.training, r.cluster, r.stack};
  return inputs.dump() + plan_key(r.plan);
}

}  // namespace

// Source: no device computes faster than its dense peak; causal attention needs half of its scores. Peaks are read in GB
// as well (7 % more), and drivers round: a tenth above the memory is let pass.
std::vector<Problem> impossible(const ResolvedRun& run, const std::string& at, const std::string& id,
                                std::optional<Seconds> step, std::optional<double> peak_memory_GiB) {
  constexpr double kFullest = 1.1;
  std::vector<Problem> problems;
  const DeviceSpec& device = run.cluster.device;
  if (const auto peak = device.peak.find(run.training.compute); step && peak != device.peak.end()) {
    const double flops = model_flops_per_token(run.model, run.training.seq_len, AttentionFlops::causal) *
                         run.training.global_batch * run.training.seq_len;
    const double least = flops / (peak->second.v * run.plan.world());
    if (step->v < least)
      problems.push_back({at, "step_time_s", fmt::format("a step of {:.4g} s of {}", step->v, id),
                          fmt::format("at least {:.4g} s, which {} x {} need at their peak", least,
                                      run.plan.world(), device.name),
                          "is step_time_s of a whole step in seconds, and tokens_per_s_per_gpu of one GPU?"});
  }
  if (peak_memory_GiB && *peak_memory_GiB > kFullest * gib(device.memory))
    problems.push_back({at, "peak_memory_GiB", fmt::format("{:.4g} GiB of {}", *peak_memory_GiB, id),
                        fmt::format("at most the {:.4g} GiB of a {}", gib(device.memory), device.name),
                        "is it the peak of one device, in GiB?"});
  return problems;
}

std::optional<Problem> in_another_unit(std::span<const TimedRun> runs) {
  constexpr double kAbsurd = 20;
  double least = INFINITY;
  const auto slower = [](const TimedRun& r) { return r.measured_s > r.predicted_s; };
  for (const TimedRun& r : runs) {
    if (slower(r) != slower(runs.front())) return std::nullopt;
    const double factor = r.measured_s / r.predicted_s;
    least = std::min(least, std::max(factor, 1 / factor));
  }
  if (runs.empty() || least < kAbsurd) return std::nullopt;
  const TimedRun& first = runs.front();
  return Problem{
      first.at, "step_time_s",
      fmt::format("{:.4g} s of {}, and so for every run", first.measured_s, first.id),
      fmt::format("times within a factor of {:g} of the predicted {:.4g} s", kAbsurd, first.predicted_s),
      "are the times seconds, of one step, and of this model and cluster?"};
}

// Source: the difference of two logarithms, each off by `noise`, has noise * sqrt(2); 19 of 20 stay within two of these.
std::vector<InconsistentPair> inconsistent_pairs(std::span<const MeasuredRun> runs, double noise) {
  const double most = 2 * std::sqrt(2.0) * noise;
  std::map<std::string, InconsistentPair> ends;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto& [fast, slow] = ends.try_emplace(all_of(runs[i].run), InconsistentPair{i, i}).first->second;
    if (runs[i].step < runs[fast].step) fast = i;
    if (runs[i].step > runs[slow].step) slow = i;
  }
  std::vector<InconsistentPair> out;
  for (const auto& [inputs, c] : ends)
    if (std::log(runs[c.slow].step.v / runs[c.fast].step.v) > most) out.push_back(c);
  std::ranges::sort(out, {}, [](const InconsistentPair& c) { return std::min(c.fast, c.slow); });
  return out;
}

std::vector<std::size_t> given_twice(std::span<const MeasuredRun> runs) {
  std::set<std::pair<std::string, double>> seen;
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (!seen.emplace(runs[i].id + '\n' + all_of(runs[i].run), runs[i].step.v).second) out.push_back(i);
  return out;
}

}  // namespace sextant
