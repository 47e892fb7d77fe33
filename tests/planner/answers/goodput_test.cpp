// System: the price of checkpoints. Expectation: sizes as published; goodput and its best interval as a simulation of
// failures has them, event by event; the classic estimates where they hold. Controls: a wrong pause, an interval that is not
// the best, Young's estimate where it does not hold.
#include "planner/answers/goodput.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/cluster/cluster_files.hpp"
#include "core/model/model_files.hpp"
#include "planner/answers/scale.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant::testing {
namespace {

constexpr const char* kPresets = SEXTANT_SOURCE_DIR "/tools/presets";

FailureModel hours(double mtbf, double pause_s, double lag_s, double restart_s) {
  return {.mtbf = Seconds(mtbf * 3600),
          .pause = Seconds(pause_s),
          .lag = Seconds(lag_s),
          .restart = Seconds(restart_s)};
}

// A run, event by event: train, pause, go on while the checkpoint is written; a failure at any instant throws away what is
// not safe, and the restart may fail as well. Share of the wall clock that lasts.
double simulated_share(const FailureModel& m, Seconds interval, int failures, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> lifetime(1 / m.mtbf.v);
  double now = 0, lasting = 0, next = lifetime(random);
  const auto survives = [&](double work) {  // until `now + work`; otherwise the clock stands at the failure
    if (next < now + work) {
      now = next;
      next = now + lifetime(random);
      --failures;
      return false;
    }
    now += work;
    return true;
  };
  while (failures > 0) {
    double unsafe = 0;                       // since the start, not yet in a safe checkpoint
    double writing = -1;                     // seconds that the pending checkpoint still needs; -1: none
    double pending = 0;                      // work in it
    const auto goes_on = [&](double work) {  // with the write beside it
      if (writing >= 0 && writing <= work) {
        const double first = writing;
        if (!survives(first)) return false;
        lasting += pending;
        unsafe -= pending;
        writing = -1;
        return survives(work - first);
      }
      if (!survives(work)) return false;
      if (writing >= 0) writing -= work;
      return true;
    };
    while (true) {
      if (!goes_on(interval.v)) break;
      unsafe += interval.v;
      if (!goes_on(m.pause.v)) break;
      pending = unsafe;
      writing = m.lag.v;
      if (!goes_on(0)) break;
    }
    while (!survives(m.restart.v)) {
    }
  }
  return lasting / now;
}

const FailureModel kModels[] = {
    hours(3.1, 0.5, 3, 600),   // a large asynchronous run: Llama 3's 16,384 GPUs
    hours(112, 40, 0, 900),    // a blocking save of a minute: BLOOM
    hours(24, 5, 300, 300),    // slow storage behind asynchronous saves
    hours(1, 300, 0, 600),     // saving takes a good part of the time between failures
    hours(2, 1, 1500, 120),    // writing is the limit: saves follow one another
    hours(0.5, 1200, 0, 300),  // hopeless
};

TEST(Goodput, AsSimulatedEventByEvent) {
  constexpr int kFailures = 40000;
  for (const FailureModel& m : kModels) {
    const Seconds best = best_interval(m);
    for (const double factor : {1.0, 1.5, 4.0}) {
      const double share = goodput_share(m, best * factor);
      // The simulation's own error: that of the number of checkpoints it has counted.
      const double clock = kFailures * m.mtbf.v * std::exp(m.restart / m.mtbf);
      const double error = 4 / std::sqrt(share * clock / (best * factor).v);
      EXPECT_NEAR(simulated_share(m, best * factor, kFailures, 1), share, share * std::max(0.012, error))
          << "M " << m.mtbf.v << " d " << m.pause.v << " factor " << factor;
    }
  }
}

TEST(Goodput, ControlAWrongModelIsSeen) {
  const FailureModel m = kModels[1];
  FailureModel wrong = m;
  wrong.pause = m.pause * 4;
  const Seconds best = best_interval(m);
  const double share = simulated_share(m, best, 40000, 2);
  EXPECT_GT(std::abs(goodput_share(wrong, best) / share - 1), 0.02);
  wrong = m;
  wrong.lag = Seconds(4 * 3600);
  EXPECT_GT(std::abs(goodput_share(wrong, best) / share - 1), 0.02);
}

// The interval that is best in simulation, with the same failures for all candidates.
TEST(Goodput, TheBestIntervalIsTheSimulatedBest) {
  for (const FailureModel& m : {kModels[1], kModels[2], kModels[3]}) {
    const Seconds best = best_interval(m);
    double most = 0, at = 0;
    for (const double factor : {0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0}) {
      if ((best * factor + m.pause).v < m.lag.v) continue;
      const double share = simulated_share(m, best * factor, 60000, 3);
      if (share > most) {
        most = share;
        at = factor;
      }
    }
    EXPECT_GE(at, 0.7) << m.pause.v;
    EXPECT_LE(at, 1.4) << m.pause.v;
  }
  // Control: four times the pause moves the optimum twice as far, and the simulation sees the difference.
  FailureModel wrong = kModels[3];
  wrong.pause = wrong.pause / 16;
  EXPECT_LT(simulated_share(kModels[3], best_interval(wrong), 60000, 3),
            0.95 * simulated_share(kModels[3], best_interval(kModels[3]), 60000, 3));
}

TEST(Goodput, IsAMaximum) {
  for (const FailureModel& m : kModels) {
    const Seconds best = best_interval(m);
    const double share = goodput_share(m, best);
    EXPECT_GE(share, goodput_share(m, best * 1.01));
    if ((best * 0.99 + m.pause).v >= m.lag.v) {
      EXPECT_GE(share, goodput_share(m, best * 0.99));
    }
    EXPECT_GE((best + m.pause).v, m.lag.v - 1e-9) << "a save ends before the next begins";
  }
  EXPECT_EQ(best_interval(hours(1, 0, 0, 60)).v, 0) << "checkpoints that cost nothing, always";
  EXPECT_DOUBLE_EQ(goodput_share(hours(1, 0, 0, 60), Seconds(0)), std::exp(-1.0 / 60));
  EXPECT_DOUBLE_EQ(best_interval(hours(2, 1, 1500, 120)).v, 1499);
}

TEST(Goodput, TheClassicsWhereTheyHold) {
  const FailureModel easy = hours(100, 10, 0, 60);
  const double best = best_interval(easy).v;
  EXPECT_NEAR(daly_interval(easy).v / best, 1, 1e-5);
  EXPECT_NEAR(young_interval(easy).v / best, 1, 0.01);
  const FailureModel hard = hours(1, 1800, 0, 60);
  EXPECT_NEAR(daly_interval(hard).v / best_interval(hard).v, 1, 0.02);
  EXPECT_GT(std::abs(young_interval(hard).v / best_interval(hard).v - 1), 0.3) << "control";
  EXPECT_EQ(daly_interval(hours(1, 7200, 0, 60)).v, 3600);
}

TEST(Goodput, SplitSumsToOne) {
  for (const FailureModel& m : kModels) {
    const GoodputSplit s = goodput_split(m, best_interval(m));
    EXPECT_NEAR(s.lasting + s.saving + s.redone + s.restarting, 1, 1e-12);
    EXPECT_GT(s.lasting, 0);
    EXPECT_GE(s.redone, 0);
  }
}

// BLOOM (Le Scao et al. 2022, 3.2 and 3.4): 329 GB of bf16 weights, 2.3 TB with optimizer states; both are 2^30 and 2^40.
TEST(CheckpointSize, AsPublishedForBloom) {
  const ModelSpec bloom = load_model("bloom-176b", kPresets);
  TrainingSpec t;
  const CheckpointSize size =
      checkpoint_size(bloom, t, load_stack("megatron-deepspeed-bloom-bf16", kPresets));
  EXPECT_NEAR(gib(size.parameters), 329, 1);
  EXPECT_NEAR(gib(size.total()) / 1024, 2.3, 0.06);
}

TEST(CheckpointSize, ByFormatAndStack) {
  const ModelSpec m = tiny_model(2);
  const std::int64_t n = parameter_counts(m).total;
  TrainingSpec t;
  StackSpec stack;
  EXPECT_EQ(checkpoint_size(m, t, stack).total(), Bytes(14 * n)) << "bf16 beside fp32 master and moments";
  stack.rules.checkpoint_parameters = false;
  EXPECT_EQ(checkpoint_size(m, t, stack).total(), Bytes(12 * n));
  EXPECT_EQ(checkpoint_size(m, t, load_stack("sextant", kPresets)).total(), Bytes(12 * n));
  EXPECT_EQ(checkpoint_size(m, t, load_stack("llm-foundry", kPresets)).total(), Bytes(12 * n));
  stack.rules.checkpoint_parameters = true;
  t.parameter = Dtype::fp32;
  EXPECT_EQ(checkpoint_size(m, t, stack).total(), Bytes(12 * n)) << "the parameters are the master";
  t.parameter = t.optimizer_state = Dtype::fp64;
  EXPECT_EQ(checkpoint_size(m, t, stack).total(), Bytes(24 * n));
}

// Llama 3 (Dubey et al. 2024, 3.3.4): more than 90 % effective training time on 16,384 H100 with 419 interruptions.
TEST(Goodput, AsPublishedForLlama3) {
  OwnedJob o;
  o.model = load_model("llama-3.1-405b", kPresets);
  o.cluster = load_cluster("h100-16384", kPresets);
  o.stack = load_stack("megatron-core", kPresets);
  o.finish();
  const auto m = failure_model(o.job(), 16384, SaveKind::asynchronous);
  ASSERT_TRUE(m);
  EXPECT_NEAR(m->mtbf.v / 3600, 54.0 * 24 / 419, 0.01);
  const double share = goodput_share(*m, best_interval(*m));
  EXPECT_GT(share, 0.90);
  EXPECT_LT(share, 0.97);
}

OwnedJob failing_job() {
  OwnedJob o = small_job(4, 8);
  o.cluster.storage = {
      .write = BytesPerSecond(2e9), .read = BytesPerSecond(4e9), .node = BytesPerSecond(1e9)};
  o.cluster.failures = {.node_mtbf_hours = 200, .restart = Seconds(60)};
  o.finish();
  return o;
}

TEST(FailureModel, FollowsTheCluster) {
  OwnedJob o = failing_job();
  const auto bytes = static_cast<double>(checkpoint_size(o.model, o.training, o.stack).total().v);
  const auto all = failure_model(o.job(), 32, SaveKind::asynchronous);
  const auto one = failure_model(o.job(), 4, SaveKind::asynchronous);
  const auto blocking = failure_model(o.job(), 32, SaveKind::blocking);
  ASSERT_TRUE(all && one && blocking);
  EXPECT_DOUBLE_EQ(all->mtbf.v, 50 * 3600);
  EXPECT_DOUBLE_EQ(one->mtbf.v, 200 * 3600) << "half of a node is a node";
  EXPECT_DOUBLE_EQ(all->lag.v, bytes / 2e9);
  EXPECT_DOUBLE_EQ(one->lag.v, bytes / 1e9) << "one node's limit";
  EXPECT_DOUBLE_EQ(all->pause.v, bytes / 32 / o.cluster.device.host_link.v);
  EXPECT_DOUBLE_EQ(all->restart.v, 60 + bytes / 4e9);
  EXPECT_DOUBLE_EQ(blocking->pause.v, all->pause.v + all->lag.v);
  EXPECT_EQ(blocking->lag.v, 0);
  o.cluster.failures.node_mtbf_hours = 0;
  EXPECT_FALSE(failure_model(o.job(), 32, SaveKind::asynchronous)) << "nothing is guessed";
  o.cluster.failures.node_mtbf_hours = 200;
  o.cluster.storage.write = BytesPerSecond(0);
  EXPECT_FALSE(failure_model(o.job(), 32, SaveKind::asynchronous));
}

// What makes a search by step time exact for goodput at a fixed number of ranks: a faster step never has fewer lasting
// tokens, although intervals are whole steps.
TEST(Goodput, IsMonotoneInTheStep) {
  const OwnedJob o = failing_job();
  ParallelPlan plan;
  plan.dp = 32;
  std::mt19937_64 random(4);
  std::uniform_real_distribution<double> exponent(-2, 3);
  for (const SaveKind kind : {SaveKind::blocking, SaveKind::asynchronous}) {
    std::vector<std::pair<double, double>> points;
    for (int i = 0; i < 3000; ++i) {
      const double step = std::pow(10, exponent(random));
      points.emplace_back(step, goodput(o.job(), plan, Seconds(step), kind)->tokens_per_s);
    }
    std::ranges::sort(points);
    for (std::size_t i = 1; i < points.size(); ++i)
      ASSERT_LE(points[i].second, points[i - 1].second * (1 + 1e-12)) << points[i].first;
  }
}

TEST(Goodput, TheIntervalIsTheBestNumberOfSteps) {
  const OwnedJob o = failing_job();
  ParallelPlan plan;
  plan.dp = 32;
  for (const double step : {0.3, 7.0, 100.0, 1000.0}) {
    const auto m = *failure_model(o.job(), 32, SaveKind::blocking);
    const auto g = *goodput(o.job(), plan, Seconds(step), SaveKind::blocking);
    double most = 0;
    int at = 0;
    for (int n = 1; n < 40000; ++n)
      if (const double share = goodput_share(m, Seconds(n * step)); share > most) {
        most = share;
        at = n;
      }
    EXPECT_EQ(g.interval_steps, at);
    EXPECT_DOUBLE_EQ(g.goodput, most);
  }
}

// More GPUs are faster and fail more often: with failures frequent enough fewer are better, and most_lasting sees it.
TEST(Goodput, ChoosesTheSize) {
  OwnedJob o = failing_job();
  const auto sizes = std::vector<int>{8, 16, 32};
  SearchOptions one;
  one.top = 1;
  const auto curve = scaling_curve(o.job(), sizes, {}, one);
  ASSERT_EQ(curve.size(), 3u);
  const auto chosen = [&](double node_mtbf_hours) {
    o.cluster.failures.node_mtbf_hours = node_mtbf_hours;
    const ScalePoint* best = most_lasting(o.job(), curve, SaveKind::asynchronous);
    return best ? best->gpus : 0;
  };
  const auto fastest = std::ranges::max_element(
      curve, {}, [](const ScalePoint& p) { return p.report.ranked.front().prediction.tokens_per_s; });
  EXPECT_GT(fastest->gpus, 8);
  EXPECT_EQ(chosen(1e6), fastest->gpus);
  EXPECT_EQ(chosen(0.01), 8);
  EXPECT_EQ(chosen(0), 0) << "not stated";
}

TEST(Goodput, StandsInThePlanFile) {
  PlanPrediction p;
  p.goodput = PlanGoodput{.checkpoint_GB = 1.5,
                          .save_s = 3,
                          .pause_s = 0.5,
                          .job_mtbf_s = 1e5,
                          .interval_s = 900,
                          .interval_steps = 30,
                          .goodput = 0.95,
                          .tokens_per_s = 1e6};
  EXPECT_EQ(nlohmann::json(p).get<PlanPrediction>(), p);
  p.goodput.reset();
  EXPECT_EQ(nlohmann::json(p).get<PlanPrediction>(), p);
  const OwnedJob o = failing_job();
  EXPECT_EQ(nlohmann::json(o.cluster).get<ClusterSpec>(), o.cluster);
}

}  // namespace
}  // namespace sextant::testing
