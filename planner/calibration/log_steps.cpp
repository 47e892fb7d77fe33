#include "planner/calibration/log_steps.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/median.hpp"
#include "planner/calibration/log_settled.hpp"
#include "planner/calibration/log_text.hpp"

namespace sextant {

namespace {

// What stands behind `label`, without blanks; nothing where that is missing.
std::optional<std::string_view> rest_after(std::string_view line, std::string_view label) {
  const std::size_t at = line.find(label);
  if (at == std::string_view::npos) return std::nullopt;
  line.remove_prefix(at + label.size());
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  return line;
}

}  // namespace

Problem StepLines::problem(int at, std::string found, std::string hint) const {
  const std::string key(format_.label.substr(0, format_.label.find_first_of(":=")));
  return {fmt::format("{}:{}", log_.file, at), key, std::move(found), std::string(format_.expected),
          std::move(hint)};
}

void StepLines::leave_out(int at, std::string found) {
  log_.unread.push_back(problem(at, std::move(found), "this step is left out"));
}

void StepLines::read(std::string_view line, int at, std::optional<std::int64_t> number) {
  const bool starts = fresh_ || (number && last_ && *number < *last_);
  if (starts) first_ = number;
  fresh_ = false;
  last_ = number;
  const auto rest = rest_after(line, format_.label);
  if (!rest || rest->empty()) return leave_out(at, "a line that was cut");
  const auto value = number_after(line, format_.label);
  if (!value) return leave_out(at, std::string(rest->substr(0, rest->find_first_of(" |\t\r\x1b"))));
  if (!(*value > 0))
    throw ConfigError(
        problem(at, fmt::format("{}", *value), "a step of no time is no measurement: remove its line"));
  log_.steps.push_back({*value * format_.scale, at, starts || (number && number == first_)});
}

void StepLines::consumed(std::int64_t number, double samples, std::optional<double> tokens, int at) {
  const auto before = std::exchange(consumed_, Consumed{number, samples, tokens});
  if (!before || before->number >= number || before->samples >= samples) return;
  const double batch = (samples - before->samples) / static_cast<double>(number - before->number);
  settle(log_, "global_batch", {batch, batch}, "consumed samples of each step", at);
  if (!tokens || !before->tokens || *tokens <= *before->tokens) return;
  const double length = (*tokens - *before->tokens) / (samples - before->samples);
  settle(log_, "seq_len", {length, length}, "consumed tokens over samples", at);
}

std::optional<std::int64_t> step_of_total(std::string_view line, std::string_view label) {
  auto rest = rest_after(line, label);
  std::int64_t number = 0;
  if (!rest) return std::nullopt;
  const auto [end, error] = std::from_chars(rest->data(), rest->data() + rest->size(), number);
  if (error != std::errc()) return std::nullopt;
  rest->remove_prefix(static_cast<std::size_t>(end - rest->data()));
  rest->remove_prefix(std::min(rest->find_first_not_of(' '), rest->size()));
  if (!rest->starts_with('/')) return std::nullopt;
  return number;
}

namespace {

// Steps of which some warm up: the rest; fewer at the beginning of a longer log, since caches and clocks settle. As they are printed.
std::vector<double> settled(const RunLog& log) {
  const auto warm = [](const LoggedStep& s) { return s.warms_up; };
  std::vector<double> steady;
  for (const LoggedStep& s : log.steps)
    if (!warm(s)) steady.push_back(s.value);
  if (steady.empty()) return steady;
  const auto first = std::find_if_not(log.steps.begin(), log.steps.end(), warm) - log.steps.begin();
  const std::size_t settling = log.steps.size() > 4 ? std::max<std::size_t>(2, log.steps.size() / 10) : 0;
  const std::size_t skipped =
      std::min(steady.size() - 1, settling - std::min(settling, static_cast<std::size_t>(first)));
  steady.erase(steady.begin(), steady.begin() + static_cast<std::ptrdiff_t>(skipped));
  return steady;
}

}  // namespace

std::optional<double> spread_of_steps(const RunLog& log) {
  std::vector<double> steady = settled(log);
  if (steady.size() < 10) return std::nullopt;
  std::ranges::sort(steady);
  const std::size_t tenth = steady.size() / 10;
  return steady[steady.size() - 1 - tenth] / steady[tenth] - 1;
}

Seconds steady_step(const RunLog& log, const TrainingSpec& training, const ParallelPlan& plan) {
  const double tokens = static_cast<double>(training.global_batch) * training.seq_len / plan.world();
  std::vector<double> steady = settled(log);
  for (double& value : steady)
    value = log.value == StepValue::tokens_per_s_of_gpu ? tokens / value
            : log.value == StepValue::sequences_per_s   ? training.global_batch / value
                                                        : value;
  if (steady.empty()) {
    const int at = log.steps.empty() ? 1 : log.steps.front().line;
    throw ConfigError(Problem{
        fmt::format("{}:{}", log.file, at), "steps",
        log.unread.empty() ? "only the first step of a run, which warms up"
                           : "only the first step of a run, which warms up, and others that cannot be read",
        "at least one step behind it", "let the run log more steps, or give the log of a longer one"});
  }
  return Seconds(median(std::move(steady)));
}

}  // namespace sextant
