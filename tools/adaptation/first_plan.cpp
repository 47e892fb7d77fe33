#include "tools/adaptation/first_plan.hpp"

#include <fmt/format.h>

#include "planner/answers/recommend.hpp"
#include "tools/inputs/plan_options.hpp"
#include "tools/inputs/planning.hpp"

namespace sextant {

PlanFile first_plan(Session& session, QuestionOptions options) {
  if (options.stack.empty()) options.stack = "sextant";
  const Planning planning(read_question(session, options), session.presets());
  const Question& q = planning.question();
  const Job job = planning.job();
  Searching searching(session.terminal, PlanOptions().patience_s);
  const SearchReport report =
      search_possible(job, default_space(q.model, q.training, q.cluster.device, q.cluster.gpus(), q.limits),
                      for_fastest(searching.options(kJudged)));
  if (report.ranked.empty() && !report.exact)
    throw ConfigError(Problem{
        "--model", "", q.model.name, fmt::format("a layout before the search ends ({})", report.stopped),
        "'sextant plan --budget-s SECONDS -o plan.json' with the same options takes longer; "
        "then 'sextant run plan.json'"});
  if (report.ranked.empty())
    throw ConfigError(Problem{"--model", "", q.model.name, "a model that this cluster can train",
                              "'sextant plan' with the same options reports what would fit"});
  const DecisionBasis basis{load_decision_rule(session.presets()), load_evidence(session.presets())};
  const Recommendation r = recommend(job, q.limits, report, basis, searching.options(1));
  searching.finish();
  return plan_file_of(session, q, r.plan.plan, r.plan.prediction, step_breakdown(job, r.plan.plan).mean);
}

}  // namespace sextant
