// What the planner says about its choice: comparisons that sum, fixes that fit, machines that vary.
#include "planner/explain/explain.hpp"

#include <gtest/gtest.h>

#include "planner/explain/framework_setting.hpp"
#include "tests/planner/explain/small_job.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

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

// Replicas that differ make their share of the compute, and fewer GPUs the rest.
TEST(Explain, UnequalMicroBatchesAreAPartOfTheCompute) {
  OwnedJob owned = job_of(79);
  owned.stack.can.uneven_microbatches = true;
  const Job job = owned.job();
  const auto cause = [&](const char* best, const char* other) {
    for (const TimeTerm& t : compare(job, parse_plan_key(best), parse_plan_key(other)).terms)
      if (t.category == TimeCategory::compute) return t.cause;
    return std::string();
  };
  // 16 sequences. One replica has four more than the others: on as many GPUs that is all of it.
  const std::string alike = cause("dp4.z1.mbs1", "dp4.z1.mbs1.ga7-3x3");
  EXPECT_EQ(alike, "micro-batches of replicas differ: 7 where the mean is 4");
  const std::string part = cause("dp8.z1.mbs1", "dp3.z1.mbs1.ga6-5-5");
  EXPECT_NE(part.find(" s of it as micro-batches of replicas differ: 6 where the mean is 5.33"),
            std::string::npos)
      << part;
  EXPECT_NE(part.find("3 GPUs instead of 8"), std::string::npos) << part;
  EXPECT_EQ(cause("dp8.z1.mbs1", "dp4.z1.mbs1"), "4 GPUs instead of 8") << "control: all alike";
}

// torchtitan makes unequal stages by itself: of 8 layers 2-3-2-1.
TEST(Explain, EqualStagesAreSaidWhereAStackMakesOthers) {
  OwnedJob owned = job_of(79);
  const auto setting = [&](const char* key) {
    return layout_setting(parse_plan_key(key), owned.model, owned.stack);
  };
  EXPECT_EQ(setting("pp4"), "") << "control: a stack whose own are equal";
  owned.stack.can.usual_end_layers = 1;
  owned.stack.name = "torchtitan";
  for (const char* equal : {"pp4", "pp4.L2x4"}) {
    EXPECT_NE(setting(equal).find("stages of 2x4 layers need pipeline_parallel_first_stage_less_layers=0"),
              std::string::npos)
        << setting(equal);
    EXPECT_NE(setting(equal).find("torchtitan itself makes L2-3-2-1"), std::string::npos) << setting(equal);
  }
  EXPECT_NE(setting("pp4.L3-2-2-1").find("module_fqns_per_model_part"), std::string::npos);
  EXPECT_EQ(setting("pp4.L2-3-2-1"), "") << "its own";
  EXPECT_EQ(setting("tp4"), "");
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
std::optional<Change> change_within(OwnedJob& owned, const char* plan, const char* less_memory) {
  owned.cluster.device.memory = plan_memory(owned.job(), parse_plan_key(less_memory)).peak;
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
  owned.cluster.node.gpus = 1;
  owned.cluster.node.nics = 1;
  owned.stack.can.parameter_offload = owned.stack.can.activation_offload = false;
  owned.finish();
  for (const char* less_memory : {"mbs1.full.oo10", "mbs1.full.oo25"}) {
    const auto share = change_within(owned, "mbs1.full", less_memory);
    ASSERT_TRUE(share);
    EXPECT_DOUBLE_EQ(share->plan.optimizer_offload, parse_plan_key(less_memory).optimizer_offload)
        << share->text;
  }
  owned.stack.can.optimizer_offload = owned.stack.can.recompute_selective = false;
  owned.finish();
  const auto layers = change_within(owned, "mbs1", "mbs1.full2");
  ASSERT_TRUE(layers);
  EXPECT_EQ(layers->plan.recompute, (Recompute{RecomputeKind::full, 2})) << layers->text;

  OwnedJob many = job_of(79);
  many.stack.can.optimizer_offload = many.stack.can.parameter_offload = many.stack.can.activation_offload =
      false;
  many.stack.can.zero_stages = {0, 1, 2};
  many.stack.rules.reduce_every_microbatch = true;
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
  const auto answers = sensitivities(job, {}, report.ranked.front().plan);
  ASSERT_EQ(answers.size(), 5u);
  for (const Sensitivity& s : answers) {
    EXPECT_GE(s.regret, -1e-9) << s.text;
    if (s.same) {
      EXPECT_NEAR(s.regret, 0, 1e-9);
    }
  }
  // A plan that is not the best one is worth leaving.
  const auto worse = sensitivities(job, {}, parse_plan_key("tp8.pp1.dp1.z0.mbs1"));
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
  enough.memory_limit = n.needed;
  little.memory_limit = Bytes(n.needed.v - 1);
  EXPECT_FALSE(search(job, space, enough).ranked.empty());
  EXPECT_TRUE(search(job, space, little).ranked.empty());
}

// Each divides by itself; what they make together does not.
TEST(Explain, FieldsThatDivideOnlyAloneAreNamedTogether) {
  OwnedJob owned = testing::small_job(3, 8, 8);
  owned.model.n_heads = 8;
  owned.training.global_batch = 48;
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
  can.zero_stages = {0, 1, 2};
  can.partial_offload_from_zero = 3;
  can.parameter_offload = false;
  EXPECT_NE(reason("oo=50").find("use oo100 or oo0"), std::string::npos) << reason("oo=50");
  EXPECT_EQ(reason("oo>=50"), "");
  can = OwnedJob(job_of(79)).stack.can;
  for (const char* control : {"po=1,oo=0", "oo=50", "po=0,oo=100", "po=1,oo=50", "sp=off,tpo=1"}) {
    EXPECT_EQ(reason(control), "") << control;
  }
}

}  // namespace
}  // namespace sextant
