#include "planner/answers/recommend.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "planner/answers/shortlist.hpp"
#include "planner/search/search_budget.hpp"
#include "planner/simulation/predict.hpp"
#include "planner/simulation/stage_memory.hpp"

namespace sextant {

namespace {

constexpr std::array<std::string_view, 6> kAlternativeNames = {
    "faster", "faster, unusual", "fastest on paper", "less memory", "simpler", "other parallelism"};

// Families of layouts without unusual features that are looked at.
constexpr int kPlainFamilies = 6;
constexpr double kOthersShare = 0.01;
constexpr double kFastestsShare = 0.6;  // of the time
// These searches find what is good, and prove nothing: that is said of the fastest on paper alone. More rounds than this found
// nothing better on the twenty questions of tests/tools/verbs/recommended_test.cpp; where what is usual is much slower than the
// fastest on paper, or does not fit, more was found by more of them: 70B on 8 GPUs, 405B on 128.
constexpr int kRounds = 200, kMoreRounds = 600;
constexpr double kMuchSlower = 0.15;
// How much slower than the fastest on paper a layout may be to be looked for at all.
constexpr double kFirstLook = 0.3;
constexpr std::size_t kMostAlternatives = 5, kFewAlternatives = 3;
// How much slower than the recommended one an alternative may be, and where there are too few of them.
constexpr double kStillOfUse = 1.15, kForWantOfOthers = 1.5;

double half_width_of(const Prediction& p) { return p.step_upper / p.step - 1; }

PlanLimit of_kind(PlanField f, bool used) {
  return used ? PlanLimit{f, Relation::greater_equal, 2} : pinned(f, 1);
}

// What people call one approach: which kinds of parallelism share the work.
using Approach = std::array<bool, 4>;
Approach approach(const ParallelPlan& p) { return {p.tp > 1, p.pp > 1, p.cp > 1, p.zero_stage == 3}; }

class Pool {
 public:
  Pool(const Job& job, const PlanLimits& limits, const DecisionBasis& basis, const SearchOptions& options,
       const SearchReport& fastest)
      : job_(job),
        limits_(limits),
        rule_(basis.rule),
        evidence_(basis.evidence),
        budget_(options),
        options_(options),
        fastest_(fastest),
        smaller_host_(job.cluster),
        job_with_room_(job.on(smaller_host_, job.topology)) {
    smaller_host_.node.host_memory = room_on_host();
    const std::size_t judged = std::min(fastest.ranked.size(), std::size_t{kJudged});
    for (std::size_t i = 0; i < judged; ++i) add(fastest.ranked[i]);
  }

  void search_more() {
    search_safe_and_plain();
    if (takes_unusual() || !usual_is_near()) search_offloaded();
    if (std::ranges::all_of(judged_, &Judged::room_on_host)) return;
    // How much does room on the host cost?
    const std::optional<Seconds> roomy = best_safe() ? std::optional(best_safe()->simulated) : std::nullopt;
    needs_room_on_host_ = false;
    search_safe(roomy);
    needs_room_on_host_ = asks_for_room(judged_, rule_);
  }

  // The best of each approach without CP that the pool has nothing usual of, as long as `enough()` says no.
  template <class Enough>
  void search_other_approaches(Seconds at_most, const Enough& enough) {
    struct Kinds {
      bool tp, pp;
    };
    for (const Kinds kinds : {Kinds{false, false}, {true, false}, {false, true}, {true, true}}) {
      const auto alike = [&](const ParallelPlan& p) {
        return p.cp == 1 && (p.tp > 1) == kinds.tp && (p.pp > 1) == kinds.pp;
      };
      if (best([&](std::size_t i) { return safe(i) && judged_[i].unusual == 0 && alike(plans_[i].plan); }))
        continue;
      if (enough()) return;
      PlanLimits within = usual_limits(job_, limits_, evidence_);
      within.limits.insert(within.limits.end(), {of_kind(PlanField::tp, kinds.tp),
                                                 of_kind(PlanField::pp, kinds.pp), pinned(PlanField::cp, 1)});
      if (kinds.tp)
        within.limits.push_back(at_most_of(PlanField::zero_stage, job_.stack.can.advised_zero_with_tp));
      search_within(within, {.at_most = at_most});
    }
  }

  bool ended_early() const { return ended_early_; }
  // The place of the fastest: the first, but where its search ended early another may have been found since.
  std::size_t on_paper() const {
    if (fastest_.exact) return 0;
    return static_cast<std::size_t>(
        std::ranges::min_element(plans_, {}, [](const RankedPlan& r) { return r.prediction.step; }) -
        plans_.begin());
  }
  const std::vector<RankedPlan>& plans() const { return plans_; }
  const std::vector<Judged>& judgements() const { return judged_; }
  bool safe(std::size_t i) const { return fits(i) && (judged_[i].room_on_host || !needs_room_on_host_); }
  const RankedPlan* best_plain() const {
    return best([&](std::size_t i) { return safe(i) && judged_[i].unusual == 0; });
  }
  const RankedPlan* best_safe() const {
    return best([&](std::size_t i) { return safe(i); });
  }
  // The fastest that would be safe with more host memory.
  const RankedPlan* best_beyond_host() const {
    return best([&](std::size_t i) { return fits(i) && !safe(i); });
  }

 private:
  bool fits(std::size_t i) const { return surely_fits(judged_[i], rule_); }
  bool usual_is_near() const {
    const RankedPlan* plain = best_plain();
    return plain && plain->simulated < fastest_.ranked.front().simulated * (1 + kMuchSlower);
  }
  bool takes_unusual() const { return judged_[recommended(judged_, rule_)].unusual > 0; }
  void search_safe_and_plain() {
    if (safe(0) && judged_[0].unusual == 0) return;  // the fastest of all is what is looked for
    const Seconds paper = fastest_.ranked.front().simulated;
    search_plain(best_plain() ? best_plain()->simulated : paper * (1 + kFirstLook));
    if (const RankedPlan* plain = best_plain()) {
      // How much do unusual features gain, beside room in memory?
      if (!safe(0)) search_safe(plain->simulated);
      return;
    }
    if (!safe(0)) search_safe(best_safe() ? std::optional(best_safe()->simulated) : std::nullopt);
    if (const RankedPlan* safe = best_safe())
      if (const Seconds most = safe->simulated * (1 + rule_.most_given_up); paper * (1 + kFirstLook) < most)
        search_plain(most);
  }

  template <class Admits>
  const RankedPlan* best(const Admits& admits) const {
    const RankedPlan* out = nullptr;
    for (std::size_t i = 0; i < plans_.size(); ++i)
      if (admits(i) && (!out || plans_[i].prediction.step < out->prediction.step)) out = &plans_[i];
    return out;
  }
  bool has(const ParallelPlan& p) const {
    return std::ranges::any_of(plans_, [&](const RankedPlan& r) { return r.plan == p; });
  }
  void add(const RankedPlan& r) {
    if (has(r.plan)) return;
    Judged j = judged(r.plan, job_.model.n_layers, job_.cluster, job_.stack.can);
    const Evidence known = evidence_of(job_, evidence_, r.plan);
    j.unusual += static_cast<int>(known.far.size());
    j.step = r.prediction.step.v;
    j.half_width = half_width_of(r.prediction);
    j.oom_chance = r.prediction.chance_of_overflow;
    j.like_runs = known.like_runs();
    j.doublings = known.doublings;
    j.well_known = known.well_known();
    j.room_on_host = r.prediction.memory.host_of_node <= room_on_host();
    plans_.push_back(r);
    judged_.push_back(j);
  }
  Bytes room_on_host() const {
    return Bytes(
        static_cast<std::int64_t>(kHostShare * static_cast<double>(job_.cluster.node.host_memory.v)));
  }
  struct Within {
    int top = 1;
    std::optional<Seconds> at_most;
    bool refine = false;  // off the search grid as well
  };
  void search_within(const PlanLimits& within, const Within& wanted) {
    if (budget_.over()) {
      ended_early_ = true;
      return;
    }
    const SearchSpace space = default_space(job_.model, job_.training, job_.cluster.device,
                                            fastest_.ranked.front().plan.world(), within);
    if (space.size() == 0) return;  // the user asks for what is unusual
    SearchOptions how = budget_.next(wanted.top);
    const Bytes limit = most_needed(job_.cluster.device, job_.stack, rule_.most_oom_chance);
    how.memory_limit = std::min(limit, options_.memory_limit.value_or(limit));
    how.at_most = wanted.at_most;
    how.move_layers = wanted.refine;
    how.others_share = kOthersShare;
    how.thorough_bounds = 0;
    how.most_rounds = usual_is_near() ? kRounds : kMoreRounds;
    for (const RankedPlan& r : search(needs_room_on_host_ ? job_with_room_ : job_, space, how).ranked) add(r);
    ended_early_ |= budget_.over();
  }
  void search_plain(Seconds at_most) {
    search_advised(usual_limits(job_, limits_, evidence_), at_most);
    add_counted();
  }
  // Of a family the search keeps the fastest, which may be an uneven cut by a hair: its layers are cut anew, embedding and head
  // counted as one each, into as many chunks and into as many as that makes.
  void add_counted() {
    for (std::size_t i = 0, found = plans_.size(); i < found; ++i) {
      ParallelPlan p = plans_[i].plan;
      const int chunks = p.pp * p.vp, layers = job_.model.n_layers;
      const auto counted = cut_with_ends(layers, chunks, 1, 1);
      if (const auto alone = with_ends_alone(job_.stack.can.uneven_stages, p, job_.model)) add_cut(*alone);
      if (chunks <= 2 || (layers + 2) % chunks != 0 || !counted || equal_stages(p, layers)) continue;
      p.chunks = chunks_of(*counted);
      add_cut(p);
    }
  }
  void add_cut(const ParallelPlan& p) {
    if (has(p) || !limits_.admits(p) || unlawful_reason(job_, p)) return;
    RankedPlan counted;
    counted.plan = p;
    counted.prediction = predict(job_, p);
    counted.simulated = counted.prediction.step;
    if (counted.prediction.fits) add(counted);
  }
  void search_advised(const PlanLimits& within, std::optional<Seconds> at_most) {
    const std::vector<PlanLimits> advised = advised_limits(job_.stack, within);
    for (const PlanLimits& each : advised)
      search_within(
          each, {.top = &each == &advised.back() ? kPlainFamilies : kPlainFamilies / 2, .at_most = at_most});
  }
  void search_safe(std::optional<Seconds> at_most) {
    search_within(limits_, {.at_most = at_most, .refine = true});
    if (std::ranges::all_of(judged_, &Judged::offered)) return;
    PlanLimits equal = limits_;  // the fastest has a chunk without a layer
    equal.limits.push_back(pinned(PlanField::stage_split, 0));
    search_within(equal, {.at_most = at_most, .refine = true});
  }
  // Something must lie on the host, or pays there: with as little else as possible that is unusual.
  void search_offloaded() {
    const RankedPlan* safe = best_safe();
    const std::optional<Seconds> at_most =
        safe ? std::optional(safe->simulated * (1 + kFirstLook)) : std::nullopt;
    search_advised(usual_limits(job_, limits_, evidence_, {PlanField::optimizer_offload}), at_most);
    search_advised(usual_limits(job_, limits_, evidence_, kOffloads), at_most);
  }

  const Job& job_;
  const PlanLimits& limits_;
  const DecisionRule& rule_;
  const EvidenceTable& evidence_;
  SearchBudget budget_;
  const SearchOptions& options_;
  const SearchReport& fastest_;
  ClusterSpec smaller_host_;
  const Job job_with_room_;
  bool ended_early_ = false;
  bool needs_room_on_host_ = true;  // as long as some layout has it
  std::vector<RankedPlan> plans_;
  std::vector<Judged> judged_;
};

// At most five, each with something that the recommended one has not: speed, room, fewer kinds of parallelism, or another approach.
class Alternatives {
 public:
  Alternatives(const Pool& pool, std::size_t chosen, double told_apart, double still_of_use)
      : plans_(pool.plans()),
        judged_(pool.judgements()),
        pool_(pool),
        chosen_(chosen),
        step_(plans_[chosen].prediction.step),
        slowest_(step_ * still_of_use) {
    order_.resize(plans_.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::ranges::stable_sort(order_, {}, [&](std::size_t i) { return plans_[i].prediction.step; });
    constexpr double kWorthARow = 0.999, kClearly = 0.9;  // shares of its step, of its memory
    const std::size_t on_paper = pool.on_paper();
    if (chosen != on_paper && plans_[on_paper].prediction.step < step_ * kWorthARow)
      taken_.emplace_back(AlternativeKind::fastest_on_paper, on_paper);
    const Judged& mine = judged_[chosen];
    const auto clearly_faster = [&](std::size_t i) {
      return pool_.safe(i) && plans_[i].prediction.step * (1 + told_apart) < step_;
    };
    take(AlternativeKind::faster,
         [&](std::size_t i) { return clearly_faster(i) && judged_[i].unusual <= mine.unusual; });
    take(AlternativeKind::faster_unusual,
         [&](std::size_t i) { return clearly_faster(i) && judged_[i].unusual > mine.unusual; });
    take(AlternativeKind::less_memory, [&](std::size_t i) {
      return gib(plans_[i].prediction.memory.peak) < kClearly * gib(plans_[chosen].prediction.memory.peak);
    });
    take(AlternativeKind::simpler, [&](std::size_t i) {
      return pool_.safe(i) && (judged_[i].unusual < mine.unusual ||
                               (judged_[i].unusual == mine.unusual && judged_[i].kinds < mine.kinds));
    });
    take_others(kMostAlternatives, [&](std::size_t i) { return judged_[i].unusual == 0 && new_approach(i); });
  }
  // Other approaches that are unusual, where there are too few.
  void take_unusual() {
    take_others(kFewAlternatives, [&](std::size_t i) { return new_approach(i); });
  }
  std::size_t size() const { return taken_.size(); }
  std::vector<OtherLayout> layouts() const {
    std::vector<OtherLayout> out;
    for (const auto& [kind, i] : taken_) {
      out.push_back({kind, plans_[i]});
      out.back().plan.slower = plans_[i].prediction.step / step_ - 1;
    }
    return out;
  }

 private:
  template <class Admits>
  bool take(AlternativeKind kind, const Admits& admits) {
    for (const std::size_t i : order_) {
      const ParallelPlan& p = plans_[i].plan;
      if (i == chosen_ || plans_[i].prediction.step > slowest_) continue;
      if (p.zero_stage > 0 && p.shards() == 1) continue;  // ZeRO of one rank shards nothing
      if (std::ranges::any_of(taken_, [&](const auto& t) {
            // Of a family that may run out of memory, one that surely fits is worth a row of its own.
            return t.second == i || (family_of(plans_[t.second].plan) == family_of(p) &&
                                     pool_.safe(t.second) >= pool_.safe(i));
          }))
        continue;
      if (!admits(i)) continue;
      taken_.emplace_back(kind, i);
      return true;
    }
    return false;
  }
  template <class Admits>
  void take_others(std::size_t most, const Admits& admits) {
    while (taken_.size() < most &&
           take(AlternativeKind::other, [&](std::size_t i) { return pool_.safe(i) && admits(i); })) {
    }
  }
  bool new_approach(std::size_t i) const {
    const Approach mine = approach(plans_[i].plan);
    return mine != approach(plans_[chosen_].plan) && std::ranges::none_of(taken_, [&](const auto& t) {
             return pool_.safe(t.second) && approach(plans_[t.second].plan) == mine;
           });
  }

  const std::vector<RankedPlan>& plans_;
  const std::vector<Judged>& judged_;
  const Pool& pool_;
  std::size_t chosen_;
  Seconds step_, slowest_;
  std::vector<std::size_t> order_;
  std::vector<std::pair<AlternativeKind, std::size_t>> taken_;
};

}  // namespace

std::string_view name(AlternativeKind kind) { return kAlternativeNames[static_cast<std::size_t>(kind)]; }

SearchOptions for_fastest(SearchOptions how) {
  how.budget_s *= kFastestsShare;
  return how;
}

Recommendation recommend(const Job& job, const PlanLimits& limits, const SearchReport& fastest,
                         const DecisionBasis& basis, const SearchOptions& options, bool search_more) {
  Pool pool(job, limits, basis, options, fastest);
  if (search_more) pool.search_more();
  const std::size_t chosen = recommended(pool.judgements(), basis.rule);
  Recommendation out;
  out.plan = pool.plans()[chosen];
  out.safe = pool.safe(chosen);
  out.features = unusual_features(job, basis.evidence, out.plan.plan);
  if (const RankedPlan* plain = pool.best_plain(); plain && !out.features.empty()) out.plain = *plain;
  if (const RankedPlan* safe = pool.best_safe(); safe && !(safe->plan == out.plan.plan))
    out.fastest_safe = *safe;
  if (const RankedPlan* full = pool.best_beyond_host();
      full && full->prediction.step < out.plan.prediction.step)
    out.fuller_host = *full;
  const double apart = basis.rule.told_apart;
  for (const double still_of_use : {kStillOfUse, kForWantOfOthers}) {
    const auto others = [&] { return Alternatives(pool, chosen, apart, still_of_use); };
    const auto enough = [&] { return others().size() >= kFewAlternatives; };
    if (search_more) pool.search_other_approaches(out.plan.prediction.step * still_of_use, enough);
    Alternatives found = others();
    found.take_unusual();
    out.alternatives = found.layouts();
    if (found.size() >= kFewAlternatives) break;
  }
  const std::size_t on_paper = pool.on_paper();  // of all that was found
  out.plan.slower = out.plan.prediction.step / pool.plans()[on_paper].prediction.step - 1;
  out.on_paper = chosen == on_paper;
  out.ended_early = pool.ended_early();
  return out;
}

}  // namespace sextant
