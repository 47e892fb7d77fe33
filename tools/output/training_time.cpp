#include "tools/output/training_time.hpp"

#include <cmath>
#include <cstdint>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/inputs/plan_options.hpp"
#include "tools/inputs/planning.hpp"

namespace sextant {

namespace {

struct TrainingTime {
  double tokens = 0, days = 0, lower = 0, upper = 0, gpu_hours = 0;
  std::optional<double> usd;
};

// Without checkpoints and failures: goodput has those.
TrainingTime training_time(const std::string& tokens, const TrainingSpec& training,
                           const ClusterSpec& cluster, const ParallelPlan& plan, const Prediction& p) {
  TrainingTime t;
  t.tokens = parse_tokens(tokens, "--tokens");
  const double steps = std::ceil(t.tokens / (static_cast<double>(training.global_batch) * training.seq_len));
  const auto days = [&](Seconds step) { return steps * step.v / 86400; };
  t.days = days(p.step);
  t.lower = days(p.step_lower);
  t.upper = days(p.step_upper);
  t.gpu_hours = t.days * 24 * plan.world();
  if (cluster.device.price_usd_per_hour > 0) t.usd = t.gpu_hours * cluster.device.price_usd_per_hour;
  return t;
}

std::string whole(double x) { return with_thousands(static_cast<std::uint64_t>(std::llround(x))); }

}  // namespace

std::string training_time_text(const std::string& tokens, const TrainingSpec& training,
                               const ClusterSpec& cluster, const ParallelPlan& plan, const Prediction& p) {
  const TrainingTime t = training_time(tokens, training, cluster, plan, p);
  // Hours where days would be a fraction.
  const double unit = t.days < 2 ? 24 : 1;
  return fmt::format(
      "{} tokens: {:.1f} {} ({:.1f} to {:.1f} in nine of ten cases) without failures, {} GPU-hours{}", tokens,
      t.days * unit, unit > 1 ? "hours" : "days", t.lower * unit, t.upper * unit, whole(t.gpu_hours),
      t.usd ? fmt::format(", {} USD", whole(*t.usd)) : "");
}

std::string training_days_text(const std::string& tokens, const TrainingSpec& training,
                               const ClusterSpec& cluster, const ParallelPlan& plan, const Prediction& p) {
  return fmt::format("{:.1f}", training_time(tokens, training, cluster, plan, p).days);
}

nlohmann::ordered_json training_time_json(const std::string& tokens, const TrainingSpec& training,
                                          const ClusterSpec& cluster, const ParallelPlan& plan,
                                          const Prediction& p) {
  const TrainingTime t = training_time(tokens, training, cluster, plan, p);
  nlohmann::ordered_json j = {{"tokens", t.tokens},    {"days", t.days},           {"days_lower", t.lower},
                              {"days_upper", t.upper}, {"gpu_hours", t.gpu_hours}, {"usd", nullptr}};
  if (t.usd) j["usd"] = *t.usd;
  return j;
}

}  // namespace sextant
