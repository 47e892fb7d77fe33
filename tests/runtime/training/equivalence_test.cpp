// System: the runtime under pairs of layouts that must train the same model: to the bit where the arithmetic is the same
// (ZeRO, buckets, overlap, offload, recompute, pipeline, order of issue), within rounding where sums are cut differently
// (TP, SP, CP, DP). Controls: another seed differs, and rounding shows where it is tolerated.
#include <array>
#include <cmath>
#include <cstdlib>

#include "tests/runtime/small_run.hpp"

namespace sextant::testing {
namespace {

// The largest difference of losses and of state, relative to the largest value of the tensor.
double difference(const SmallResult& a, const SmallResult& b) {
  double worst = 0;
  EXPECT_EQ(a.loss.size(), b.loss.size());
  for (std::size_t i = 0; i < a.loss.size(); ++i)
    worst = std::max(worst, std::abs(a.loss[i] - b.loss[i]) / std::abs(a.loss[i]));
  EXPECT_EQ(a.state.size(), b.state.size());
  for (const auto& [name, x] : a.state) {
    const auto& y = b.state.at(name);
    double top = 0, off = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      top = std::max(top, std::abs(x[i]));
      off = std::max(off, std::abs(x[i] - y[i]));
    }
    if (off > 0) worst = std::max(worst, off / top);
  }
  return worst;
}

// A layout, and those that give the same bits.
struct Family {
  std::string key;
  std::vector<std::string> same;
  bool tied = false;
};
void PrintTo(const Family& f, std::ostream* out) { *out << f.key; }

class SameBits : public ::testing::TestWithParam<Family> {};

TEST_P(SameBits, AsTheFirst) {
  const Family& family = GetParam();
  SmallRun how, shuffled;
  how.model.tied_embeddings = shuffled.model.tied_embeddings = family.tied;
  shuffled.order = 7;
  const SmallResult first = small_run(parse_plan_key(family.key), how);
  EXPECT_EQ(difference(first, small_run(parse_plan_key(family.key), how)), 0) << "again";
  for (const std::string& key : family.same) {
    const ParallelPlan plan = parse_plan_key(key);
    for (const Problem& p : small_refuses(plan, how)) ADD_FAILURE() << key << ": " << to_string(p);
    if (HasFailure()) break;
    EXPECT_EQ(difference(first, small_run(plan, how)), 0) << key;
    EXPECT_EQ(difference(first, small_run(plan, shuffled)), 0) << key << ", another order";
  }
}

// The first micro-batch writes what the others add to, or all add to what was cleared.
TEST(Choices, GradientsThatBeginWrittenAreTheSameBits) {
  for (const char* key : {"mbs8", "mbs2", "dp2.z1.mbs1.b1K", "dp2.z2.mbs1", "pp2.dp2.z1.mbs1.zb",
                          "pp2.vp2.mbs1.full", "tp2.sp.mbs1.dp2.z0", "mbs1.oo50.po"})
    for (const bool tied : {false, true}) {
      SmallRun written;
      written.model.tied_embeddings = tied;
      SmallRun cleared = written;
      ASSERT_TRUE(written.stack.rules.gradients_begin_written);
      cleared.stack.rules.gradients_begin_written = false;
      const ParallelPlan plan = parse_plan_key(key);
      EXPECT_EQ(difference(small_run(plan, written), small_run(plan, cleared)), 0)
          << key << (tied ? ", tied" : "");
    }
}

// Products joined or apart: the same sums, but for the gradient of their common input, which is one sum then.
TEST(Choices, JoinedGemmsAreTheSameWithinRounding) {
  for (const char* key :
       {"mbs8", "dp2.z1.mbs1.b1K", "dp2.z3.mbs2", "tp2.sp.mbs1.dp2.z0", "cp2.mbs2", "pp2.mbs1.zb"}) {
    SmallRun joined, apart;
    ASSERT_TRUE(joined.stack.rules.fused_projections);
    apart.stack.rules.fused_projections = false;
    const ParallelPlan plan = parse_plan_key(key);
    const double off = difference(small_run(plan, joined), small_run(plan, apart));
    EXPECT_LT(off, 5e-3) << key << ": Adam divides small gradients by their size";
    EXPECT_GT(off, 0) << key << ": control, the switch does nothing";
  }
}

// Logits in bf16 cost a rounding of the loss's gradient, and change nothing where products are in fp32.
TEST(Choices, ShortLogitsAreARoundingApart) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16})
    for (const char* key : {"mbs4", "tp2.sp.mbs2.dp2.z1", "pp2.mbs1.zb"}) {
      SmallRun short_ones{.dtype = dtype}, wide{.dtype = dtype};
      ASSERT_TRUE(short_ones.stack.rules.short_logits);
      wide.stack.rules.short_logits = false;
      const SmallResult a = small_run(parse_plan_key(key), short_ones),
                        b = small_run(parse_plan_key(key), wide);
      if (dtype == Dtype::fp32) {
        EXPECT_EQ(difference(a, b), 0) << key;
        continue;
      }
      for (std::size_t step = 0; step < a.loss.size(); ++step)
        EXPECT_NEAR(a.loss[step] / b.loss[step], 1, 5e-3) << key;
      EXPECT_NEAR(a.norm[0] / b.norm[0], 1, 1e-2) << key;
      EXPECT_GT(difference(a, b), 0) << key << ": control, the switch does nothing";
    }
}

// Both ways by turns, then what was faster; to the same bits.
TEST(Programs, AreKeptWhereTheyAreFaster) {
  ReplayChoice faster(Replay::automatic), slower(Replay::automatic);
  for (int step = 0; step < 12; ++step) {
    EXPECT_TRUE(step < 8 || (faster.next() && !slower.next())) << step;
    faster.took(Seconds(faster.next() ? (step == 0 ? 9.0 : 0.9) : 1.0));
    slower.took(Seconds(slower.next() ? 1.1 : 1.0));
  }
  EXPECT_TRUE(faster.decided());
  SmallRun how;
  how.steps = 10;
  how.apart = true;
  const ParallelPlan plan = parse_plan_key("mbs2");
  const SmallResult launched = small_run(plan, how);
  how.replay = Replay::automatic;
  const SmallResult compared = small_run(plan, how);
  EXPECT_EQ(difference(launched, compared), 0);
  EXPECT_GT(compared.programs.replayed, 0);
}

// Programs in place of launches, on a device that shares no memory with the host, as a GPU.
TEST(Programs, ReplayToTheSameBits) {
  for (const char* key : {"mbs2", "mbs1.full2", "dp2.z1.mbs1.b4K", "dp2.z3.mbs2.sel", "tp2.sp.mbs2",
                          "pp2.dp2.z2.mbs1", "pp2.mbs1.zb", "mbs1.oo50.ao2"}) {
    const ParallelPlan plan = parse_plan_key(key);
    SmallRun how;
    how.steps = 4;
    const SmallResult launched = small_run(plan, how);
    EXPECT_EQ(launched.programs.replayed, 0);
    how.apart = true;
    EXPECT_EQ(difference(launched, small_run(plan, how)), 0) << key << ", apart from the host";
    how.replay = Replay::on;
    const SmallResult replayed = small_run(plan, how);
    EXPECT_EQ(difference(launched, replayed), 0) << key;
    EXPECT_GT(replayed.programs.ops, replayed.programs.replayed) << key << ": several ops each";
    EXPECT_GT(replayed.programs.replayed, 0) << key;
    EXPECT_EQ(replayed.programs.refused, 0) << key;
    how.apart = false;
    EXPECT_EQ(small_run(plan, how).programs.replayed, 0) << key << ": tokens lie elsewhere in every step";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, SameBits,
    ::testing::Values(
        // One micro-batch: every ZeRO stage adds the same numbers in the same order.
        Family{"dp2.z0.mbs4",
               {"dp2.z1.mbs4",
                "dp2.z2.mbs4",
                "dp2.z3.mbs4",
                "dp2.z3.mbs4.b4K",
                "dp2.z1.mbs4.b4K.nogr",
                "dp2.z1.mbs4.nopg",
                "dp2.z2.mbs4.b1K.nogr.nopg",
                "dp2.z0.mbs4.b4K",
                "dp2.z1.mbs4.oo50",
                "dp2.z3.mbs4.oo100",
                "dp2.z3.mbs4.po",
                "dp2.z1.mbs4.ao2",
                "dp2.z1.mbs4.sel",
                "dp2.z2.mbs4.full",
                "dp2.z3.mbs4.full2",
                "dp2.z3.mbs4.full.po.oo60",
                "pp2.dp2.z1.mbs4",
                "pp4.dp2.z2.mbs4.full",
                "dp2.z1.mbs4.sw2-1",
                "dp2.z2.mbs4.b4K.sw1-3",
                "dp2.z3.mbs4.sw5-2",
                "dp2.z3.mbs4.full.po.oo60.sw3-2",
                "dp2.z1.mbs4.oo50.sw1-2",
                "dp2.z3.mbs4.oo100.sw2-1",
                "dp2.z1.mbs4.b1K.nogr.nopg.sw64-1",
                "pp2.dp2.z1.mbs4.sw1-2"}},
        Family{"dp4.z0.mbs2",
               {"dp4.z1.mbs2.b4K", "dp4.z2.mbs2", "dp4.z3.mbs2.full", "dp4.z3.mbs2.sd1", "dp4.z1.mbs2.sd2",
                "dp4.z3.mbs2.sd2.b4K", "dp4.z1.mbs2.b4K.sw4x3-1", "dp4.z3.mbs2.sw1-2-3-4",
                "dp4.z1.mbs2.sd2.sw1-3"}},
        // Shards of 1, 2, 4 or all 8 replicas, whose group runs over cp and dp.
        Family{"dp8.z1.mbs1",
               {"dp8.z0.mbs1", "dp8.z1.mbs1.sd2", "dp8.z2.mbs1.sd4.b4K", "dp8.z3.mbs1.sd2.full",
                "dp8.z3.mbs1.sd4", "pp2.dp8.z1.mbs1.sd4", "dp8.z2.mbs1.sd4.b4K.sw4-3-2-1",
                "dp8.z1.mbs1.sw2x7-1"}},
        Family{"cp2.dp4.z1.mbs2",
               {"cp2.dp4.z3.mbs2.sd2", "cp2.dp4.z2.mbs2.sd4.b4K", "tp1.cp2.dp4.z0.mbs2",
                "cp2.dp4.z3.mbs2.sd2.sw1-2"}},
        // Several: ZeRO 2 and 3 reduce every one of them, which is another order of summation than to add them first.
        Family{
            "dp2.z1.mbs1",
            {"dp2.z0.mbs1", "pp2.dp2.z1.mbs1", "pp4.dp2.z1.mbs1", "pp2.vp2.dp2.z1.mbs1",
             "pp2.dp2.z1.mbs1.gpipe", "pp2.dp2.z1.mbs1.zb", "pp2.dp2.z1.mbs1.L1-3", "pp4.dp2.z0.mbs1.full"}},
        Family{"dp2.z2.mbs1",
               {"dp2.z3.mbs1", "dp2.z3.mbs1.b4K.full", "pp2.dp2.z2.mbs1.sel.oo50", "dp2.z2.mbs1.sw2-1",
                "dp2.z3.mbs1.b4K.full.oo50.sw1-3"}},
        Family{"dp4.z2.mbs1.sd2", {"dp4.z2.mbs1", "dp4.z3.mbs1.sd2", "dp4.z3.mbs1.sd2.b4K.full.oo50"}},
        Family{
            "tp2.sp.mbs1.dp2.z0",
            {"tp2.sp.pp2.mbs1.dp2.z1", "tp2.sp.pp2.vp2.mbs1.dp2.z1.full.b4K", "tp2.sp.mbs1.dp2.z1.sel.ao2"}},
        Family{"tp2.cp2.mbs4.dp2.z0", {"tp2.cp2.mbs4.dp2.z3.full", "tp2.cp2.pp2.mbs4.dp2.z1.b4K.oo50"}},
        // Head and embedding are one weight, whose two gradients are summed apart and added before ranks add theirs, on one
        // stage as on two.
        Family{"dp4.z0.mbs2",
               {"dp4.z1.mbs2.b4K.oo50", "dp4.z2.mbs2", "dp4.z2.mbs2.nogr", "dp4.z3.mbs2.full",
                "dp4.z3.mbs2.sd2.po", "pp2.dp4.z0.mbs2", "pp4.dp4.z1.mbs2.b4K"},
               true},
        Family{"dp2.z0.mbs1",
               {"pp2.dp2.z0.mbs1", "dp2.z1.mbs1.b4K.oo50", "dp2.z1.mbs1.full.nogr", "pp2.dp2.z1.mbs1.L1-3"},
               true},
        Family{"tp2.sp.mbs1.dp2.z1",
               {"tp2.sp.pp2.mbs1.dp2.z1", "tp2.sp.pp2.mbs1.dp2.z0.zb", "tp2.sp.pp2.mbs1.dp2.z1.sw3-1"},
               true},
        Family{
            "dp2.z2.mbs1",
            {"dp2.z3.mbs1", "dp2.z3.mbs1.b4K.full", "dp2.z2.mbs1.nogr.oo50", "dp2.z2.mbs1.nogr.oo50.sw2-1"},
            true},
        Family{"pp2.dp2.z2.mbs1", {"pp2.dp2.z2.mbs1.sw1-3", "pp2.dp2.z3.mbs1.sw5-3"}, true},
        Family{"tp2.sp.mbs4.dp2.z1", {"tp2.sp.mbs4.dp2.z3", "tp2.sp.mbs4.dp2.z2.sel"}, true},
        Family{
            "pp2.dp2.z0.mbs1", {"pp2.dp2.z1.mbs1.b4K", "pp4.dp2.z1.mbs1.zb", "pp2.vp2.dp2.z1.mbs1"}, true}));

// Three micro-batches over two stages are one group, five are one of three and one of two.
TEST(SameBits, InterleavedMicrobatchesThatStagesDoNotDivide) {
  for (const int microbatches : {3, 5}) {
    const SmallRun how{.global_batch = 2 * microbatches};
    const SmallResult flat = small_run(parse_plan_key("dp2.z1.mbs1"), how);
    for (const char* key : {"pp2.vp2.dp2.z1.mbs1", "pp2.vp2.dp2.z0.mbs1.full", "pp2.vp2.dp2.z1.mbs1.ao1"})
      EXPECT_EQ(difference(flat, small_run(parse_plan_key(key), how)), 0) << key << ' ' << microbatches;
  }
  EXPECT_GT(difference(small_run(parse_plan_key("dp2.z1.mbs1"), {.global_batch = 6}),
                       small_run(parse_plan_key("pp2.vp2.dp2.z1.mbs1"), {.global_batch = 10})),
            0)
      << "control";
}

// What the runs of replicas are is what counts: three by three, or an odd number of ranks, is another tree.
TEST(SameBits, AShardDegreeThatIsNoPowerOfTwoDiffersByRounding) {
  const SmallRun six{.global_batch = 6};
  const SmallResult flat = small_run(parse_plan_key("dp6.z1.mbs1"), six);
  EXPECT_EQ(difference(flat, small_run(parse_plan_key("dp6.z1.mbs1.sd2"), six)), 0);
  const double off = difference(flat, small_run(parse_plan_key("dp6.z1.mbs1.sd3"), six));
  EXPECT_GT(off, 0) << "control";
  EXPECT_LT(off, 1e-2);
}

// The norm's parts are cut by layout, in fp64; the factor that clips is rounded to fp32, which hides it.
TEST(SameBits, ClippingToo) {
  const SmallRun how{.clip_norm = 0.1};
  const SmallResult first = small_run(parse_plan_key("dp4.z1.mbs2"), how);
  ASSERT_GT(first.norm[0], how.clip_norm);
  for (const char* key : {"dp4.z0.mbs2.b1K", "dp4.z3.mbs2.sd2", "pp2.dp4.z1.mbs2.sd2.b4K"})
    EXPECT_EQ(difference(first, small_run(parse_plan_key(key), how)), 0) << key;
}

// Where gradients are reduced in every micro-batch, one stage reduces the sum of a tied weight's two, and the ends of a
// pipeline each its own before they are added. Another order of summation, so equal within rounding only.
TEST(SameBits, TiedOverAPipelineUnderZero2DiffersByRounding) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp64}) {
    SmallRun how{.dtype = dtype};
    how.model.tied_embeddings = true;
    const std::pair<const char*, const char*> pairs[] = {{"dp2.z2.mbs1", "pp4.dp2.z2.mbs1"},
                                                         {"dp2.z3.mbs4", "pp2.dp2.z3.mbs4"}};
    for (const auto& [whole, cut] : pairs) {
      const double off =
          difference(small_run(parse_plan_key(whole), how), small_run(parse_plan_key(cut), how));
      EXPECT_GT(off, 0) << cut << ", control";
      EXPECT_LT(off, dtype == Dtype::fp64 ? 1e-12 : 1e-4) << cut;
    }
  }
}

TEST(SameBits, AnotherSizeOfMicroBatchDiffersByRounding) {
  const double off = difference(small_run(parse_plan_key("mbs1")), small_run(parse_plan_key("mbs2")));
  EXPECT_GT(off, 0) << "control: sums are cut differently";
  EXPECT_LT(off, 1e-2);
}

// In fp64, every layout of a grid trains the model of one rank.
TEST(Grid, EveryLayoutTrainsTheSameModel) {
  const SmallRun how{.dtype = Dtype::fp64, .steps = 2, .clip_norm = 0.5};
  const SmallResult one = small_run(parse_plan_key("mbs1"), how);
  ASSERT_GT(one.norm[0], how.clip_norm) << "clipping acts";
  // SEXTANT_GRID=all runs every one of up to 16 ranks, minutes: ctest --preset release -C Exhaustive -R exhaustive.
  const char* asked = std::getenv("SEXTANT_GRID");
  const int every = asked && std::string(asked) == "all" ? 1 : 23, most = every == 1 ? 16 : 8;
  int number = 0, run = 0, refused = 0;
  for (const int tp : {1, 2, 4})
    for (const int pp : {1, 2, 4})
      for (const int dp : {1, 2, 4})
        for (const int zero : {0, 1, 2, 3})
          for (const char* sp : {"", ".sp"})
            for (const char* recompute : {"", ".sel", ".full", ".full1"})
              for (const char* offload : {"", ".oo50", ".po", ".ao1"}) {
                const std::string key = "tp" + std::to_string(tp) + sp + ".pp" + std::to_string(pp) + ".dp" +
                                        std::to_string(dp) + ".z" + std::to_string(zero) + ".mbs1" +
                                        recompute + offload;
                const ParallelPlan plan = parse_plan_key(key);
                if (plan.world() > most || number++ % every != 0) continue;
                if (!small_refuses(plan, how).empty()) {
                  ++refused;
                  continue;
                }
                ++run;
                const SmallResult got = small_run(plan, how);
                EXPECT_LT(difference(one, got), 1e-10) << key;
                for (std::size_t s = 0; s < one.norm.size(); ++s)
                  EXPECT_NEAR(got.norm[s], one.norm[s], 1e-10 * one.norm[s]) << key;
              }
  RecordProperty("run", run);
  RecordProperty("refused", refused);
  std::printf("%d layouts run, %d refused\n", run, refused);
  EXPECT_GT(run, refused);
}

// Replicas with unequally many micro-batches: the same sequences, summed in another order.
TEST(UnequalReplicas, TrainTheSameModel) {
  std::array<SmallRun, 2> runs;  // the second with one weight for embedding and head
  std::array<SmallResult, 2> one;
  for (const std::size_t tied : {0U, 1U}) {
    runs[tied] = {.dtype = Dtype::fp64, .steps = 2, .clip_norm = 0.5};
    runs[tied].model.tied_embeddings = tied == 1;
    one[tied] = small_run(parse_plan_key("mbs1"), runs[tied]);
  }
  std::size_t number = 0;
  for (const char* key :
       {"dp2.z0.mbs1.ga5-3", "dp2.z1.mbs1.ga1-7", "dp3.z1.mbs1.ga2-4-2.b4K", "dp3.z0.mbs2.ga1-1-2.nogr",
        "dp2.z1.mbs2.ga3-1.full", "dp2.z1.mbs1.ga7-1.ao1", "dp2.z1.mbs1.ga6-2.oo50", "cp2.dp2.z1.mbs1.ga6-2",
        "tp2.sp.dp2.z1.mbs1.ga3-5", "tp2.nosp.dp2.z0.mbs1.ga5-3", "pp2.dp2.z1.mbs1.ga6-2",
        "pp4.dp2.z0.mbs1.ga7-1", "pp2.vp2.dp2.z1.mbs1.ga6-2", "pp2.vp2.dp2.z1.mbs1.ga5-3",
        "pp2.dp2.z1.mbs1.gpipe.ga3-5", "pp2.dp2.z1.mbs1.zb.ga7-1", "tp2.sp.pp2.dp2.z1.mbs1.ga6-2",
        "dp4.z1.sd2.mbs1.ga3-3-1-1", "dp2.z1.mbs1.ga5-3.sw2-1"}) {
    const std::size_t tied = number++ % 2;
    const SmallRun& how = runs[tied];
    const ParallelPlan plan = parse_plan_key(key);
    for (const Problem& p : small_refuses(plan, how)) ADD_FAILURE() << key << ": " << to_string(p);
    if (HasFailure()) return;
    const SmallResult got = small_run(plan, how);
    EXPECT_LT(difference(one[tied], got), 1e-10) << key;
    SmallRun other = how;
    other.order = 7;
    EXPECT_EQ(difference(got, small_run(plan, other)), 0) << key << ", another order";
    other = how;
    other.apart = true;
    other.replay = Replay::on;
    EXPECT_EQ(difference(got, small_run(plan, other)), 0) << key << ", programs, apart from the host";
  }
}

// Each sequence of the batch once, in the order of equally many as far as that goes.
TEST(UnequalReplicas, ShareOutTheBatch) {
  TrainingSpec training = runnable_training(8, Dtype::fp64);
  for (const char* key : {"dp2.mbs1.ga5-3", "dp3.mbs2.ga1-1-2", "dp4.mbs2"}) {
    const ParallelPlan plan = parse_plan_key(key);
    std::vector<int> seen;
    const auto source = [&](std::int64_t, int sequence, std::span<std::int32_t> tokens) {
      seen.push_back(sequence);
      std::ranges::fill(tokens, 0);
    };
    std::size_t microbatches = 0;
    for (int d = 0; d < plan.dp; ++d)
      microbatches += make_batch(source, 0, plan, training, {.dp = d}, 2).microbatches.size();
    EXPECT_EQ(microbatches, 8U / static_cast<unsigned>(plan.micro_batch)) << key;
    std::ranges::sort(seen);
    EXPECT_EQ(seen, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7})) << key;
  }
}

TEST(Grid, AnotherSeedDiffers) {
  SmallRun how{.dtype = Dtype::fp64, .steps = 2};
  const SmallResult one = small_run(parse_plan_key("dp2.z1.mbs1"), how);
  how.model.norm_eps = 2 * how.model.norm_eps;
  EXPECT_GT(difference(one, small_run(parse_plan_key("dp2.z1.mbs1"), how)), 1e-10) << "control";
}

}  // namespace
}  // namespace sextant::testing
