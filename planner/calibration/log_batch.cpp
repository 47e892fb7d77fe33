#include "planner/calibration/log_batch.hpp"

#include <fmt/format.h>

namespace sextant {

namespace {

std::string three_digits(double x) { return fmt::format("{:.2e}", x); }

}  // namespace

bool is_printed_so(const RunLog& log, int seq_len, std::int64_t batch) {
  const auto sequences = static_cast<double>(batch);
  if (log.batch_tokens) return three_digits(sequences * seq_len) == three_digits(*log.batch_tokens);
  return three_digits(sequences) == three_digits(static_cast<double>(log.said("global_batch").value_or(0)));
}

std::vector<std::int64_t> multiples_printed_so(const RunLog& log, int seq_len, std::int64_t printed,
                                               std::int64_t at_once) {
  const std::int64_t below = printed / at_once * at_once;
  std::vector<std::int64_t> fit;
  for (std::int64_t n = below; n > 0 && is_printed_so(log, seq_len, n); n -= at_once) fit.push_back(n);
  for (std::int64_t n = below + at_once; is_printed_so(log, seq_len, n); n += at_once) fit.push_back(n);
  return fit;
}

std::string batch_as_printed(const RunLog& log, int seq_len, std::int64_t batch) {
  if (!log.batch_tokens) return fmt::format("about {} (printed with three digits)", batch);
  return fmt::format("about {} sequences of {} ({:.3g} million tokens)", batch, seq_len,
                     1e-6 * *log.batch_tokens);
}

}  // namespace sextant
