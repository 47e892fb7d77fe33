// How far a case lies from what was measured: what is beyond, in words, and what it does to intervals.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/cluster/cluster_files.hpp"
#include "core/model/model_files.hpp"
#include "planner/validation/validate.hpp"
#include "tests/planner/validation/llama_row.hpp"
#include "tests/support/measured.hpp"

namespace sextant {
namespace {

// Twice the largest is near, one more is far; on what else the run is like does not matter.
TEST(MeasuredRange, SaysWhatLiesBeyond) {
  const std::vector<MeasuredRange> ranges = {{"hopper", 100, 64, 4096, 70'000'000'000}};
  const ModelSpec model = load_model("llama-2-70b", test::preset_dir());
  TrainingSpec training;
  training.seq_len = 8192;
  ClusterSpec cluster = load_cluster("16x8xh100", test::preset_dir());
  EXPECT_EQ(far_from_measured(ranges, model, training, cluster), "");
  cluster = load_cluster("17x8xh100", test::preset_dir());
  EXPECT_EQ(far_from_measured(ranges, model, training, cluster),
            "136 GPUs, at most 64 in 100 runs on hopper devices");
  training.seq_len = 8193;
  EXPECT_EQ(far_from_measured(ranges, load_model("llama-3.1-405b", test::preset_dir()), training, cluster),
            "136 GPUs, at most 64; 406 billion parameters, at most 70; sequences of 8193 tokens, at most "
            "4096 in 100 "
            "runs on hopper devices");
  EXPECT_EQ(far_from_measured(ranges, model, training, load_cluster("1x8xa100-80gb", test::preset_dir())),
            "no run on ampere devices");
  EXPECT_EQ(far_from_measured({}, model, training, load_cluster("laptop", test::preset_dir())), "");
}

TEST(MeasuredRange, SaysWhatIsTooSmallOrNeverSeen) {
  MeasuredRange range{"hopper", 100, 64, 4096, 70'000'000'000};
  range.least_seq_len = 2048;
  range.least_parameters = 2'000'000'000;
  range.least_GBps = 100;
  range.most_GBps = 400;
  range.devices = {"H100-SXM5-80GB"};
  const ModelSpec model = load_model("llama-2-7b", test::preset_dir());
  TrainingSpec training;
  training.seq_len = 1024;
  ClusterSpec cluster = load_cluster("2x8xh100", test::preset_dir());
  EXPECT_EQ(far_from_measured(std::span(&range, 1), model, training, cluster), "");
  training.seq_len = 1023;
  cluster.fabric.bandwidth = BytesPerSecond(49e9);
  EXPECT_EQ(
      far_from_measured(std::span(&range, 1), load_model("stories-260k", test::preset_dir()), training,
                        cluster),
      "0.00026 billion parameters, at least 2; sequences of 1023 tokens, at least 2048; a network of 49 "
      "GB/s a node, at least 100 in 100 runs on hopper devices");
  cluster.nodes = 1;
  training.seq_len = 4096;  // no network
  EXPECT_EQ(far_from_measured(std::span(&range, 1), model, training, cluster), "");
  cluster = load_cluster("2x8xh200", test::preset_dir());
  EXPECT_EQ(far_from_measured(std::span(&range, 1), model, training, cluster),
            "none on " + cluster.device.name + " in 100 runs on hopper devices");
}

TEST(MeasuredRange, AStackWithoutRunsIsSaid) {
  FrameworkMap map;
  map.measured = {{"hopper", 100, 64, 4096, 70'000'000'000}};
  map.measured_stacks = {"nanotron"};
  const ModelSpec model = load_model("llama-2-7b", test::preset_dir());
  TrainingSpec training;
  const ClusterSpec cluster = load_cluster("2x8xh100", test::preset_dir());
  training.stack = "nanotron";
  EXPECT_EQ(far_from_runs(map, model, training, cluster), "");
  training.stack = "torchtitan";
  EXPECT_EQ(far_from_runs(map, model, training, cluster), "constants assumed, not fitted to torchtitan runs");
  EXPECT_EQ(far_from_runs(map, model, training, load_cluster("laptop", test::preset_dir())), "");
}

// Intervals of what lies beyond are wider by the factor that the presets give.
TEST(MeasuredRange, WidensIntervals) {
  const FrameworkMap map = load_framework_map(test::preset_dir());
  RunRow row = llama_row();
  const ResolvedRun near = resolve(row, map, test::preset_dir());
  row.training.seq_len = 1 << 20;
  const ResolvedRun far = resolve(row, map, test::preset_dir());
  EXPECT_DOUBLE_EQ(near.interval, 1);
  EXPECT_DOUBLE_EQ(far.interval, map.class_interval);
  EXPECT_NE(far.note.find("far from any measured run"), std::string::npos) << far.note;
}

}  // namespace
}  // namespace sextant
