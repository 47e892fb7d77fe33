#include "tools/output/explained.hpp"

#include <cmath>
#include <numeric>

#include <nlohmann/json.hpp>

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;

// Of a step, what neither the simulation nor jitter makes.
double rest(Seconds step, Seconds jitter, const TimeSplit& split) {
  return step.v - jitter.v - std::accumulate(split.begin(), split.end(), 0.0);
}

Json comparison_json(const Comparison& c) {
  Json terms = Json::array();
  for (const TimeTerm& t : c.terms)
    terms.push_back({{"category", name(t.category)},
                     {"chosen_s", c.best[static_cast<std::size_t>(t.category)]},
                     {"other_s", c.other[static_cast<std::size_t>(t.category)]},
                     {"cause", t.cause}});
  return {{"chosen_step_time_s", c.best_step.v},
          {"other_step_time_s", c.other_step.v},
          {"chosen_jitter_s", c.best_jitter.v},
          {"other_jitter_s", c.other_jitter.v},
          {"chosen_stragglers_and_host_s", rest(c.best_step, c.best_jitter, c.best)},
          {"other_stragglers_and_host_s", rest(c.other_step, c.other_jitter, c.other)},
          {"slower_share", c.slower},
          {"tie", std::abs(c.slower) < kTieShare},
          {"terms", terms}};
}

Json why_json(const ParallelPlan& plan, const WhyNot& w) {
  Json memory = Json::array();
  for (const MemoryTerm& t : w.memory)
    memory.push_back({{"category", t.what}, {"chosen_GiB", gib(t.best)}, {"other_GiB", gib(t.other)}});
  Json j = {{"key", plan_key(plan)},
            {"verdict", name(w.verdict)},
            {"reason", w.rejection ? w.rejection->text : ""},
            {"short_by_GiB", gib(w.short_by)},
            {"memory", memory},
            {"comparison", w.comparison ? comparison_json(*w.comparison) : Json(nullptr)},
            {"smallest_change", nullptr}};
  if (w.fix) {
    j["smallest_change"] = prediction_json(w.fix->plan, w.fix->prediction);
    j["smallest_change"]["change"] = w.fix->text;
    j["smallest_change"]["fields"] = w.fix->fields;
  }
  return j;
}

}  // namespace

nlohmann::ordered_json explained_json(const Question& q, const Explained& e) {
  Json j = nothing_json(q, e.found.report);
  if (e.by != RankBy::undisturbed) {
    j["rank_by"] = kRankByNames[static_cast<std::size_t>(e.by)];
    j["sampled_layouts"] = e.found.sampled;
    j["ranking_proved"] = e.found.proved;
  }
  j["chosen"] = e.own.rejection ? Json{{"key", plan_key(e.chosen)}} : prediction_json(e.chosen, e.prediction);
  j["against_best"] = why_json(e.chosen, e.own);
  j["recommended"] = nullptr;
  if (e.recommended)
    j["recommended"] = {{"key", plan_key(e.recommended->answer.plan.plan)},
                        {"why", e.recommended->why},
                        {"comparison", e.recommended->comparison ? comparison_json(*e.recommended->comparison)
                                                                 : Json(nullptr)}};
  Json runners = Json::array(), why = Json::array(), alternatives = Json::array(), machines = Json::array();
  for (const RunnerUp& r : e.runners_up)
    runners.push_back({{"key", plan_key(r.plan)},
                       {"kind", r.kind},
                       {"chance_of_overflow", r.oom_chance},
                       {"comparison", comparison_json(r.comparison)}});
  for (const Asked& asked : e.why) {
    why.push_back(why_json(asked.plan, asked.answer));
    why.back()["notes"] = asked.notes;
    if (asked.predicted_from) why.back()["predicted_from"] = shares_json(*asked.predicted_from);
  }
  for (const Alternative& a : e.alternatives)
    alternatives.push_back({{"field", a.field},
                            {"other", a.other},
                            {"key", a.plan ? Json(plan_key(a.plan->plan)) : Json(nullptr)},
                            {"exact", a.exact},
                            {"comparison", a.comparison ? comparison_json(*a.comparison) : Json(nullptr)}});
  for (const Sensitivity& s : e.sensitivities)
    machines.push_back({{"what", s.what},
                        {"same", s.same},
                        {"key", s.plan ? Json(plan_key(*s.plan)) : Json(nullptr)},
                        {"chosen_fits", s.possible},
                        {"chosen_chance_of_overflow", s.oom_chance > 0 ? Json(s.oom_chance) : Json(nullptr)},
                        {"as_today", s.as_today},
                        {"regret_share", s.regret},
                        {"slower_share", s.slower},
                        {"exact", s.exact}});
  j["runners_up"] = runners;
  j["why_not"] = why;
  j["alternatives"] = alternatives;
  j["only_usual_layouts"] = e.usual;
  j["sensitivities"] = machines;
  j["stopped_early"] = e.stopped;
  return j;
}

nlohmann::ordered_json nothing_json(const Question& q, const SearchReport& report) {
  Json j = question_json(q);
  j.update(report_json(report));
  return j;
}

}  // namespace sextant
