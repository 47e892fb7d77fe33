// A profile made with moved constants must move them back, and only them; and only on its own device.
#include "planner/calibration/profile_priors.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/cluster/cluster_files.hpp"
#include "core/cluster/topology.hpp"
#include "core/graph/work.hpp"
#include "core/timeline/measurement_name.hpp"
#include "cost_models/analytic.hpp"
#include "cost_models/collective.hpp"
#include "planner/simulation/machine_samples.hpp"
#include "tests/support/measured.hpp"

namespace sextant {
namespace {

class ProfilePriors : public testing::Test {
 protected:
  const std::filesystem::path presets_ = test::preset_dir();
  const CalibrationRules rules_ = load_calibration_rules(presets_);
  const ClusterSpec cluster_ = load_cluster("1x8xh100", presets_);
  const CostConstants constants_ = load_cost_preset("hopper", presets_ / "cost").constants;

  // Works of two models, priced as a machine with these constants would take.
  WorkProfile profile(const CostConstants& truth) const {
    const AnalyticCostModel model(cluster_, load_stack("sextant", presets_), truth);
    WorkProfile out;
    out.machine = "NVIDIA H100 80GB HBM3, cuBLASLt 13.0";
    out.date = "2026-11-20";
    const auto add = [&](const Work& work) {
      const double us = model.price(work).duration.v * 1e6;
      out.works[work_key(work)] = {.mean_us = us, .median_us = us, .samples = 12};
    };
    for (const int hidden : {4096, 8192})
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        BlockWork w;
        w.pass = pass;
        w.seq_q = w.seq_k = 4096;
        w.hidden = hidden;
        w.heads = w.kv_heads = hidden / 128;
        w.head_dim = 128;
        w.ffn = 3 * hidden;
        for (const BlockKind kind : {BlockKind::norm, BlockKind::qkv, BlockKind::attention, BlockKind::mlp}) {
          w.kind = kind;
          add(w);
        }
      }
    add(StateWork{StateKind::update, 1'000'000'000, Dtype::bf16, Dtype::fp32, false});
    add(StateWork{StateKind::norm, 1'000'000'000, Dtype::bf16, Dtype::fp32, false});
    for (const int mib : {64, 256, 1024}) {
      add(CopyWork{Bytes(std::int64_t{mib} << 20), CopyDirection::host_to_device});
      add(CollectiveWork{CollectiveKind::all_gather, Bytes(std::int64_t{mib} << 20),
                         Topology(cluster_).group_of(std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}), false});
    }
    return out;
  }
  // The machine by itself, as one of such constants and launches would be.
  MachineFacts facts(const ClusterSpec& cluster, const CostConstants& truth, bool one_device = false) const {
    const AnalyticCostModel model(cluster, load_stack("sextant", presets_), alone(truth));
    MachineFacts out;
    const auto add = [&](const Measured& what, const OpCost& cost) {
      MachineMeasurement& m = out.measurements.emplace_back();
      m.what = measurement_name(what);
      m.median_us = cost.duration.v * 1e6;
    };
    for (const int extent : {4096, 8192, 16384})
      add(SquareGemm{Dtype::bf16, extent}, model.price(Kernel(Gemm{extent, extent, extent})));
    const std::int64_t bytes = std::int64_t{1} << 29;
    add(CopyWithin{Bytes(bytes)}, model.price(Kernel(Pointwise{2.0 * static_cast<double>(bytes), 1})));
    for (const CopyDirection d : {CopyDirection::device_to_host, CopyDirection::host_to_device})
      add(CopyWork{Bytes(bytes), d}, model.price(CopyWork{Bytes(bytes), d}));
    add(SmallestKernel{}, model.price(Kernel(Pointwise{128, 1})));
    const Topology topology(cluster);
    for (const int ranks : {2, 4, 8})
      for (const CollectiveKind kind :
           {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter})
        for (const std::int64_t size : {1 << 16, 1 << 24, 1 << 28}) {
          const MeasuredCollective e{kind, Bytes(size), ranks, 1, one_device};
          CollectiveWork work = work_of(e);
          work.group = topology.group_of(*first_ranks(ranks, 1, cluster));
          add(e, model.price(work));
        }
    return out;
  }
  double found(const ProfileFit& fit, const std::string& key) const {
    for (const ConstantFit& k : fit.constants)
      if (k.constant.key == key) return k.value / k.constant.prior;
    return 0;
  }
};

TEST_F(ProfilePriors, FindTheConstantsThatMadeTheTimes) {
  CostConstants truth = constants_;
  truth.gemm_efficiency *= 0.85;
  truth.memory_efficiency *= 0.8;
  truth.link_efficiency *= 0.7;
  truth.host_copy_efficiency *= 0.6;
  const ProfileFit fit = profile_priors(profile(truth), "p.json", cluster_, presets_, rules_);
  EXPECT_NEAR(found(fit, "gemm_efficiency"), 0.85, 0.03);
  EXPECT_NEAR(found(fit, "memory_efficiency"), 0.8, 0.04);
  EXPECT_NEAR(found(fit, "link_efficiency"), 0.7, 0.06);
  EXPECT_NEAR(found(fit, "host_copy_efficiency"), 0.6, 0.07);
  EXPECT_EQ(fit.works, 20);  // of 24: not the attention cores
  EXPECT_LT(fit.mape_after, 4);
  EXPECT_GT(fit.mape_before, 15);
  for (const ConstantFit& k : fit.constants) EXPECT_LT(k.sigma, 2.1 * k.constant.sigma) << k.constant.key;
}

TEST_F(ProfilePriors, LeaveAMachineAsItsPresetWhereItIs) {
  const ProfileFit fit = profile_priors(profile(constants_), "p.json", cluster_, presets_, rules_);
  EXPECT_LT(fit.mape_before, 0.01);
  for (const ConstantFit& k : fit.constants)
    EXPECT_NEAR(k.value / k.constant.prior, 1, 1e-3) << k.constant.key;
}

TEST_F(ProfilePriors, TheMachineByItselfTellsThemToo) {
  CostConstants truth = constants_;
  truth.gemm_efficiency *= 0.85;
  truth.memory_efficiency *= 0.8;
  truth.host_copy_efficiency *= 0.6;
  truth.link_efficiency *= 0.7;
  truth.collective_start_us *= 1.6;
  ClusterSpec quick = cluster_;
  quick.device.launch_overhead = quick.device.launch_overhead * 0.3;
  WorkProfile bare;
  bare.machine = "NVIDIA H100 80GB HBM3";
  bare.facts = facts(quick, truth);
  const ProfileFit fit = profile_priors(bare, "p.json", cluster_, presets_, rules_);
  EXPECT_EQ(fit.works, 0);
  EXPECT_EQ(fit.measurements, 34);
  EXPECT_NEAR(found(fit, "gemm_efficiency"), 0.85, 0.03);
  EXPECT_NEAR(found(fit, "memory_efficiency"), 0.8, 0.04);
  EXPECT_NEAR(found(fit, "host_copy_efficiency"), 0.6, 0.07);
  EXPECT_NEAR(found(fit, "link_efficiency"), 0.7, 0.06);
  EXPECT_NEAR(found(fit, "collective_start_us"), 1.6, 0.1);
  EXPECT_NEAR(found(fit, "launch_overhead_us"), 0.3, 0.03);
  // Negative control: a machine that is its preset stays it.
  bare.facts = facts(cluster_, constants_);
  for (const ConstantFit& k : profile_priors(bare, "p.json", cluster_, presets_, rules_).constants)
    EXPECT_NEAR(k.value / k.constant.prior, 1, 1e-3) << k.constant.key;
  // Copies within one GPU's memory say nothing about links.
  bare.facts = facts(quick, truth, true);
  const ProfileFit shared = profile_priors(bare, "p.json", cluster_, presets_, rules_);
  EXPECT_EQ(shared.measurements, 7);
  EXPECT_EQ(found(shared, "link_efficiency"), 0);
}

TEST_F(ProfilePriors, WorksOfPlansTellMoreThanTheMachineByItself) {
  CostConstants of_plans = constants_, of_machine = constants_;
  of_plans.gemm_efficiency *= 0.85;
  of_plans.memory_efficiency *= 0.8;
  of_machine.gemm_efficiency *= 1.1;
  of_machine.memory_efficiency *= 0.5;
  of_machine.link_efficiency *= 0.7;
  WorkProfile both = profile(of_plans);
  std::erase_if(both.works, [](const auto& w) { return w.first.starts_with("all_gather"); });
  both.facts = facts(cluster_, of_machine);
  const ProfileFit fit = profile_priors(both, "p.json", cluster_, presets_, rules_);
  EXPECT_NEAR(found(fit, "gemm_efficiency"), 0.85, 0.03);
  EXPECT_NEAR(found(fit, "memory_efficiency"), 0.8, 0.04);
  EXPECT_NEAR(found(fit, "link_efficiency"), 0.7, 0.06) << "no work told it";
}

TEST_F(ProfilePriors, InterferenceIsWhatWasMeasuredBesideAnother) {
  MachineFacts facts;
  const auto add = [&](const char* what, const char* concurrent_with, double us) {
    MachineMeasurement& m = facts.measurements.emplace_back();
    m.what = what;
    m.concurrent_with = concurrent_with;
    m.median_us = us;
  };
  add("gemm bf16 4096x4096x4096 on 2 ranks", "", 100);
  add("all_reduce 1024B g2", "", 50);
  add("gemm bf16 4096x4096x4096", "", 100);
  add("copy device_to_host 64B", "", 10);
  add("copy host_to_device 64B", "", 10);
  add("copy host_to_device 64B", "copy device_to_host 64B", 14);
  add("all_reduce 1024B g2 one_device", "", 10);
  add("all_reduce 1024B g2 one_device", "gemm bf16 1x1x1", 99);
  EXPECT_TRUE(interference_of(facts).empty()) << "nothing ran beside a product, but within one device";
  add("gemm bf16 4096x4096x4096 on 2 ranks", "all_reduce 1024B g2", 112);
  add("all_reduce 1024B g2", "gemm bf16 4096x4096x4096 on 2 ranks", 45);
  add("gemm bf16 4096x4096x4096", "copy device_to_host 64B", 102);
  add("gemm bf16 4096x4096x4096", "copy host_to_device 64B", 104);
  add("copy host_to_device 64B", "gemm bf16 4096x4096x4096", 11);
  const auto found = interference_of(facts);
  ASSERT_EQ(found.size(), 4U);
  EXPECT_NEAR(found.at("comm_slows_compute"), 0.12, 1e-12);
  EXPECT_EQ(found.at("compute_slows_comm"), 0) << "faster is chance";
  EXPECT_NEAR(found.at("copy_slows_compute"), 0.03, 1e-12) << "the mean of both directions";
  EXPECT_NEAR(found.at("compute_slows_copy"), 0.1, 1e-12);
}

TEST_F(ProfilePriors, BelongToTheirDevice) {
  const auto taken = [&](const char* machine, const char* device) {
    WorkProfile p;
    p.machine = machine;
    return taken_on(p, load_device(device, presets_));
  };
  EXPECT_TRUE(taken("NVIDIA H100 80GB HBM3, cuBLASLt 13.0", "H100-SXM5-80GB"));
  EXPECT_FALSE(taken("NVIDIA H100 80GB HBM3, cuBLASLt 13.0", "A100-SXM4-80GB"));
  EXPECT_FALSE(taken("NVIDIA H100 PCIe, cuBLASLt 13.0", "H100-SXM5-80GB"));
  EXPECT_TRUE(taken("NVIDIA H100 PCIe, cuBLASLt 13.0", "H100-PCIe-80GB"));
  EXPECT_FALSE(taken("NVIDIA A100-SXM4-40GB, cuBLASLt 13.0", "A100-SXM4-80GB"));
  EXPECT_TRUE(taken("NVIDIA H200, cuBLASLt 13.0", "H200-SXM5-141GB"));
  EXPECT_FALSE(taken("NVIDIA H200, cuBLASLt 13.0", "H100-SXM5-80GB"));
  EXPECT_FALSE(taken("NVIDIA GB200, cuBLASLt 13.0", "B200-SXM6-180GB"));
  EXPECT_TRUE(taken("AMD EPYC 7742, 128 threads", "cpu"));
  EXPECT_FALSE(taken("NVIDIA H200, cuBLASLt 13.0", "cpu"));
  EXPECT_FALSE(taken("AMD EPYC 7742, 128 threads", "H100-SXM5-80GB"));
  EXPECT_FALSE(taken("", "cpu"));
  EXPECT_THROW(profile_priors(WorkProfile{}, "p.json", cluster_, presets_, rules_), ConfigError);
}

}  // namespace
}  // namespace sextant
