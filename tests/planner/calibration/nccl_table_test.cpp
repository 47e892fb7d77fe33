// Tables as nccl-tests prints them, on networks of our own making (NVIDIA/nccl-tests common.cu).
#include "planner/calibration/nccl_table.hpp"

#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/cluster/cluster_files.hpp"
#include "core/cluster/topology.hpp"
#include "core/model/model_files.hpp"
#include "cost_models/collective.hpp"
#include "planner/calibration/calibrate_network.hpp"
#include "tests/support/measured.hpp"

namespace sextant {
namespace {

// A table as all_reduce_perf prints it for `nodes` nodes of eight, with times of a network of our own making.
std::string nccl_text(int nodes, double bus_GBps, double latency_us, const char* redop, double factor) {
  std::string text =
      "# nThread 1 nGpus 1 minBytes 33554432 maxBytes 8589934592 step: 2(factor)\n#\n# Using devices\n";
  const int ranks = 8 * nodes;
  for (int r = 0; r < ranks; ++r)
    text +=
        fmt::format("#  Rank {:2} Group  0 Pid {:6} on   node{:03} device  {} [0x07] NVIDIA A100-SXM4-80GB\n",
                    r, 1000 + r, r / 8, r % 8);
  text +=
      "#\n#                                                              out-of-place                       "
      "in-place\n"
      "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw "
      "  busbw "
      "#wrong\n";
  for (std::int64_t bytes = 1 << 25; bytes <= (1LL << 33); bytes *= 2) {
    const double moved = factor * (ranks - 1) / ranks * static_cast<double>(bytes);
    const double us = latency_us + moved / (bus_GBps * 1e3);
    const double algorithm = static_cast<double>(bytes) / us / 1e3;
    text += fmt::format(
        "{:12} {:13} {:>9} {:>7} {:>7} {:8.1f} {:7.2f} {:7.2f} {:>6} {:8.1f} {:7.2f} {:7.2f} {:>6}\n", bytes,
        bytes / 4, "float", redop, -1, us, algorithm, algorithm * factor * (ranks - 1) / ranks, 0, us,
        algorithm, algorithm, 0);
  }
  return text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 150\n";
}

// Ranks of two devices are of no cluster that can be stated.
TEST(NcclTable, RanksOfOneDevice) {
  std::string text = nccl_text(2, 150, 100, "sum", 2);
  EXPECT_NO_THROW(parse_nccl_table(text, "ar.txt"));
  const std::string a100 = "NVIDIA A100-SXM4-80GB";
  text.replace(text.rfind(a100), a100.size(), "NVIDIA H100 80GB HBM3");
  try {
    parse_nccl_table(text, "ar.txt");
    FAIL() << "two devices are taken";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("NVIDIA A100-SXM4-80GB and NVIDIA H100 80GB HBM3"),
              std::string::npos)
        << e.what();
  }
}

// Results that the check found wrong say that the transfers were: which row, and what it says.
TEST(NcclTable, WrongResultsAreRefusedWithTheirRow) {
  const auto error = [](const std::string& text) -> std::string {
    try {
      parse_nccl_table(text, "ar.txt");
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  const std::string good = nccl_text(2, 150, 100, "sum", 2);
  EXPECT_EQ(error(good), "");
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < good.size();) {
    const std::size_t end = good.find('\n', at);
    lines.push_back(good.substr(at, end - at));
    at = end + 1;
  }
  const auto with_row = [&](std::size_t row, const std::string& text) {
    std::string all;
    for (std::size_t i = 0; i < lines.size(); ++i) all += (i == row ? text : lines[i]) + '\n';
    return all;
  };
  std::size_t row = 0;
  while (lines[row].find("float") == std::string::npos) ++row;
  const std::string cells = " 33554432 8388608 float sum -1 547.3 61.3 114.9 ";
  const std::string wrong = error(with_row(row, cells + "3 547.3 61.3 114.9 0"));
  EXPECT_NE(wrong.find(fmt::format("ar.txt:{}", row + 1)), std::string::npos) << wrong;
  EXPECT_NE(wrong.find("#wrong: found 3 elements"), std::string::npos) << wrong;
  EXPECT_NE(error(with_row(row, cells + "0 547.3 61.3 114.9 12")), "") << "in place";
  // Unchecked, and the largest error that older versions print.
  EXPECT_EQ(error(with_row(row, cells + "N/A 547.3 61.3 114.9 N/A")), "");
  EXPECT_EQ(error(with_row(row, cells + "2e-07 547.3 61.3 114.9 2e-07")), "");
}

TEST(NcclTable, IsReadWithItsKindFromTheFactors) {
  const NcclTable reduce = parse_nccl_table(nccl_text(2, 150, 100, "sum", 2), "ar.txt");
  EXPECT_EQ(reduce.kind, CollectiveKind::all_reduce);
  EXPECT_EQ(reduce.ranks, 16);
  EXPECT_EQ(reduce.nodes, 2);
  ASSERT_EQ(reduce.samples.size(), 9U);
  EXPECT_EQ(reduce.samples.front().bytes, 1 << 25);
  EXPECT_EQ(parse_nccl_table(nccl_text(2, 150, 100, "sum", 1), "rs.txt").kind,
            CollectiveKind::reduce_scatter);
  // Tables of all_gather and alltoall look the same: the program, the file or the caller has to say.
  const std::string none = nccl_text(2, 150, 100, "none", 1);
  EXPECT_EQ(parse_nccl_table(none, "table.txt", CollectiveKind::all_gather).kind, CollectiveKind::all_gather);
  EXPECT_THROW(parse_nccl_table(none, "table.txt", CollectiveKind::all_reduce), ConfigError);
  const std::string sum = nccl_text(2, 150, 100, "sum", 1);
  EXPECT_THROW(parse_nccl_table(sum, "table.txt", CollectiveKind::all_gather), ConfigError);
  EXPECT_EQ(parse_nccl_table(sum, "all_reduce.txt", CollectiveKind::reduce_scatter).kind,
            CollectiveKind::reduce_scatter)
      << "a file's name is nobody's word";
  EXPECT_THROW(parse_nccl_table("# Collective test starting: all_reduce_perf\n" + sum, "t.txt",
                                CollectiveKind::reduce_scatter),
               ConfigError);
  EXPECT_THROW(parse_nccl_table(none, "table.txt"), ConfigError);
  EXPECT_EQ(parse_nccl_table(none, "all_gather.txt").kind, CollectiveKind::all_gather);
  EXPECT_EQ(parse_nccl_table("# Collective test starting: all_gather_perf\n" + none, "t.txt").kind,
            CollectiveKind::all_gather);
  EXPECT_EQ(parse_nccl_table(none, "t.txt", CollectiveKind::all_gather).kind, CollectiveKind::all_gather);
  EXPECT_THROW(parse_nccl_table("# Collective test starting: alltoall_perf\n" + none, "t.txt"), ConfigError);
  EXPECT_THROW(parse_nccl_table("algbw busbw\n", "empty.txt"), ConfigError);
}

// A network slower than its preset is found: the fabric's share of its nominal rate is bus over nominal.
TEST(NcclTable, TimesThatAreNoneAreRefused) {
  std::string text = nccl_text(2, 150, 100, "sum", 2);
  text += "    33554432       8388608     float     sum      -1      0.0    0.00    0.00      0\n";
  try {
    parse_nccl_table(text, "ar.txt");
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("ar.txt:"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("above 0"), std::string::npos) << e.what();
  }
}

TEST(NcclTable, CalibratesTheFabric) {
  const auto presets = test::preset_dir();
  const ClusterSpec cluster = load_cluster("4x8xa100-80gb", presets);
  const auto constants = load_cost_preset("ampere", presets / "cost").constants;
  const double nominal = cluster.fabric.bandwidth.v / 1e9;
  const NetworkFit fit =
      calibrate_network(parse_nccl_table(nccl_text(4, 0.6 * nominal, 300, "sum", 2), "ar.txt"), cluster,
                        constants, load_calibration_rules(presets), nullptr);
  ASSERT_EQ(fit.constants.size(), 2U);
  EXPECT_NEAR(fit.constants[0].value, 0.6, 0.03);
  EXPECT_LT(fit.mape_after, 5);
  EXPECT_LT(fit.mape_after, fit.mape_before);
  const ClusterSpec small = load_cluster("2x8xa100-80gb", presets);
  EXPECT_THROW(calibrate_network(parse_nccl_table(nccl_text(4, 100, 2000, "sum", 2), "ar.txt"), small,
                                 constants, load_calibration_rules(presets), nullptr),
               ConfigError);
}

// A table that lies as far from published ones of the idle fabric moves the constants of steps by that factor: one that
// equals them moves nothing, however far steps are from an idle network.
// Ranks sit where the table says: one on each of two nodes shares no NIC and touches no NVLink.
TEST(NcclTable, RanksSitOnTheNodesThatItNames) {
  const auto presets = test::preset_dir();
  const ClusterSpec cluster = load_cluster("4x8xa100-80gb", presets);
  const auto constants = load_cost_preset("ampere", presets / "cost").constants;
  const auto rules = load_calibration_rules(presets);
  NcclTable table = parse_nccl_table(nccl_text(2, 150, 100, "sum", 2), "ar.txt");
  EXPECT_EQ(table.node_of, (std::vector<int>{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}));
  const auto fitted = [&](std::vector<int> node_of) {
    NcclTable t = table;
    t.nodes = 1 + *std::max_element(node_of.begin(), node_of.end());
    t.ranks = static_cast<int>(node_of.size());
    t.node_of = std::move(node_of);
    std::vector<int> placed, taken(4, 0);
    for (const int n : t.node_of) placed.push_back(8 * n + taken[static_cast<std::size_t>(n)]++);
    ClusterSpec slow = cluster;
    slow.fabric.efficiency *= 0.7;
    const GroupShape group = Topology(slow).group_of(placed);
    for (NcclSample& s : t.samples)
      s.time_s = price_collective({t.kind, Bytes(s.bytes), group, false},
                                  Machine(slow.device, slow.node, alone(constants)))
                     .duration.v;
    return calibrate_network(t, cluster, constants, rules, nullptr).constants.at(0).value;
  };
  const double truth = 0.7 * cluster.fabric.efficiency;
  EXPECT_NEAR(fitted({0, 1}), truth, 0.03 * truth);
  EXPECT_NEAR(fitted({0, 0, 1, 1, 2, 2, 3, 3}), truth, 0.03 * truth);
  EXPECT_THROW(fitted(std::vector<int>(9, 0)), ConfigError);
}

// Times in another unit, or of another machine, are no measurement of these links.
TEST(NcclTable, TimesThatNoRateComesNearAreRefused) {
  const auto presets = test::preset_dir();
  const ClusterSpec cluster = load_cluster("4x8xa100-80gb", presets);
  const auto constants = load_cost_preset("ampere", presets / "cost").constants;
  for (const double factor : {1e-3, 1e3}) {
    NcclTable table = parse_nccl_table(nccl_text(2, 150, 100, "sum", 2), "ar.txt");
    for (NcclSample& s : table.samples) s.time_s *= factor;
    EXPECT_THROW(calibrate_network(table, cluster, constants, load_calibration_rules(presets), nullptr),
                 ConfigError)
        << factor;
  }
}

TEST(NcclTable, MovesStepsByTheFactorToPublishedTables) {
  const auto presets = test::preset_dir();
  const ClusterSpec cluster = load_cluster("2x8xh100@efa-p5", presets);
  const auto constants = load_cost_preset("hopper", presets / "cost").constants;
  const auto networks = load_nccl_baselines(presets);
  const NcclBaseline* idle = nccl_baseline_of("efa-p5", networks);
  ASSERT_NE(idle, nullptr);
  EXPECT_EQ(nccl_baseline_of("hdr-8x200", networks), nullptr);
  ClusterSpec idle_cluster = cluster;
  use_network(*idle, idle_cluster.fabric);
  const auto fitted = [&](double slower, const NcclBaseline* known) {
    NcclTable table = parse_nccl_table(nccl_text(2, 150, 100, "sum", 2), "ar.txt");
    std::vector<int> ranks(16);
    std::iota(ranks.begin(), ranks.end(), 0);
    const GroupShape group = Topology(idle_cluster).group_of(ranks);
    for (NcclSample& s : table.samples)
      s.time_s = slower * price_collective({table.kind, Bytes(s.bytes), group, false},
                                           Machine(idle_cluster.device, idle_cluster.node, alone(constants)))
                              .duration.v;
    return calibrate_network(table, cluster, constants, load_calibration_rules(presets), known).constants;
  };
  EXPECT_NEAR(fitted(1, idle)[0].value, cluster.fabric.efficiency, 1e-9);
  EXPECT_NEAR(fitted(1, idle)[1].value, 1e6 * cluster.fabric.latency.v, 1e-6);
  EXPECT_NEAR(fitted(1.2, idle)[0].value, cluster.fabric.efficiency / 1.2, 0.02 * cluster.fabric.efficiency);
  EXPECT_GT(fitted(1, nullptr)[0].value, 1.2 * cluster.fabric.efficiency);  // negative control
}

NetworkFit fit_of_table(const char* where, double bus_GBps, double latency_us) {
  const auto presets = test::preset_dir();
  const ClusterSpec cluster = load_cluster(where, presets);
  const auto constants = load_cost_preset(cluster.device.generation, presets / "cost").constants;
  const auto networks = load_nccl_baselines(presets);
  return calibrate_network(
      parse_nccl_table(nccl_text(cluster.nodes, bus_GBps, latency_us, "sum", 2), "all_reduce.txt"), cluster,
      constants, load_calibration_rules(presets), nccl_baseline_of(cluster.fabric.name, networks));
}

// The bus rate of an all-reduce in the switch may be above the link's rate, and is in the preset.
TEST(NcclTable, TheRateInTheSwitchIsNotHeldBelowTheLinks) {
  for (const double bus_GBps : {405.0, 495.0, 540.0}) {
    const NetworkFit fit = fit_of_table("1x8xh100", bus_GBps, 65);
    ASSERT_EQ(fit.constants.size(), 1U) << bus_GBps;
    EXPECT_EQ(fit.constants[0].constant.key, "link_efficiency_in_switch");
    EXPECT_NEAR(fit.constants[0].value, bus_GBps / 450, 0.05) << bus_GBps;
    EXPECT_LT(fit.mape_after, 5) << bus_GBps;
  }
}

// What is compared with is what the switch reaches, not its bound of 2 (n-1)/n of the links.
TEST(NcclTable, TheRateInTheSwitchIsComparedWithWhatItReaches) {
  const auto presets = test::preset_dir();
  const auto share = [](double bus_GBps) { return fit_of_table("1x8xh100", bus_GBps, 65).share_of_stated; };
  EXPECT_NEAR(share(477), 1, 0.05);
  EXPECT_NEAR(share(360), 0.75, 0.05) << "control: a ring";
  EXPECT_TRUE(fit_of_table("1x8xh100", 477, 65).in_switch);
  const auto warned = [&](double bus_GBps) {
    return odd_rate(parse_nccl_table(nccl_text(1, bus_GBps, 65, "sum", 2), "ar.txt"),
                    fit_of_table("1x8xh100", bus_GBps, 65), load_cluster("1x8xh100", presets))
        .has_value();
  };
  EXPECT_FALSE(warned(477));
  EXPECT_FALSE(warned(360));
  EXPECT_TRUE(warned(700)) << "control: no NVLink of this generation";
  EXPECT_THROW(warned(90), ConfigError) << "control: PCIe";
  // Without such a switch the links are the measure.
  const NetworkFit ring = fit_of_table("1x8xa100-80gb", 230, 65);
  EXPECT_FALSE(ring.in_switch);
  EXPECT_NEAR(ring.share_of_stated, 230.0 / 300, 0.06);
}

// A network whose rate lies below that of the links inside the node, while the published one lies above: no slope leads
// from the one to the other.
TEST(NcclTable, FindsASlowNetworkBehindFastNodes) {
  for (const char* where : {"2x8xh100@ndr-8x400", "2x8xh100@roce-8x400", "2x8xh100@efa-p5"})
    for (const double bus_GBps : {100.0, 150.0, 200.0, 230.0}) {
      const NetworkFit fit = fit_of_table(where, bus_GBps, 60);
      ASSERT_TRUE(fit.taken) << where << ' ' << bus_GBps;
      EXPECT_GT(fit.mape_before, 12) << where << ' ' << bus_GBps;
      EXPECT_LT(fit.mape_after, 10) << where << ' ' << bus_GBps;
      EXPECT_EQ(fit.constants[0].constant.key, "efficiency");
      EXPECT_LT(fit.constants[0].value, 0.8 * fit.constants[0].constant.prior) << where << ' ' << bus_GBps;
    }
  // Where the links inside the node are the slower, the table says nothing of the network's rate.
  const NetworkFit hidden = fit_of_table("2x8xh100@roce-8x400", 480, 400);
  for (const ConstantFit& k : hidden.constants)
    EXPECT_TRUE(k.constant.key != "efficiency" || k.value == k.constant.prior);
}

// Whatever a table says, a fit does not make it worse; where each would, nothing moves.
TEST(NcclTable, AFitThatMakesTheTableWorseIsNotTaken) {
  int refused = 0;
  using Links = std::pair<const char*, double>;  // GB/s
  for (const auto& [where, nominal] :
       {Links{"1x8xh100", 450}, Links{"2x8xh100@efa-p5", 400}, Links{"2x8xa100-80gb", 200}})
    for (const double share : {0.3, 0.5, 0.7, 1.03})
      for (const double latency_us : {10.0, 40.0, 300.0}) {
        const NetworkFit fit = fit_of_table(where, share * nominal, latency_us);
        EXPECT_LE(fit.mape_after, fit.mape_before) << where << ' ' << share << ' ' << latency_us;
        EXPECT_EQ(fit.taken, !fit.constants.empty());
        if (fit.taken) continue;
        ++refused;
        EXPECT_TRUE(fit.costs_largest || fit.mape_fit > fit.mape_before);
      }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace sextant
