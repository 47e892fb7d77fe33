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
  how.others_share = kTieShare / 2;
  how.thorough_bounds = kThoroughBounds;
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

namespace {

// What is said of a search that found nothing, line by line, and the next question that has an answer.
class NothingFound {
 public:
  NothingFound(Session& session, const Planning& planning, const SearchSpace& space,
               const SearchReport& report, Searching& searching, const QuestionOptions& asked)
      : session_(session),
        planning_(planning),
        space_(space),
        report_(report),
        searching_(searching),
        again_(asked) {}
  void say(const std::string& verb);

 private:
  const Question& question() const { return planning_.question(); }
  SearchSpace without_limits() const {
    const Question& q = question();
    return default_space(q.model, q.training, q.cluster.device, space_.world);
  }
  void say_never(const std::string& reason);
  void say_stopped();
  void try_without_limits();
  void try_without_memory_limit();
  void say_what_would_fit();
  void line(const std::string& text) {
    session_.terminal.err << wrapped_message(session_.terminal, "  " + text + "\n");
  }
  void ask(const std::string& more) {
    next_ = fmt::format("sextant plan{}{}", question_arguments(session_, again_), more);
  }

  Session& session_;
  const Planning& planning_;
  const SearchSpace& space_;
  const SearchReport& report_;
  Searching& searching_;
  QuestionOptions again_;
  std::string next_;
};

void NothingFound::say_never(const std::string& reason) {
  line(reason);
  if (!question().limits.limits.empty() && !never_possible(planning_.job(), without_limits())) ask("");
}

void NothingFound::say_stopped() {
  if (!searching_.interrupted()) ask(limit_arguments(question()));
  line(searching_.interrupted() ? "interrupted" : report_.stopped + "; this proves nothing");
}

void NothingFound::try_without_limits() {
  if (question().limits.limits.empty()) return;
  const SearchReport free =
      search(planning_.job(), without_limits(), for_help(searching_.options(1, "without limits")));
  if (free.ranked.empty()) return;
  searching_.finish();
  ask("");
  line(fmt::format("without {}: {} fits", to_string(question().limits), plan_key(free.ranked.front().plan)));
}

void NothingFound::try_without_memory_limit() {
  if (!searching_.memory_limit()) return;
  SearchOptions how = for_help(searching_.options(1, "without the limit of memory"));
  how.memory_limit.reset();
  const SearchReport free = search(planning_.job(), space_, how);
  if (free.ranked.empty()) return;
  searching_.finish();
  ask(limit_arguments(question()));
  const RankedPlan& fits = free.ranked.front();
  line(fmt::format("without --max-oom-chance: {} fits, which runs out of memory with a chance of {:.0f} %",
                   plan_key(fits.plan), 100 * fits.prediction.chance_of_overflow));
}

void NothingFound::say_what_would_fit() {
  const Question& q = question();
  const auto n = what_would_fit(planning_, space_, report_, searching_);
  if (!n) return;
  for (const auto& text : n->lines) line(text);
  if (n->beside_stack && q.cluster.device.generation == "cpu" && q.stack.name != "sextant") {
    line("CPU ranks run sextant's own runtime");
    again_.stack = "sextant";
    ask(limit_arguments(q));
  }
  if (next_.empty() && n->fewest.found)
    ask(fmt::format("{} --scale {}", limit_arguments(q), n->fewest.found->gpus));
}

void NothingFound::say(const std::string& verb) {
  const bool stopped = !report_.exact || searching_.interrupted();
  print_error(session_.terminal, "sextant " + verb,
              fmt::format("{}: {}", stopped ? "stopped before any layout was found" : "no layout is possible",
                          question_text(question())));
  if (report_.space > 0)
    line(fmt::format("{} layouts: {}", count_text(report_.space), outcomes_text(report_.outcomes)));
  if (const auto reason = never_possible(planning_.job(), space_)) {
    say_never(*reason);
  } else if (stopped) {
    say_stopped();
  } else {
    print_reasons(session_.terminal.err, session_.terminal, report_);
    try_without_limits();
    try_without_memory_limit();
    say_what_would_fit();
  }
  if (!next_.empty()) session_.terminal.err << command_lines(session_.terminal.err_columns, "next: ", next_);
}

}  // namespace

ExitCode print_nothing(Session& session, const std::string& verb, const Planning& planning,
                       const SearchSpace& space, const SearchReport& report, Searching& searching,
                       const QuestionOptions& asked) {
  searching.finish();
  NothingFound(session, planning, space, report, searching, asked).say(verb);
  return searching.interrupted() ? ExitCode::interrupted : ExitCode::no_feasible_plan;
}

}  // namespace sextant
