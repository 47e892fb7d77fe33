// How fast the topology answers at 16,384 GPUs.
#include <chrono>
#include <cstdio>

#include <gtest/gtest.h>

#include "core/cluster/topology.hpp"
#include "core/plan/parallel_plan.hpp"
#include "tests/core/cluster/cluster_support.hpp"
#include "tests/support/sanitized.hpp"

using namespace sextant;

// 16,384 GPUs with 300 group questions in 50 ms; with a defect, where no symmetry helps, in ten times that.
TEST(TopologySpeed, SixteenThousandGpus) {
  for (const bool defect : {false, true}) {
    ClusterSpec c = test::small_cluster(2048);
    if (defect) c.defects = {{.node = 77, .gpu = 1, .network_factor = 0.5}};
    double best = 1e9;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      const Topology t(c);
      int questions = 0;
      for (int tp = 1; tp <= 16; tp *= 2)
        for (int pp = 1; pp <= 16; pp *= 2)
          for (int cp = 1; cp <= 2; cp *= 2) {
            ParallelPlan p;
            p.tp = tp;
            p.cp = cp;
            p.pp = pp;
            p.dp = 16384 / tp / pp / cp;
            const RankGrid grid(p);
            int size = 0;
            size += t.group(grid, {Axis::tp}).size + t.group(grid, {Axis::cp}).size;
            size += t.group(grid, {Axis::dp}).size + t.group(grid, {Axis::cp, Axis::dp}).size;
            size += t.group(grid, {Axis::tp, Axis::cp, Axis::dp, Axis::pp}).size + t.stage_link(grid, 0).size;
            questions += 6;
            EXPECT_GT(size, 16384);
          }
      EXPECT_EQ(questions, 300);
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::printf("%s: %.1f ms\n", defect ? "one defect" : "no defects", best * 1e3);
    EXPECT_LT(best, (defect ? 0.5 : 0.05) * (kSanitized ? 20 : 1));
  }
}
