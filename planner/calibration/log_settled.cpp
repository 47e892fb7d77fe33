#include "planner/calibration/log_settled.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "planner/calibration/log_text.hpp"

namespace sextant {

namespace {

// Arithmetic on what was printed exactly is off by no more.
constexpr double kExact = 1e-6;

}  // namespace

std::optional<PrintedRange> range_after(std::string_view line, std::string_view label, int digits) {
  const auto printed = number_after(line, label);
  if (!printed || !(*printed > 0)) return std::nullopt;
  const double half = 0.5 * std::pow(10.0, std::floor(std::log10(*printed)) - digits + 1);
  return PrintedRange{*printed - half, *printed + half};
}

PrintedRange product(PrintedRange a, PrintedRange b) { return {a.low * b.low, a.high * b.high}; }
PrintedRange quotient(PrintedRange a, PrintedRange b) { return {a.low / b.high, a.high / b.low}; }

void settle(RunLog& log, const std::string& column, PrintedRange range, std::string by, int at) {
  if (!(range.low > 0) || !std::isfinite(range.high)) return;
  range = {range.low * (1 - kExact), range.high * (1 + kExact)};
  const auto [it, first] =
      log.settled.try_emplace(column, SettledCount{range.low, range.high, std::move(by), at});
  if (first) return;
  SettledCount& known = it->second;
  const double low = std::max(known.low, range.low), high = std::min(known.high, range.high);
  if (low <= high) {
    known.low = low;
    known.high = high;
  } else {
    known.low = std::min(known.low, range.low);
    known.high = std::max(known.high, range.high);
  }
}

void say_settled(RunLog& log) {
  for (const auto& [column, count] : log.settled) {
    const double low = std::ceil(count.low), high = std::floor(count.high);
    if (low != high || low < 1 || low > kMaxWorld || log.says.contains(column)) continue;
    log.says[column] = std::llround(low);
    log.lines[column] = count.line;
  }
}

std::optional<int> settled_seq_len(const RunLog& log) {
  const auto it = log.settled.find("seq_len");
  if (it == log.settled.end() || it->second.high > kMaxSeqLen) return std::nullopt;
  for (std::int64_t step = std::int64_t{1} << 20; step >= 1; step /= 2) {
    const auto multiple = static_cast<std::int64_t>(it->second.high / static_cast<double>(step)) * step;
    if (multiple > 0 && static_cast<double>(multiple) >= it->second.low) return static_cast<int>(multiple);
  }
  return std::nullopt;
}

std::vector<Problem> against_settled(const RunLog& log, const TrainingSpec& training,
                                     const ParallelPlan& plan) {
  struct Compared {
    const char* column;
    std::int64_t stated;
  };
  std::vector<Problem> problems;
  for (const Compared& c :
       {Compared{"global_batch", training.global_batch}, Compared{"seq_len", training.seq_len},
        Compared{"gpus", plan.world()}, Compared{"pp", plan.pp}}) {
    const auto it = log.settled.find(c.column);
    if (it == log.settled.end()) continue;
    const SettledCount& count = it->second;
    const auto stated = static_cast<double>(c.stated);
    if (stated >= count.low && stated <= count.high) continue;
    const bool one = std::ceil(count.low) == std::floor(count.high);
    const std::string found = one ? fmt::format("{:.0f}", std::ceil(count.low))
                                  : fmt::format("{:.4g} to {:.4g}", count.low, count.high);
    problems.push_back(
        {fmt::format("{}:{}", log.file, count.line), c.column, fmt::format("{} ({})", found, count.by),
         fmt::format("{}, as stated", c.stated),
         "one of the two is another run's: correct it, or leave it out and the log's is used"});
  }
  return problems;
}

}  // namespace sextant
