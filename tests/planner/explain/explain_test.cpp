// What the planner says about its choice: comparisons that sum, fixes that fit, machines that vary.
#include "planner/explain/explain.hpp"

#include <atomic>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "planner/simulation/robust.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

using testing::OwnedJob;

OwnedJob job_of(double memory_GiB, int nodes = 2) {
  OwnedJob owned = testing::small_job(nodes, 4, 8);
  owned.cluster.device.memory = from_gib(memory_GiB);
  owned.finish();
  return owned;
}

SearchSpace space_of(const OwnedJob& owned) {
  SearchSpace s = default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
  s.axis_order.resize(1);
  s.activation_offload = {{0, 1}};
  s.optimizer_offload = {0};
  s.parameter_offload = {0};
  return s;
}

TEST(Explain, TermsSumToTheDifference) {
  const OwnedJob owned = job_of(79);
  const Job job = owned.job();
  const ParallelPlan best = parse_plan_key("tp1.pp1.dp8.z1.mbs2"),
                     other = parse_plan_key("tp8.pp1.dp1.z0.mbs2");
  const Comparison c = compare(job, best, other);
  double sum = 0;
  for (const TimeTerm& t : c.terms) sum += t.seconds;
  EXPECT_NEAR(measured_step(job, other, Seconds(0)).v + sum, measured_step(job, best, Seconds(0)).v + sum,
              1e-12);
  EXPECT_GT(c.slower, 0);
  EXPECT_GT(c.terms.front().seconds, 0);
  EXPECT_EQ(c.terms.front().category, TimeCategory::exposed_tp);
  EXPECT_NE(c.text.find("TP over 2 nodes"), std::string::npos) << c.text;
  // The other way round every term changes its sign.
  const Comparison back = compare(job, other, best);
  EXPECT_LT(back.slower, 0);
  EXPECT_EQ(back.text.rfind("faster", 0), 0u) << back.text;
  double reversed = 0;
  for (const TimeTerm& t : back.terms) reversed += t.seconds;
  EXPECT_NEAR(sum, -reversed, 1e-9);
}

TEST(Explain, SaysWhyNot) {
  const OwnedJob owned = job_of(1.0);
  const Job job = owned.job();
  const SearchReport report = search(job, space_of(owned));
  ASSERT_FALSE(report.ranked.empty());
  const ParallelPlan best = report.ranked.front().plan;
  EXPECT_EQ(why_not(job, best, best).verdict, Verdict::best);

  const WhyNot odd = why_not(job, parse_plan_key("tp3.pp1.dp1.mbs1"), best);
  EXPECT_EQ(odd.verdict, Verdict::unlawful);
  EXPECT_NE(odd.lines.front().find("n_heads"), std::string::npos) << odd.lines.front();

  const WhyNot many = why_not(job, parse_plan_key("dp16.mbs1"), best);
  EXPECT_EQ(many.verdict, Verdict::unlawful);
  EXPECT_NE(many.lines.front().find("16 GPUs"), std::string::npos);

  const WhyNot large = why_not(job, parse_plan_key("dp8.mbs2.z0"), best);
  ASSERT_EQ(large.verdict, Verdict::too_large);
  ASSERT_TRUE(large.fix.has_value());
  EXPECT_TRUE(large.fix->prediction.fits);
  EXPECT_FALSE(unlawful(job, large.fix->plan));
  EXPECT_LE(plan_memory(job, large.fix->plan).peak, owned.cluster.device.memory);
}

// Of degrees that fit the one that is next, though others are faster.
TEST(Explain, TheSmallestChangeIsTheNearest) {
  OwnedJob owned = job_of(79);
  owned.model.n_heads = 8;
  owned.finish();
  const Job job = owned.job();
  ParallelPlan wide = parse_plan_key("tp8.pp1.dp1.z0.mbs2");
  wide.tp = 16;  // more than there are GPUs
  const auto change = smallest_fitting_change(job, wide);
  ASSERT_TRUE(change);
  EXPECT_EQ(change->fields, 1);
  EXPECT_EQ(change->plan.tp, 8) << change->text;
  EXPECT_LT(predict(job, parse_plan_key("tp2.pp1.dp4.z0.mbs2")).step, change->prediction.step);
}

// The smallest change of a plan for which a little memory is missing: it fits `smaller`'s peak.
std::optional<Change> change_within(OwnedJob& owned, const char* plan, const char* leaner) {
  owned.cluster.device.memory = plan_memory(owned.job(), parse_plan_key(leaner)).peak;
  owned.finish();
  EXPECT_TRUE(too_large(owned.job(), plan_memory(owned.job(), parse_plan_key(plan)))) << plan;
  return smallest_fitting_change(owned.job(), parse_plan_key(plan));
}

TEST(Explain, AnotherGridIsFurtherThanAnyZeroStage) {
  OwnedJob owned = job_of(79);
  owned.stack.can.optimizer_offload = owned.stack.can.parameter_offload = owned.stack.can.activation_offload =
      false;
  for (const char* sharded : {"dp8.z2.mbs1.full", "dp8.z3.mbs1.full"}) {
    const auto change = change_within(owned, "dp8.z0.mbs1.full", sharded);
    ASSERT_TRUE(change);
    EXPECT_EQ(change->fields, 1);
    EXPECT_EQ(change->plan.tp, 1) << change->text;
    EXPECT_GT(change->plan.zero_stage, 0) << change->text;
  }
}

TEST(Explain, TheSmallestChangeTriesSharesLayersAndBuckets) {
  OwnedJob owned = job_of(79, 1);
  owned.cluster.node.gpus = 1, owned.cluster.node.nics = 1;
  owned.stack.can.parameter_offload = owned.stack.can.activation_offload = false;
  owned.finish();
  for (const char* leaner : {"mbs1.full.oo10", "mbs1.full.oo25"}) {
    const auto share = change_within(owned, "mbs1.full", leaner);
    ASSERT_TRUE(share);
    EXPECT_DOUBLE_EQ(share->plan.optimizer_offload, parse_plan_key(leaner).optimizer_offload) << share->text;
  }
  owned.stack.can.optimizer_offload = owned.stack.can.recompute_selective = false;
  owned.finish();
  const auto layers = change_within(owned, "mbs1", "mbs1.full2");
  ASSERT_TRUE(layers);
  EXPECT_EQ(layers->plan.recompute, (Recompute{RecomputeKind::full, 2})) << layers->text;

  OwnedJob many = job_of(79);
  many.stack.can.optimizer_offload = many.stack.can.parameter_offload = many.stack.can.activation_offload =
      false;
  many.stack.can.zero_stages = {0, 1, 2}, many.stack.rules.reduce_every_microbatch = true;
  const auto bucket = change_within(many, "dp8.z2.mbs1.full.b400M", "dp8.z2.mbs1.full.b25M");
  ASSERT_TRUE(bucket);
  EXPECT_EQ(bucket->fields, 1);
  EXPECT_NE(bucket->plan.bucket_elements, 400'000'000) << bucket->text;
}

TEST(Explain, ChoicesAreSensitiveToWhatTheyRestOn) {
  const OwnedJob owned = job_of(79);
  const Job job = owned.job();
  const SearchSpace space = space_of(owned);
  const SearchReport report = search(job, space);
  const auto answers = sensitivities(job, space, report.ranked.front().plan);
  ASSERT_EQ(answers.size(), 5u);
  for (const Sensitivity& s : answers) {
    EXPECT_GE(s.regret, -1e-9) << s.text;
    if (s.same) {
      EXPECT_NEAR(s.regret, 0, 1e-9);
    }
  }
  // A plan that is not the best one is worth leaving.
  const auto worse = sensitivities(job, space, parse_plan_key("tp8.pp1.dp1.z0.mbs1"));
  for (const Sensitivity& s : worse) {
    EXPECT_FALSE(s.same);
    EXPECT_GT(s.regret, 0.05) << s.text;
  }
}

TEST(Explain, NothingFitsSaysWhatWould) {
  OwnedJob owned = job_of(0.15, 1);
  owned.stack.can.activation_offload = owned.stack.can.optimizer_offload = owned.stack.can.parameter_offload =
      false;
  owned.stack.can.zero_stages = {0, 1};
  const Job job = owned.job();
  const SearchSpace space =
      default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
  ASSERT_TRUE(search(job, space).ranked.empty());
  const NothingFits n = why_nothing_fits(job, space, 64);
  ASSERT_TRUE(n.closest.has_value());
  EXPECT_GT(n.needed, owned.cluster.device.memory);
  EXPECT_FALSE(n.lines.empty());
  if (n.fewest.found) {
    EXPECT_GT(n.fewest.found->gpus, owned.cluster.gpus());
    EXPECT_TRUE(n.fewest.found->report.ranked.front().prediction.fits);
  }
  SearchOptions enough, little;
  enough.memory_limit = n.needed, little.memory_limit = Bytes(n.needed.v - 1);
  EXPECT_FALSE(search(job, space, enough).ranked.empty());
  EXPECT_TRUE(search(job, space, little).ranked.empty());
}

// Each divides by itself; what they make together does not.
TEST(Explain, FieldsThatDivideOnlyAloneAreNamedTogether) {
  OwnedJob owned = testing::small_job(3, 8, 8);
  owned.model.n_heads = 8, owned.training.global_batch = 48;
  owned.finish();
  const auto cause = [&](const char* limits) {
    const SearchSpace space = default_space(owned.model, owned.training, owned.cluster.device, 24,
                                            parse_plan_limits(limits, "--fix"));
    return why_nothing_fits(owned.job(), space, 24).cause;
  };
  EXPECT_EQ(cause("tp=8,pp=2,cp=1"), "tp * cp * pp is 16, expected a divisor of the 24 GPUs");
  EXPECT_EQ(cause("tp=4,pp=2,dp=6"), "tp * cp * pp * dp is 48, 96, 144, 192, ..., expected the 24 GPUs");
  EXPECT_EQ(cause("tp=4,pp=2,cp=1,dp=6"), "tp * cp * pp * dp is 48, expected the 24 GPUs");
  EXPECT_EQ(cause("dp=24,mbs=3"), "mbs * dp is 72, expected a divisor of the 48 sequences of a step");
}

TEST(Scale, FewestGpusHoldTheDeadline) {
  const OwnedJob owned = job_of(79);
  const Job job = owned.job();
  const auto curve = scaling_curve(job, {1, 2, 4, 8}, {});
  ASSERT_EQ(curve.size(), 4u);
  for (std::size_t i = 1; i < curve.size(); ++i)
    EXPECT_LT(curve[i].report.ranked.front().prediction.step,
              curve[i - 1].report.ranked.front().prediction.step);
  EXPECT_DOUBLE_EQ(curve.front().efficiency, 1.0);
  EXPECT_LT(curve.back().efficiency, 1.0);
  const Seconds deadline = curve[2].report.ranked.front().prediction.step * 1.001;
  const auto found = fewest_gpus(job, deadline, 8, {});
  ASSERT_TRUE(found.found.has_value());
  EXPECT_EQ(found.found->gpus, 4);
  EXPECT_EQ(found.next_smaller, 3);
  EXPECT_TRUE(found.exact);
  // What the search leaves out for being too slow is not what it looks for.
  EXPECT_EQ(found.found->report.ranked.front().plan, curve[2].report.ranked.front().plan);
  const auto never = fewest_gpus(job, Seconds(1e-6), 8, {});
  EXPECT_FALSE(never.found.has_value());
  ASSERT_TRUE(never.most.has_value());
  EXPECT_EQ(never.most->report.ranked.front().plan, curve[3].report.ranked.front().plan);
  EXPECT_EQ(fewest_gpus(job, std::nullopt, 8, {}).found->gpus, 1);
}

// Against one search per number of GPUs.
TEST(Scale, FewestGpusAreTheFewestOfAllNumbers) {
  const PlanLimits pinned = parse_plan_limits("oo=0,po=off,ao=0", "--fix");
  const auto first = [](const std::vector<ScalePoint>& curve, Seconds deadline) {
    for (const ScalePoint& p : curve)
      if (!p.report.ranked.empty() && p.report.ranked.front().prediction.step <= deadline) return p.gpus;
    return 0;
  };
  const std::vector<int> all = {1, 2, 3, 4, 5, 6, 7, 8};
  std::set<int> answers;
  for (const double memory_GiB : {0.2, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.8}) {
    const OwnedJob owned = job_of(memory_GiB);
    const int expected = first(scaling_curve(owned.job(), all, pinned), Seconds(INFINITY));
    const FewestGpus f = fewest_gpus(owned.job(), std::nullopt, 8, pinned);
    EXPECT_TRUE(f.exact);
    EXPECT_EQ(f.found ? f.found->gpus : 0, expected) << memory_GiB;
    EXPECT_EQ(f.every_to, f.found ? expected - 1 : 8);
    answers.insert(expected);
  }
  EXPECT_TRUE(answers.contains(3) || answers.contains(5) || answers.contains(6) || answers.contains(7));
  const OwnedJob owned = job_of(79);
  const auto curve = scaling_curve(owned.job(), all, pinned);
  for (const ScalePoint& p : curve) {
    const Seconds deadline = p.report.ranked.front().prediction.step * 1.0001;
    const FewestGpus f = fewest_gpus(owned.job(), deadline, 8, pinned);
    ASSERT_TRUE(f.found.has_value());
    EXPECT_TRUE(f.exact);
    EXPECT_EQ(f.found->gpus, first(curve, deadline));
  }
  // Without time for every number, whole nodes are tried, and it says so.
  const FewestGpus hurried = fewest_gpus(owned.job(), std::nullopt, 8, pinned, {}, 1e-9);
  EXPECT_FALSE(hurried.exact);
  EXPECT_EQ(hurried.every_to, 0);
  EXPECT_EQ(hurried.found->gpus, 4);
  EXPECT_TRUE(hurried.in_time);
  // Without time for these either, all of the GPUs are the answer, and nothing is said of fewer.
  SearchOptions no_time;
  no_time.budget_s = 1e-9;
  const FewestGpus spent = fewest_gpus(owned.job(), std::nullopt, 8, pinned, no_time);
  ASSERT_TRUE(spent.found.has_value());
  EXPECT_EQ(spent.found->gpus, 8);
  EXPECT_FALSE(spent.exact);
  EXPECT_FALSE(spent.in_time);
  EXPECT_EQ(spent.next_smaller, 0);
}

TEST(Scale, ParetoFrontTradesTimeForMemory) {
  const OwnedJob owned = job_of(79);
  const auto all = pareto_front(owned.job(), space_of(owned), {}, 0.2);
  EXPECT_TRUE(all.exact);
  const auto& front = all.plans;
  ASSERT_GT(front.size(), 2u);
  for (std::size_t i = 1; i < front.size(); ++i) {
    EXPECT_GE(front[i].prediction.step, front[i - 1].prediction.step);
    EXPECT_LT(front[i].prediction.memory.peak, front[i - 1].prediction.memory.peak);
  }
}

TEST(Scale, LeanestPlansAreTheLeanest) {
  const OwnedJob owned = job_of(79);
  const Job job = owned.job();
  const SearchSpace space = space_of(owned);
  const LowestMemoryPlans lean = lowest_memory_plans(job, space);
  ASSERT_FALSE(lean.report.ranked.empty());
  EXPECT_LE(lean.report.ranked.front().prediction.memory.peak, lean.limit);
  EXPECT_LT(lean.needs_more, lean.limit);
  EXPECT_EQ(lean.limit.v - lean.needs_more.v, 1);
  EXPECT_TRUE(lean.proved);
  SearchOptions below;
  below.memory_limit = lean.needs_more;
  EXPECT_TRUE(search(job, space, below).ranked.empty());
  below.memory_limit = lean.limit;
  EXPECT_FALSE(search(job, space, below).ranked.empty());
  EXPECT_LE(lean.limit, pareto_front(job, space, {}, 0.2).plans.back().prediction.memory.peak);
}

TEST(Scale, ManySearchesShareOneBudget) {
  const OwnedJob owned = job_of(79);
  SearchOptions hurried;
  hurried.budget_s = 1e-9;
  EXPECT_FALSE(pareto_front(owned.job(), space_of(owned), hurried).exact);
  std::atomic<bool> cancel{true};
  SearchOptions stopped;
  stopped.cancel = &cancel;
  EXPECT_TRUE(scaling_curve(owned.job(), {1, 2}, {}, stopped).empty());
}

TEST(Explain, SpacesThatCannotHoldAnythingAreKnownAtOnce) {
  OwnedJob owned = job_of(79);
  const auto reason = [&](const char* limits) {
    const Job job = owned.job();
    return never_possible(job, default_space(owned.model, owned.training, owned.cluster.device,
                                             owned.cluster.gpus(), parse_plan_limits(limits, "--limit")))
        .value_or("");
  };
  EXPECT_EQ(reason("tp<=8"), "");
  EXPECT_NE(reason("mbs>=1000").find("leave no value of mbs"), std::string::npos) << reason("mbs>=1000");
  for (const char* beyond : {"ao=999", "rk=999", "vp=999"})
    EXPECT_NE(reason(beyond).find("layers)"), std::string::npos) << beyond << ": " << reason(beyond);
  EXPECT_EQ(reason("lb=3"), "");
  owned.stack.can.last_bucket_split = owned.stack.can.zero_bubble = false;
  EXPECT_NE(reason("lb=3").find("cannot split the last bucket"), std::string::npos) << reason("lb=3");
  EXPECT_NE(reason("schedule=zb"), "");
  EXPECT_EQ(reason("lb<=3"), "");
  owned.stack.can.interleaved_microbatches = InterleavedCount::multiples_of_pp;  // a question of sizes
  EXPECT_EQ(reason("vp=2"), "");
}

// Values that the stack takes, though not beside one another; what one of them leaves open may still make room for it.
TEST(Explain, LimitsThatTheStackTakesOnlyApartAreKnownAtOnce) {
  OwnedJob owned = job_of(79);
  StackCapabilities& can = owned.stack.can;
  can.parameter_offload_needs_optimizer = can.optimizer_offload_needs_parameters = true;
  can.overlap_tp_needs_sequence_parallel = true;
  can.parameter_offload_from_zero = can.optimizer_offload_from_zero = 2;
  const auto reason = [&](const char* limits) {
    const Job job = owned.job();
    return never_possible(job, default_space(owned.model, owned.training, owned.cluster.device,
                                             owned.cluster.gpus(), parse_plan_limits(limits, "--limit")))
        .value_or("");
  };
  for (const char* open : {"po=1", "oo=100", "po=1,oo=100", "po=1,z>=2", "sp=off", "tpo=1"}) {
    EXPECT_EQ(reason(open), "") << open;
  }
  for (const auto& [limits, text] : {std::pair{"po=1,oo=0", "only with all of the optimizer state"},
                                     {"oo=50", "only with the parameters"},
                                     {"po=0,oo=100", "only with the parameters"},
                                     {"po=1,oo=50", "only with all of the optimizer state"},
                                     {"sp=off,tpo=1", "only with sequence parallelism"}}) {
    EXPECT_NE(reason(limits).find(text), std::string::npos) << limits << ": " << reason(limits);
  }
  // Activations on the host only beside full recomputation: possible unless that is pinned away.
  can.activation_offload_needs_recompute = true;
  for (const char* open : {"ao=4", "ao>=1", "ao!=0", "ao=4,rec=full", "ao=4,hz=2", "hz=2"})
    EXPECT_EQ(reason(open), "") << open;
  EXPECT_NE(reason("ao=4,rec=none").find("only together with full"), std::string::npos)
      << reason("ao=4,rec=none");
  can = OwnedJob(job_of(79)).stack.can;
  can.offload_with_pp = false;
  EXPECT_NE(reason("pp>1,po=1").find("beside pipeline stages"), std::string::npos) << reason("pp>1,po=1");
  EXPECT_EQ(reason("po=1"), "");
  can.offload_with_pp = true;
  can.zero_stages = {0, 1, 2}, can.partial_offload_from_zero = 3, can.parameter_offload = false;
  EXPECT_NE(reason("oo=50").find("use oo100 or oo0"), std::string::npos) << reason("oo=50");
  EXPECT_EQ(reason("oo>=50"), "");
  can = OwnedJob(job_of(79)).stack.can;
  for (const char* control : {"po=1,oo=0", "oo=50", "po=0,oo=100", "po=1,oo=50", "sp=off,tpo=1"}) {
    EXPECT_EQ(reason(control), "") << control;
  }
}

TEST(Robust, JitterCostsTimeAndRepeats) {
  const OwnedJob owned = job_of(79);
  const Job job = owned.job();
  const ParallelPlan plan = parse_plan_key("tp2.pp2.dp2.z1.mbs1");
  const Seconds steady = predict(job, plan).step;
  const RobustStep none = robust_step(job, plan, {});
  EXPECT_NEAR(none.mean.v / steady.v, 1, 1e-12);
  EXPECT_DOUBLE_EQ(none.p90.v, steady.v);
  const JitterSpec jitter{0.05, 0.2};
  const RobustStep some = robust_step(job, plan, jitter), again = robust_step(job, plan, jitter);
  EXPECT_GT(some.mean, steady);
  EXPECT_GT(some.p90, some.p50);
  EXPECT_EQ(some.p90, again.p90);
  EXPECT_NE(some.p90, robust_step(job, plan, jitter, {64, 2}).p90);
  // Only what leaves the node feels the network.
  const JitterSpec network{0.0, 0.3};
  const RobustStep inside = robust_step(job, parse_plan_key("tp4.pp1.dp1.mbs1"), network);
  EXPECT_DOUBLE_EQ(inside.p90.v, inside.p50.v);
}

// System: a model that is off by next to nothing, on a machine that varies much. Expectation: what one step of ten exceeds
// lies within the interval of nine of ten; without jitter the interval is the model's.
TEST(Robust, IntervalHoldsTheSpreadOfJitter) {
  OwnedJob owned = job_of(79);
  const ParallelPlan plan = parse_plan_key("tp2.pp2.dp2.z1.mbs1");
  for (const double model : {1e-3, 1.0})
    for (const JitterSpec jitter : {JitterSpec{0.05, 0.2}, JitterSpec{0.2, 0.0}, JitterSpec{1e-4, 0.0}}) {
      owned.cluster.jitter = jitter;
      const Job job = owned.job();
      const Prediction still = predict(job, plan, model);
      const RobustStep sampled = robust_step(job, plan, jitter);
      const Prediction p = expected(still, sampled);
      EXPECT_EQ(p.step, std::max(still.step, sampled.mean));
      EXPECT_LE(p.step_lower, sampled.p05);
      EXPECT_GE(p.step_upper, sampled.p90);
      EXPECT_GE(p.step_upper, sampled.p95);
      EXPECT_GE(p.step_upper / p.step, still.step_upper / still.step * (1 - 1e-12));
      EXPECT_LE(p.step_lower / p.step, still.step_lower / still.step * (1 + 1e-12));
      EXPECT_EQ(ranked_step(p, RankBy::p90), sampled.p90);
      EXPECT_EQ(ranked_step(p, RankBy::undisturbed), still.step);
    }
  owned.cluster.jitter = {};
  const Prediction still = predict_under(owned.job(), plan, RankBy::p90);
  EXPECT_FALSE(still.jitter);
  EXPECT_EQ(ranked_step(still, RankBy::p90), still.step);
}

TEST(Robust, ComparisonsAreOfTheStepThatRanks) {
  OwnedJob owned = job_of(79);
  owned.cluster.jitter = {0.05, 0.3};
  const Job job = owned.job();
  const ParallelPlan a = parse_plan_key("tp2.pp2.dp2.z1.mbs1"), b = parse_plan_key("tp4.pp2.dp1.mbs1");
  for (const RankBy by : {RankBy::undisturbed, RankBy::expected, RankBy::p90}) {
    const Comparison c = compare(job, a, b, by);
    const Seconds first = ranked_step(predict_under(job, a, by), by),
                  other = ranked_step(predict_under(job, b, by), by);
    EXPECT_NEAR(c.slower, other / first - 1, 1e-9);
    EXPECT_NEAR((c.best_step - c.best_jitter).v, predict(job, a).step.v, 1e-9 * first.v);
    EXPECT_EQ(c.best_jitter > Seconds(0), by != RankBy::undisturbed);
    EXPECT_EQ(why_not(job, b, a, by).comparison->other_step, c.other_step);
  }
}

}  // namespace
}  // namespace sextant
