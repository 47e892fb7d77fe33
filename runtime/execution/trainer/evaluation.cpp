// The loss of held-out text. The forward half of the graph over one batch after another: backward, reductions and update
// are left out on all ranks alike, so an evaluation costs about a third of a step for each batch. The update that the last
// step has left is made before; the step after goes on like the first of a run.
#include <array>

#include "core/base/error.hpp"
#include "runtime/execution/trainer/rank_trainer.hpp"

namespace sextant {

std::optional<double> RankTrainer::evaluate(const SequenceSource& source, std::int64_t batches,
                                            const std::function<bool()>& stop) {
  finish();
  std::array<double, 2> sums = {0, 0};  // loss, valid targets
  for (std::int64_t b = 0; b < batches; ++b) {
    const std::exception_ptr missing = take_batch(source, b);
    std::array<double, 2> agreed = {stop && stop() ? 1.0 : 0.0, missing ? 1.0 : 0.0};
    sum(agreed);
    if (agreed[0] > 0) return {};
    if (agreed[1] > 0) throw TokensMissing(missing);
    launcher_.part = StepLauncher::Part::evaluate;
    launcher_.begin_step();
    executor_.run_step();
    const StepExchange::Results results = launcher_.end_step();
    if (at_.tp == 0 && at_.pp == graph_.plan.pp - 1) sums[0] += results.loss;
    if (at_.tp == 0 && at_.pp == 0) sums[1] += static_cast<double>(launcher_.batch.valid_targets);
  }
  sum(sums);
  if (sums[1] == 0)
    throw ConfigError(
        Problem{"", "evaluation", "no token that carries a loss", "at least one valid target", ""});
  return sums[0] / sums[1];
}

}  // namespace sextant
