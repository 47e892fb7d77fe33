// The bounds never exceed the simulator, over random models, clusters and plans; and they are tight where they should be.
#include "planner/search/bounds/bound.hpp"

#include <initializer_list>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/plan/pipeline_order.hpp"
#include "planner/lowering/lower.hpp"
#include "planner/search/search_cache.hpp"
#include "planner/simulation/predict.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

double simulated(const Job& job, const ParallelPlan& plan, const PlanLinks& links) {
  const auto graph = lower(job.model, job.training, links, plan, job.stack, {.operands = false});
  SimulateScratch scratch;
  return simulated_step(graph, price(graph, job.cost), simulate_options(job, plan), scratch).v;
}

RC_GTEST_PROP(Bound, NeverExceedsTheSimulator, ()) {
  const testing::RandomJob random;
  const Job job = random.job();
  const ParallelPlan plan = random.plan();
  RC_PRE(!unlawful(job, plan));
  const PlanLinks links = plan_links(job.topology, plan);
  const double bound = step_lower_bound(job, std::span(&plan, 1), links).v,
               step = simulated(job, plan, links);
  RC_TAG(step > 1.05 * bound ? "loose" : "tight");
  if (bound > step * (1 + 1e-9))
    RC_FAIL(plan_key(plan) + ": bound " + std::to_string(bound) + ", step " + std::to_string(step));
}

SearchSpace space_of_world(int world) {
  SearchSpace space;
  space.world = world;
  return space;
}

// What a search has at hand to ask of a plan in so many micro-batches.
struct Asked {
  Asked(const Job& job, const ParallelPlan& plan, int m)
      : chunks(layer_ranges(plan, job.model.n_layers)),
        space(space_of_world(plan.world())),
        cache(job, space) {
    pipeline_times(plan, chunks, job.stack, m, cache.layers(plan), false, times);
  }
  std::vector<LayerRange> chunks;
  SearchSpace space;
  SearchCache cache;
  PipelineTimes times;
  SlotScratch scratch;
};

// Of all plans that differ in buckets and overlaps alone, and where the start is open in what is offloaded of the state.
double least_bound(const Job& job, const ParallelPlan& plan, Start start) {
  const int m = microbatches(plan, job.training);
  Asked asked(job, plan, m);
  auto& [chunks, space, cache, times, scratch] = asked;
  const StageStates least = least_state_times(job, plan, cache.links(plan), chunks, start);
  const StageStates* const one = &least;
  return std::max(closed_bound(times, least, cache.closing(plan)),
                  slot_bound(times, std::span(&one, 1), cache.closing(plan), cache.steps(plan, m), scratch));
}

// What the search asks before it looks at state.
RC_GTEST_PROP(Bound, WithoutStateIsNotAboveTheSimulator, ()) {
  const testing::RandomJob random;
  const Job job = random.job();
  const ParallelPlan plan = random.plan();
  RC_PRE(!unlawful(job, plan));
  const int m = microbatches(plan, job.training);
  Asked asked(job, plan, m);
  auto& [chunks, space, cache, times, scratch] = asked;
  const double closing = cache.stateless_closing(plan);
  double bound = std::max(closed_bound(times, {}, closing),
                          slot_bound(times, {}, closing, cache.steps(plan, m), scratch));
  const double step = simulated(job, plan, cache.links(plan));
  for (const Start start : {Start::open, Start::known})
    bound = std::max(bound, least_bound(job, plan, start));
  if (bound > step * (1 + 1e-9))
    RC_FAIL(plan_key(plan) + ": bound " + std::to_string(bound) + ", step " + std::to_string(step));
}

// Few micro-batches in the place of all: never more, and hardly less.
RC_GTEST_PROP(Bound, OfFewMicrobatchesIsNotAboveThatOfAll, ()) {
  const testing::RandomJob random;
  const Job job = random.job();
  const ParallelPlan plan = random.plan();
  RC_PRE(!unlawful(job, plan));
  const int m = *rc::gen::inRange(1, 700);
  RC_PRE(plan.schedule != PipelineSchedule::interleaved || m >= plan.pp);
  Asked asked(job, plan, m);
  auto& [chunks, space, cache, times, scratch] = asked;
  const StageStates least = least_state_times(job, plan, cache.links(plan), chunks, Start::known);
  const StageStates* const one = &least;
  const SlotSteps &all = cache.steps(plan, m), &few = cache.few_steps(plan, m, times);
  const double of_all = slot_bound(times, std::span(&one, 1), 0, all, scratch),
               of_few = slot_bound(times, std::span(&one, 1), 0, few, scratch);
  RC_TAG(times.offloaded.empty() ? "stays" : "copied");
  RC_TAG(few.left_out == 0 ? "all" : of_few < 0.98 * of_all ? "few, loose" : "few, tight");
  if (of_few > of_all * (1 + 1e-9))
    RC_FAIL(plan_key(plan) + ", " + std::to_string(m) + " micro-batches: " + std::to_string(of_few) +
            " of few, " + std::to_string(of_all) + " of all");
}

// What the bound of few micro-batches rests on: a stage's slots before the cut are its first of the whole schedule, those behind it
// the last, of micro-batches that come later by those left out.
TEST(Bound, FewSlotsAreTheFirstAndTheLastOfAll) {
  int shorter = 0;
  for (const int pp : {1, 2, 3, 4, 7, 8, 16})
    for (const int vp : {1, 2, 3, 5})
      for (const int m : {16, 24, 33, 64, 67, 100, 128, 250, 257}) {
        const PipelineSchedule schedule =
            vp > 1 ? PipelineSchedule::interleaved : PipelineSchedule::one_f_one_b;
        if (vp > 1 && (pp == 1 || m < pp)) continue;
        const SlotSteps few = few_slot_steps(schedule, pp, vp, m);
        EXPECT_EQ(few.walked + few.left_out, m);
        if (few.left_out == 0) continue;
        ++shorter;
        std::vector<std::size_t> before(static_cast<std::size_t>(pp));
        for (std::size_t i = 0; i < few.cut; ++i)
          ++before[few.steps[i].of / kSlotKinds % static_cast<std::size_t>(pp)];
        for (int stage = 0; stage < pp; ++stage) {
          const std::vector<Slot> all = pipeline_order(schedule, pp, vp, m, stage);
          std::vector<Slot> walked = pipeline_order(schedule, pp, vp, few.walked, stage);
          const auto cut =
              walked.begin() + static_cast<std::ptrdiff_t>(before[static_cast<std::size_t>(stage)]);
          EXPECT_TRUE(std::equal(walked.begin(), cut, all.begin())) << pp << " " << vp << " " << m;
          for (auto slot = cut; slot != walked.end(); ++slot)
            slot->microbatch += static_cast<std::uint32_t>(few.left_out);
          EXPECT_TRUE(std::equal(cut, walked.end(), all.end() - (walked.end() - cut)))
              << pp << " " << vp << " " << m;
        }
      }
  EXPECT_GT(shorter, 100);
  EXPECT_EQ(few_slot_steps(PipelineSchedule::gpipe, 4, 1, 128).left_out, 0) << "no stage takes turns";
}

// What the search asks of all shares of the update on the host at once, in buckets.
RC_GTEST_PROP(Bound, OfAnyShareIsNotAboveThatOfEach, ()) {
  const testing::RandomJob random;
  const Job job = random.job();
  ParallelPlan plan = random.plan();
  plan.parameter_offload = false;
  plan.activation_offload = 0;
  const std::vector<double> shares{0, 0.3, 1};
  std::vector<ParallelPlan> lawful;
  for (const double share : shares) {
    plan.optimizer_offload = share;
    if (!unlawful(job, plan)) lawful.push_back(plan);
  }
  RC_PRE(!lawful.empty());
  const PlanLinks links = plan_links(job.topology, plan);
  const int m = microbatches(plan, job.training);
  Asked asked(job, lawful.front(), m);
  auto& [chunks, space, cache, times, scratch] = asked;
  StateScratch state_scratch;
  const StageStates any =
      state_times(job, lawful.front(), links, stage_buckets(job, lawful.front()), state_scratch, shares);
  const StageStates* const one = &any;
  const double closing = closing_time(job, links),
               bound =
                   std::max(closed_bound(times, any, closing),
                            slot_bound(times, std::span(&one, 1), closing, cache.steps(plan, m), scratch));
  for (const ParallelPlan& p : lawful)
    if (const double step = simulated(job, p, links); bound > step * (1 + 1e-9))
      RC_FAIL(plan_key(p) + ": bound " + std::to_string(bound) + ", step " + std::to_string(step));
}

// Where the network decides, gradients in one piece tell most of it; where the host does, its update.
TEST(Bound, LeastStateTellsWhatTheNetworkAndTheHostTake) {
  const testing::OwnedJob owned = testing::slow_network_job();
  const Job job = owned.job();
  const auto share = [&](const char* key, Start start) {
    const ParallelPlan plan = parse_plan_key(key);
    return least_bound(job, plan, start) / simulated(job, plan, plan_links(job.topology, plan));
  };
  EXPECT_GT(share("tp4.pp1.dp4.z1.mbs12", Start::open), 0.7);
  EXPECT_GT(share("tp4.pp1.dp4.z1.mbs12.oo100", Start::known), 0.75);
  EXPECT_LT(share("tp4.pp1.dp4.z1.mbs12.oo100", Start::open), 0.7) << "nothing is said of the host";
  testing::OwnedJob alone = testing::slow_network_job();
  alone.training.reduction = Dtype::bf16;
  alone.finish();
  EXPECT_LT(least_bound(alone.job(), parse_plan_key("tp4.pp1.dp4.z1.mbs12"), Start::open),
            least_bound(job, parse_plan_key("tp4.pp1.dp4.z1.mbs12"), Start::open));
}

// Bounds of these layouts lie at most so far below their steps, and never above.
void expect_tight(std::initializer_list<const char*> keys, double share,
                  const testing::OwnedJob& owned = testing::slow_network_job()) {
  const Job job = owned.job();
  for (const char* key : keys) {
    const ParallelPlan plan = parse_plan_key(key);
    ASSERT_FALSE(unlawful(job, plan)) << key;
    const PlanLinks links = plan_links(job.topology, plan);
    const double bound = step_lower_bound(job, std::span(&plan, 1), links).v,
                 step = simulated(job, plan, links);
    EXPECT_LE(bound, step * (1 + 1e-9)) << key;
    EXPECT_GT(bound, share * step) << key;
  }
}

// A small model with a large vocabulary on a slow network: its tied embedding is summed over the first and the last stage,
// and gathers and reductions of few large buckets are waited for.
TEST(Bound, IsTightWhereTheNetworkDecides) {
  expect_tight({"tp4.pp4.dp1.mbs4", "tp2.pp4.vp2.dp2.z1.mbs2", "tp1.pp4.dp4.z1.mbs1.nogr",
                "tp4.pp1.dp4.z1.mbs12", "tp4.pp1.dp4.z1.mbs12.b100M"},
               0.95);
}

// Adam on the host, its copies both ways, and gradients that are reduced for every micro-batch through two places.
TEST(Bound, IsTightWhereTheHostDecides) {
  expect_tight(
      {"tp4.pp1.dp4.z1.mbs12.oo100", "tp4.pp1.dp4.z2.mbs6.oo100.b25M", "tp2.pp2.dp4.z2.mbs3.oo50",
       "tp2.pp2.vp4.dp4.z2.mbs1.oo100.b25M", "tp1.pp4.vp2.dp4.z2.mbs1", "tp2.pp4.vp2.dp2.z2.mbs2.b25M"},
      0.9);
}

// Parameters fetched ahead on the compute lane itself, and what collectives beside it slow on a stage of a pipeline. Without
// either the bound is as far below as that takes.
TEST(Bound, IsTightWhereParametersAreFetchedForEveryMicroBatch) {
  testing::OwnedJob owned = testing::small_job(2, 4, 16);
  owned.training.global_batch = 128;
  owned.stack.rules.reduce_every_microbatch = true;
  owned.stack.kernels.comm_slows_compute = 0.3;
  owned.finish();
  expect_tight({"tp1.pp2.dp4.z2.mbs1.po.hz2.nopg", "tp1.pp2.vp4.dp4.z2.mbs1.po.hz2.nopg"}, 0.9, owned);
  expect_tight({"tp1.pp2.vp4.dp4.z2.mbs1"}, 0.95, owned);
}

// Gradients summed on the host hold up compute, in which nothing slows it; units gathered again for every micro-batch.
TEST(Bound, IsTightWhereGradientsAreSummedOnTheHost) {
  for (const double host_link : {1.0, 0.1}) {
    testing::OwnedJob owned = testing::small_job(1, 8, 16);
    owned.training.global_batch = 64;
    owned.stack.rules.reduce_every_microbatch = owned.stack.rules.zero2_by_units = true;
    owned.stack.rules.host_sums_gradients = owned.stack.rules.host_parameters_are_master = true;
    owned.stack.kernels.comm_slows_compute = 0.3;
    owned.cluster.device.host_link = owned.cluster.device.host_link * host_link;
    owned.finish();
    expect_tight(
        {"tp2.sp.dp4.z3.mbs1.po.oo100", "tp2.sp.dp4.z3.mbs1.po.oo100.nogr.nopg", "dp8.z3.mbs2.po.oo100.full"},
        0.8, owned);
    expect_tight({"dp8.z2.mbs2.nopg", "tp2.sp.dp4.z2.mbs1"}, 0.8, owned);
  }
}

// The head's parameters may come after the final norm has run.
TEST(Bound, WaitsForTheHeadsParametersAtTheHead) {
  testing::OwnedJob owned = testing::small_job(1, 8, 2);
  owned.model.vocab_size = 100'000;
  owned.finish();
  const Job job = owned.job();
  const ParallelPlan plan = parse_plan_key("tp1.pp1.dp8.z1.mbs1.lb3.nogr");
  const PlanLinks links = plan_links(job.topology, plan);
  const double bound = step_lower_bound(job, std::span(&plan, 1), links).v,
               step = simulated(job, plan, links);
  EXPECT_LE(bound, step * (1 + 1e-9));
  EXPECT_GT(bound, 0.99 * step);
}

// What the search asks while buckets, overlaps and offloaded activations are open.
RC_GTEST_PROP(Bound, OfSeveralPlansIsNotAboveAnyOfThem, ()) {
  using arbitrary::upto;
  const testing::RandomJob random;
  const Job job = random.job();
  const ParallelPlan plan = random.plan();
  std::vector<ParallelPlan> any;
  for (int n = upto(2, 4); n > 0; --n) {
    ParallelPlan p = plan;
    p.bucket_elements = upto(0, 1) * (std::int64_t{1} << upto(12, 24));
    p.last_bucket_split = upto(1, 3);
    p.overlap_grad_reduce = upto(0, 1) != 0;
    p.overlap_param_gather = upto(0, 1) != 0;
    p.activation_offload = upto(0, 2);
    p.offload_horizon = upto(0, 2);
    if (!unlawful(job, p)) any.push_back(p);
  }
  RC_PRE(any.size() > 1);
  const PlanLinks links = plan_links(job.topology, plan);
  const double bound = step_lower_bound(job, any, links).v;
  double best = INFINITY;
  for (const ParallelPlan& p : any) best = std::min(best, simulated(job, p, links));
  RC_TAG(best > 1.05 * bound ? "loose" : "tight");
  if (bound <= best * (1 + 1e-9)) return;
  std::string text = "bound " + std::to_string(bound) + ", step " + std::to_string(best) + ", of";
  for (const ParallelPlan& p : any) text += " " + plan_key(p);
  RC_FAIL(text);
}

}  // namespace
}  // namespace sextant
