#include "tools/verbs/step_log.hpp"

#include <ostream>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tools/inputs/planning.hpp"
#include "tools/terminal/bar.hpp"

namespace sextant {
namespace {

// As wide as its column, however large.
std::string fitted(double x, std::size_t width, int decimals) {
  const std::string text = fmt::format("{:.{}f}", x, decimals);
  return text.size() <= width ? text : fmt::format("{:.2e}", x);
}

}  // namespace

void StepLog::add(const StepReport& r) {
  const PlanFile& f = runnable_->file();
  const double tokens_per_s = static_cast<double>(r.tokens) / r.duration.v;
  const auto peak = f.cluster.device.peak.find(f.training.compute);
  const auto mfu_of = [&](AttentionFlops counted) {
    const double flops = model_flops_per_token(f.model, f.training.seq_len, counted) * tokens_per_s;
    return peak == f.cluster.device.peak.end() ? 0 : flops / (peak->second.v * peaks_);
  };
  const double mfu = mfu_of(AttentionFlops::full);
  const double predicted = runnable_->predicted().makespan().v;
  if (!session_.common.json && (steps_.empty() || r.step % every_ == 0 || r.skipped)) {
    auto& out = session_.terminal.out;
    if (steps_.empty())
      out << fmt::format("{:>6} {:>8} {:>9} {:>9} {:>9} {:>6} {:>8} {:>8} {:>9}\n", "step", "loss",
                         "grad norm", "lr", "tokens/s", "MFU %", "GiB", "s", "expected");
    out << fmt::format("{:>6} {:>8} {:>9} {:>9.2e} {:>9.0f} {:>6.1f} {:>8.3f} {:>8.4f} {:>9.4f}\n", r.step,
                       fitted(r.loss, 8, 4), fitted(r.gradient_norm, 9, 3), r.rate, tokens_per_s, 100 * mfu,
                       gib(r.memory), r.duration.v, predicted)
        << std::flush;
    if (r.skipped) tell("skipped: loss or gradients are not finite");
  }
  nlohmann::ordered_json line = {{"step", r.step},
                                 {"loss", r.loss},
                                 {"grad_norm", r.gradient_norm},
                                 {"lr", r.rate},
                                 {"tokens_per_s", tokens_per_s},
                                 {"mfu", mfu},
                                 {"mfu_causal_halved", mfu_of(AttentionFlops::causal)},
                                 {"memory_GiB", gib(r.memory)},
                                 {"step_time_s", r.duration.v},
                                 {"predicted_step_time_s", predicted},
                                 {"skipped", r.skipped}};
  if (r.save_pause.v > 0) line["save_pause_s"] = r.save_pause.v;
  steps_.push_back(line);
  folder_.add_step(line.dump(), r.duration);
}

void StepLog::add_evaluation(const nlohmann::ordered_json& line, const std::string& text) {
  tell(text);
  evaluations_.push_back(line);
  folder_.add_step(line.dump());
}

void StepLog::tell(const std::string& what) {
  if (session_.common.json) return;
  session_.terminal.out << wrapped_answer(session_.terminal, "       " + what) << std::flush;
}

void StepLog::print_curves() const {
  constexpr std::size_t kFewest = 3;
  constexpr int kColumns = 40;
  if (steps_.size() < kFewest) return;
  auto& out = session_.terminal.out;
  out << '\n';
  for (const auto& [key, what] : {std::pair{"loss", "loss"}, {"tokens_per_s", "tokens/s"}}) {
    std::vector<double> values;
    for (const auto& step : steps_)
      if (step.at(key).is_number()) values.push_back(step.at(key).get<double>());
    if (values.empty()) continue;
    out << fmt::format("{:<9}{} {:.4g} to {:.4g}\n", what, curve_text(session_.terminal, values, kColumns),
                       values.front(), values.back());
  }
}

}  // namespace sextant
