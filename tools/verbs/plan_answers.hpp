// The answers of `sextant plan`: each asks its searches, prints text or JSON, writes the best plan and returns the exit code.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "planner/answers/recommend.hpp"
#include "planner/answers/scale.hpp"
#include "planner/search/search.hpp"
#include "tools/inputs/plan_options.hpp"
#include "tools/inputs/planning.hpp"

namespace sextant {

// What every answer needs.
struct Asking {
  Session& session;
  const PlanOptions& options;
  const Planning& planning;
  const SearchSpace& space;
  Searching& searching;
  const Question& question() const { return planning.question(); }
  std::ostream& out() const { return session.terminal.out; }
  void say(const std::string& text, int indent = 0) const {
    print_wrapped(out(), session.terminal, text, indent);
  }
  void say_question() const {
    say(question_text(question()));
    print_notes(session, question());
  }
};

ExitCode answer_fastest(const Asking&);
ExitCode answer_robust(const Asking&);  // --rank-by
ExitCode answer_lowest_memory(const Asking&);
ExitCode answer_front(const Asking&);  // --pareto
ExitCode answer_curve(const Asking&);  // --scale, tokens-per-dollar
ExitCode answer_fewest(const Asking&);

// Parts of them.
// Writes the best as the plan file that -o asks for, on a cluster of that many GPUs.
void write_plan(const Asking&, int gpus, const RankedPlan& best);
void print_best(const Asking&, const RankedPlan& best);
// The first of them that surely fits, or none.
std::vector<RankedPlan>::const_iterator fastest_safe(const std::vector<RankedPlan>&);
// Where the first may run out of memory: which of these is the fastest that surely fits, and what asks for such.
void print_safe(const Asking&, const std::vector<RankedPlan>&);
// What ties with the best at lower risk. Says so.
std::optional<RankedPlan> lower_risk_plan(const Asking&, const SearchReport&);
void print_lower_risk(const Asking&, const RankedPlan& lower_risk, const RankedPlan& best);
bool only_lower_risk_fits(const RankedPlan& lower_risk, const RankedPlan& best);
nlohmann::ordered_json ranked_json(const Asking&, const RankedPlan&);  // with goodput
void print_search(const Asking&, const SearchReport&, std::string_view when = "");
// A table of the first to the last, and of what each loses.
void print_ranking(const Asking&, const std::vector<RankedPlan>&);
// The commands that go on from here.
void print_next(const Asking&, int gpus, const ParallelPlan&);
nlohmann::ordered_json answer_json(const Asking&, const std::vector<RankedPlan>&, const SearchReport&);
// The rule of recommendations, with the limit of --max-oom-chance.
DecisionRule rule_of(const Asking&);
// What to run of all that was searched, what it adds to JSON, and the screen that says it.
Recommendation recommendation(const Asking&, const SearchReport&);
void add_recommendation(const Asking&, const Recommendation&, nlohmann::ordered_json&);
void print_recommendation(const Asking&, const Recommendation&, const SearchReport&,
                          const std::optional<ScalePoint>& fewer);
struct Answered {
  bool found = false;  // a layout
};
ExitCode finished(const Asking&, Answered);
// Nothing to show: the same exit codes in text and JSON.
ExitCode nothing(const Asking&, const SearchReport&);

}  // namespace sextant
