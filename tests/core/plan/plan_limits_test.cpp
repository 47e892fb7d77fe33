#include "core/plan/plan_limits.hpp"

#include <functional>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/support/arbitrary.hpp"

namespace sextant {
namespace {

std::string problem_of(std::string_view text, bool only_equal = false) {
  try {
    parse_plan_limits(text, "--limit", only_equal);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(PlanLimits, AdmitsByFieldAndByPlan) {
  const PlanLimits limits = parse_plan_limits("tp<=8, mbs<=4,rec!=full,zero>=1,dp>1", "--limit");
  ParallelPlan plan = parse_plan_key("tp8.dp2.z1.mbs4");
  EXPECT_TRUE(limits.admits(plan));
  EXPECT_TRUE(limits.admits(PlanField::tp, 8));
  EXPECT_FALSE(limits.admits(PlanField::tp, 16));
  EXPECT_TRUE(limits.admits(PlanField::pp, 64));  // not limited
  for (const auto& change : std::vector<std::function<void(ParallelPlan&)>>{
           [](auto& p) { p.tp = 9; }, [](auto& p) { p.micro_batch = 5; }, [](auto& p) { p.zero_stage = 0; },
           [](auto& p) { p.recompute.kind = RecomputeKind::full; }, [](auto& p) { p.dp = 1; }}) {
    ParallelPlan other = plan;
    change(other);
    EXPECT_FALSE(limits.admits(other)) << plan_key(other);
  }
}

TEST(PlanLimits, WordsPercentAndEffectiveShards) {
  const PlanLimits limits = parse_plan_limits("sp=on,schedule=zb,oo=50,sd=4", "--fix", true);
  ParallelPlan plan = parse_plan_key("tp2.dp4.sp.zb.z3.oo50");
  EXPECT_TRUE(limits.admits(plan));  // shard_degree 0 means all four
  plan.dp = 8;
  EXPECT_FALSE(limits.admits(plan));
  EXPECT_EQ(parse_plan_limits("TP=2,Zero=1,MBS<=4", "--limit"),
            parse_plan_limits("tp=2,z=1,mbs<=4", "--limit"));
  EXPECT_EQ(parse_plan_limits("recompute<=selective", "--limit"), parse_plan_limits("rec<=sel", "--limit"));
  for (const char* on : {"sp=1", "sp=true"})
    EXPECT_EQ(parse_plan_limits(on, "--fix"), parse_plan_limits("sp=on", "--fix"));
  for (const char* off : {"po=0", "po=false"})
    EXPECT_EQ(parse_plan_limits(off, "--fix"), parse_plan_limits("po=off", "--fix"));
  for (std::size_t i = 0; i < kScheduleNames.size(); ++i)  // as a plan file spells them
    EXPECT_EQ(parse_plan_limits(fmt::format("schedule={}", kScheduleNames[i]), "--fix").limits.front().value,
              static_cast<double>(i));
  EXPECT_EQ(parse_plan_limits("schedule=interleaved", "--fix"), parse_plan_limits("schedule=int", "--fix"));
  EXPECT_THROW(parse_plan_limits("po=falsch", "--fix"), ConfigError);
}

TEST(PlanLimits, EveryFieldOfAKeyCanBePinned) {
  const PlanLimits limits =
      parse_plan_limits("b=40M,lb=3,ao=2,hz=4,rec=full12,ax=tp-dp-cp-pp,split=even,oo=12.5", "--fix", true);
  ParallelPlan plan = parse_plan_key("tp2.dp2.full12.ao2.hz4.b40M.lb3.ax-tp-dp-cp-pp.oo12p5");
  EXPECT_TRUE(limits.admits(plan)) << to_string(limits);
  for (const auto& change : std::vector<std::function<void(ParallelPlan&)>>{
           [](auto& p) { p.bucket_elements = 0; }, [](auto& p) { p.last_bucket_split = 1; },
           [](auto& p) { p.offload_horizon = 1; }, [](auto& p) { p.recompute.layers = -1; },
           [](auto& p) { p.recompute = {}; }, [](auto& p) { p.axis_order = ParallelPlan{}.axis_order; },
           [](auto& p) {
             p.chunks = chunks_of({3, 5});
           },
           [](auto& p) { p.optimizer_offload = 0; }}) {
    ParallelPlan other = plan;
    change(other);
    EXPECT_FALSE(limits.admits(other)) << plan_key(other);
  }
  EXPECT_TRUE(parse_plan_limits("rk=all", "--fix").admits(parse_plan_key("full")));
  EXPECT_FALSE(parse_plan_limits("rk=all", "--fix").admits(parse_plan_key("full8")));
  EXPECT_TRUE(parse_plan_limits("rk<=8", "--limit").admits(parse_plan_key("sel")));
  EXPECT_EQ(axis_order_index(ParallelPlan{}.axis_order), 0);
  EXPECT_NE(problem_of("b=40T").find("K, M and G may follow"), std::string::npos) << problem_of("b=40T");
  EXPECT_NE(problem_of("rec=full0").find("full12"), std::string::npos);
  EXPECT_NE(problem_of("ax=tp-tp-dp-pp").find("ax: found tp-tp-dp-pp, expected one of tp-cp-dp-pp"),
            std::string::npos);
}

TEST(PlanLimits, ProblemsNameWhatIsWrong) {
  EXPECT_NE(problem_of("tpp=4").find("found tpp, expected one of tp, cp"), std::string::npos);
  EXPECT_NE(problem_of("micro_bach=4").find("did you mean micro_batch?"), std::string::npos);
  for (const auto& [part, field] : {std::pair{"sel", "rec=sel"},
                                    {"nosp", "sp=off"},
                                    {"nogr", "gr=off"},
                                    {"tp4.pp2", "tp=4,pp=2"},
                                    {"po", "po=on"},
                                    {"zb", "schedule=zb"}})
    EXPECT_NE(problem_of(part).find(std::string("written ") + field), std::string::npos) << problem_of(part);
  EXPECT_EQ(problem_of("faster").find("written"), std::string::npos);
  for (const char* list :
       {"ga=9", "L=8", "sw=2", "replica_microbatches=9", "chunk_layers=8", "shard_weights=2"}) {
    EXPECT_NE(problem_of(list).find("in a plan key"), std::string::npos) << problem_of(list);
    EXPECT_EQ(problem_of(list).find("did you mean"), std::string::npos) << problem_of(list);
  }
  EXPECT_NE(problem_of("tp=0").find("tp: found 0, expected a whole number from 1 to"), std::string::npos);
  EXPECT_NE(problem_of("tp=2.5").find("found 2.5"), std::string::npos);
  EXPECT_NE(problem_of("tp=nan").find("found nan"), std::string::npos);
  EXPECT_NE(problem_of("tp=").find("found nothing"), std::string::npos);
  EXPECT_NE(problem_of("rec=most").find("one of none, sel, full"), std::string::npos);
  EXPECT_NE(problem_of("tp4").find("found tp4, expected a limit"), std::string::npos);
  EXPECT_NE(problem_of("").find("found nothing"), std::string::npos);
  EXPECT_NE(problem_of("tp<=8", true).find("--limit 'tp<=8' narrows"), std::string::npos);
  // Every problem, not only the first.
  const std::string both = problem_of("tpp=4,pp=0");
  EXPECT_NE(both.find("tpp"), std::string::npos);
  EXPECT_NE(both.find("pp: found 0"), std::string::npos);
}

TEST(PlanLimits, InconsistenciesAreFound) {
  for (const char* text :
       {"tp=4,tp=8", "tp<=2,tp>=4", "tp<1", "sp=on,sp=off", "rec<sel,rec!=none", "z>3", "pp>2,pp<3"})
    EXPECT_NE(problem_of(text).find("limits that some value satisfies"), std::string::npos) << text;
  for (const char* text : {"tp=4,tp<=8", "tp>2,tp<4", "rec<sel", "oo>0,oo<1", "z!=0,z!=3"})
    EXPECT_EQ(problem_of(text), "") << text;
  EXPECT_THROW(combine(parse_plan_limits("tp=4", "--fix"), parse_plan_limits("tp<=2", "--limit")),
               ConfigError);
  EXPECT_EQ(combine(parse_plan_limits("tp=4", "--fix"), parse_plan_limits("pp<=2", "--limit")).limits.size(),
            2U);
}

RC_GTEST_PROP(PlanLimits, APlanSatisfiesItsOwnValuesAndTextReadsBack, ()) {
  const ParallelPlan plan = arbitrary::plan();
  PlanLimits own;
  for (int f = 0; f < kPlanFields; ++f) {
    const auto field = static_cast<PlanField>(f);
    own.limits.push_back({field, Relation::equal, field_value(plan, field)});
  }
  RC_ASSERT(own.admits(plan));
  RC_ASSERT(parse_plan_limits(to_string(own), "--fix", true) == own);
}

}  // namespace
}  // namespace sextant
