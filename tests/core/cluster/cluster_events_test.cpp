// Unit: events of a cluster. Expectation: each line says what it says, in the steps in which it does; of a wrong one the line, what
// was found and what is expected.
#include "core/cluster/cluster_events.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/cluster/cluster_files.hpp"
#include "core/cluster/topology.hpp"

namespace sextant {
namespace {

ClusterSpec two_nodes() { return load_cluster("2x4xa100-80gb", SEXTANT_SOURCE_DIR "/tools/presets"); }

TEST(ClusterEvents, ActInTheirStepsAlone) {
  const ClusterSpec sound = two_nodes();
  const ClusterEvents events(
      "# a comment\n\n"
      "step 40 rank 3 compute x2 until 120   # a hot one\n"
      "step 60 node 1 network x0.25\n"
      "step 70 node 1 links x0.5 until 71\n"
      "step 80 node 1 compute x1.5\n",
      "events", sound);
  EXPECT_EQ(events.at(sound, 39), sound);
  EXPECT_DOUBLE_EQ(Topology(events.at(sound, 40)).compute_factor(3), 0.5);
  EXPECT_DOUBLE_EQ(Topology(events.at(sound, 40)).compute_factor(2), 1);
  EXPECT_DOUBLE_EQ(Topology(events.at(sound, 119)).compute_factor(3), 0.5);
  EXPECT_DOUBLE_EQ(Topology(events.at(sound, 120)).compute_factor(3), 1);
  EXPECT_EQ(events.at(sound, 60).defects.size(), 2U);
  EXPECT_EQ(events.at(sound, 70).defects.size(), 3U);
  EXPECT_EQ(events.at(sound, 71).defects.size(), 2U);
  EXPECT_DOUBLE_EQ(Topology(events.at(sound, 80)).compute_factor(7), 1 / 1.5);
  for (const std::int64_t step : {40, 60, 70, 80, 120, 200})
    EXPECT_TRUE(validate(events.at(sound, step)).empty()) << step;
  EXPECT_TRUE(events.changes(40) && events.changes(120) && events.changes(71));
  EXPECT_FALSE(events.changes(41));
}

TEST(ClusterEvents, RanksAreLostAndComeBackInThatOrder) {
  const ClusterSpec sound = two_nodes();
  const ClusterEvents events("step 10 kill rank 5\nstep 20 kill node 0\nstep 30 join 1\nstep 40 join 9\n",
                             "events", sound);
  EXPECT_TRUE(events.lost(9).empty());
  EXPECT_EQ(events.lost(10), (std::vector<GpuPlace>{{1, 1}}));
  EXPECT_EQ(events.lost(20).size(), 5U);
  EXPECT_EQ(events.at(sound, 20).gpus(), 3);
  EXPECT_EQ(events.lost(30), (std::vector<GpuPlace>{{0, 0}, {0, 1}, {0, 2}, {0, 3}}));
  EXPECT_TRUE(events.lost(40).empty());
}

TEST(ClusterEvents, RanksAreThoseOfTheClusterBeforeAnything) {
  ClusterSpec sound = two_nodes();
  Defect gone;
  gone.node = 0;
  gone.gpu = 1;
  gone.missing = true;
  sound.defects.push_back(gone);
  const ClusterEvents events("step 1 kill rank 1\nstep 2 kill rank 1\nstep 3 kill rank 2\n", "events", sound);
  EXPECT_EQ(events.lost(1), (std::vector<GpuPlace>{{0, 2}}));
  EXPECT_EQ(events.lost(2), events.lost(1)) << "it is gone already";
  EXPECT_EQ(events.lost(3), (std::vector<GpuPlace>{{0, 2}, {0, 3}}));
}

TEST(ClusterEvents, ALinkIsThatOfTwoNodes) {
  const ClusterSpec sound = two_nodes();
  const ClusterEvents events("step 5 link node0-node1 bandwidth x0.25", "events", sound);
  const std::vector<int> both = {0, 4};
  EXPECT_NEAR(Topology(events.at(sound, 5)).group_of(both).network_bandwidth.v,
              Topology(sound).group_of(both).network_bandwidth.v / 4, 1);
}

struct Wrong {
  const char* line;
  const char* found;
  const char* expected;
};
class WrongEvents : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongEvents, AreToldWithTheirLine) {
  const Wrong& w = GetParam();
  try {
    const ClusterEvents events(std::string("step 1 kill rank 0\n") + w.line, "my.events", two_nodes());
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    ASSERT_EQ(e.problems().size(), 1U);
    EXPECT_EQ(e.problems()[0].file, "my.events");
    EXPECT_EQ(e.problems()[0].key, "line 2");
    EXPECT_EQ(e.problems()[0].value, w.found);
    EXPECT_NE(e.problems()[0].expected.find(w.expected), std::string::npos) << e.problems()[0].expected;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongEvents,
    ::testing::Values(Wrong{"at 3 rank 1 compute x2", "at", "step"},
                      Wrong{"step", "the end of the line", "a step"},
                      Wrong{"step -1 rank 1 compute x2", "-1", "a step"},
                      Wrong{"step 3 gpu 1", "gpu", "rank, node, link, kill or join"},
                      Wrong{"step 3 rank 8 compute x2", "8", "0 to 7"},
                      Wrong{"step 3 node 2 compute x2", "2", "0 to 1"},
                      Wrong{"step 3 rank 1 network x0.5", "network", "compute"},
                      Wrong{"step 3 rank 1 compute 2", "2", "x1 to x1000"},
                      Wrong{"step 3 rank 1 compute x0.5", "x0.5", "x1 to x1000"},
                      Wrong{"step 3 node 1 network x4", "x4", "x0.001 to x1"},
                      Wrong{"step 3 node 1 network xnan", "xnan", "x0.001 to x1"},
                      Wrong{"step 3 rank 1 compute x2 until 3", "3", "behind 3"},
                      Wrong{"step 3 rank 1 compute x2 for 4", "for", "until"},
                      Wrong{"step 3 kill leaf 1", "leaf", "rank or node"},
                      Wrong{"step 3 kill rank 1 until 9", "until", "the end of the line"},
                      Wrong{"step 3 join 0", "0", "1 or more"},
                      Wrong{"step 3 link node0-node2 bandwidth x0.5", "node0-node2", "node0-node1"}));

}  // namespace
}  // namespace sextant
