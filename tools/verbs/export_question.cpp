#include "tools/verbs/export_question.hpp"

#include <utility>

#include <fmt/format.h>

#include "tools/verbs/plan_answers.hpp"

namespace sextant {

PlannedExport plan_to_export(Session& session, const QuestionOptions& asked) {
  PlanOptions options;
  options.question = asked;
  settle(options);
  options.question.searches = true;
  const Planning planning(read_question(session, options.question), session.presets());
  Question found = planning.question();
  const SearchSpace space =
      default_space(found.model, found.training, found.cluster.device, found.cluster.gpus(), found.limits);
  Searching searching(session.terminal, 0);
  const Asking a{session, options, planning, space, searching};
  SearchOptions how = searching.options(kJudged);
  how.budget_s = options.patience_s;
  const SearchReport report = search_possible(planning.job(), space, for_fastest(how));
  if (report.ranked.empty()) return {std::nullopt, nothing(a, report)};
  const RankedPlan best = recommendation(a, report).plan;
  searching.finish();
  if (searching.interrupted()) return {std::nullopt, finished(a, {.found = true})};
  found.plan = best.plan;
  found.file = plan_file_of(session, found, best.plan, best.prediction,
                            step_breakdown(planning.predicted_job(), best.plan).mean);
  if (!session.common.json) {
    a.say_question();
    a.say(fmt::format("plan: {}: {:.3f} s a step, {:.1f} GiB", plan_key(best.plan),
                      found.file->prediction.step_time_s.value,
                      found.file->prediction.peak_memory_GiB.value));
  }
  return {std::move(found), ExitCode::ok};
}

}  // namespace sextant
