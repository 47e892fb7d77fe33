// The searches of one command, and what it says when they find nothing.
#include <algorithm>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/plan/plan_key.hpp"
#include "tools/inputs/planning.hpp"

namespace sextant {

SearchOptions Searching::options(int top, std::string about) {
  about_ = std::move(about);
  before_ += std::exchange(now_, 0);
  SearchOptions how;
  how.top = top;
  how.tie_share = kTieShare;
  how.others_share = kTieShare / 2, how.thorough_bounds = kThoroughBounds;
  how.memory_limit = memory_limit_;
  if (budget_s_ > 0) how.budget_s = std::max(1e-6, budget_s_ - spent_s());
  how.cancel = &interrupt_.stopped();
  how.progress = [this](std::uint64_t simulated, Seconds best) {
    now_ = simulated;
    progress_.update(static_cast<double>(before_ + simulated),
                     fmt::format("{}{}best {:.3f} s", about_, about_.empty() ? "" : ": ", best.v));
  };
  return how;
}

SearchReport search_possible(const Job& job, const SearchSpace& space, const SearchOptions& options) {
  if (!never_possible(job, space)) return search(job, space, options);
  SearchReport report;
  report.space = space.size();
  report.outcomes[Outcome::unsupported_by_stack] = report.space;
  return report;
}

namespace {

// As far as a model that does not fit is followed: times the cluster, and at least so many.
constexpr int kMoreGpus = 64, kManyGpus = 1024;

// What else would do is a help, for which nobody waits long.
SearchOptions for_help(SearchOptions how) {
  constexpr double kHelp_s = 15;
  if (how.budget_s == 0) how.budget_s = kHelp_s;
  return how;
}

}  // namespace

std::optional<NothingFits> what_would_fit(const Planning& planning, const SearchSpace& space,
                                          const SearchReport& report, Searching& searching) {
  const Job job = planning.job();
  if (!report.exact || searching.interrupted() || never_possible(job, space)) return std::nullopt;
  const int most = std::max(kManyGpus, kMoreGpus * planning.question().cluster.gpus());
  NothingFits n = why_nothing_fits(job, space, most, for_help(searching.options(1, "what would fit")));
  searching.finish();
  return n;
}

ExitCode print_nothing(Session& session, const std::string& verb, const Planning& planning,
                       const SearchSpace& space, const SearchReport& report, Searching& searching,
                       const QuestionOptions& asked) {
  auto& err = session.terminal.err;
  const Question& q = planning.question();
  const Job job = planning.job();
  searching.finish();
  const auto line = [&](const std::string& text) {
    err << wrapped_message(session.terminal, "  " + text + "\n");
  };
  const bool stopped = !report.exact || searching.interrupted();
  print_error(session.terminal, "sextant " + verb,
              fmt::format("{}: {}", stopped ? "stopped before any layout was found" : "no layout is possible",
                          question_text(q)));
  if (report.space > 0)
    line(fmt::format("{} layouts: {}", count_text(report.space), outcomes_text(report.outcomes)));
  // The next question that has an answer.
  std::string next;
  QuestionOptions again = asked;
  const auto ask = [&](const std::string& more) {
    next = fmt::format("sextant plan{}{}", question_arguments(session, again), more);
  };
  if (const auto reason = never_possible(job, space)) {
    line(*reason);
    if (!q.limits.limits.empty() &&
        !never_possible(job, default_space(q.model, q.training, q.cluster.device, space.world)))
      ask("");
  } else if (stopped) {
    if (!searching.interrupted()) ask(limit_arguments(q));
    line(searching.interrupted() ? "interrupted" : report.stopped + "; this proves nothing");
  } else {
    print_reasons(err, session.terminal, report);
    if (!q.limits.limits.empty()) {
      const SearchReport free = search(job, default_space(q.model, q.training, q.cluster.device, space.world),
                                       for_help(searching.options(1, "without limits")));
      if (!free.ranked.empty()) {
        searching.finish();
        ask("");
        line(fmt::format("without {}: {} fits", to_string(q.limits), plan_key(free.ranked.front().plan)));
      }
    }
    if (searching.memory_limit()) {
      SearchOptions how = for_help(searching.options(1, "without the limit of memory"));
      how.memory_limit.reset();
      if (const SearchReport free = search(job, space, how); !free.ranked.empty()) {
        searching.finish();
        ask(limit_arguments(q));
        const RankedPlan& fits = free.ranked.front();
        line(fmt::format(
            "without --max-oom-chance: {} fits, which runs out of memory with a chance of {:.0f} %",
            plan_key(fits.plan), 100 * fits.prediction.chance_of_overflow));
      }
    }
    if (const auto n = what_would_fit(planning, space, report, searching)) {
      for (const auto& text : n->lines) line(text);
      if (n->beside_stack && q.cluster.device.generation == "cpu" && q.stack.name != "sextant") {
        line("CPU ranks run sextant's own runtime");
        again.stack = "sextant";
        ask(limit_arguments(q));
      }
      if (next.empty() && n->fewest.found)
        ask(fmt::format("{} --scale {}", limit_arguments(q), n->fewest.found->gpus));
    }
  }
  if (!next.empty()) err << command_lines(session.terminal.err_columns, "next: ", next);
  return searching.interrupted() ? ExitCode::interrupted : ExitCode::no_feasible_plan;
}

}  // namespace sextant
