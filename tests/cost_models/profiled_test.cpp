// A table of measured works over a model. Expectation: what was measured is met to the last bit; between two measured works
// of a family time is between theirs, without a jump, and rises where they do; a table that is the model times a constant is that
// constant everywhere inside; and nothing is told of other families, beyond the ends or over wide gaps.
#include "cost_models/profiled.hpp"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/base/error.hpp"
#include "tests/cost_models/machines.hpp"

namespace sextant {
namespace {

using enum CostSource;

const AnalyticCostModel& model() {
  static const AnalyticCostModel m(test::h100_cluster(), {}, test::preset_dir());
  return m;
}
double modelled(const Work& work) { return model().price(work).duration.v; }

void add(WorkProfile& profile, const Work& work, double seconds) {
  profile.works[work_key(work)] = {.mean_us = seconds * 1e6, .median_us = seconds * 1e6};
}
Work copy(std::int64_t bytes, CopyDirection way = CopyDirection::host_to_device) {
  return CopyWork{Bytes(bytes), way};
}
Work gather(std::int64_t bytes, int ranks = 8) {
  return CollectiveWork{CollectiveKind::all_gather, Bytes(bytes), test::inside(test::h100_cluster(), ranks),
                        false};
}
BlockWork mlp(int batch, int hidden = 4096) {
  BlockWork w;
  w.kind = BlockKind::mlp;
  w.batch = batch;
  w.seq_q = w.seq_k = 2048;
  w.hidden = hidden;
  w.head_dim = 128;
  w.ffn = 3 * hidden;
  return w;
}

// Of one family, of any size: by the family's number.
constexpr int kFamilies = 6;
Work any_of(int family) {
  const std::int64_t n = *rc::gen::inRange<std::int64_t>(1, 1 << 30);
  const GroupShape across = test::across(test::h100_cluster(), 4, 8);
  switch (family) {
    case 0:
      return copy(n);
    case 1:
      return gather(n);
    case 2:
      return CollectiveWork{CollectiveKind::all_reduce, Bytes(n), across, false};
    case 3:
      return TransferWork{Bytes(n), test::across(test::h100_cluster(), 2, 1)};
    case 4:
      return StateWork{StateKind::update, n};
    default:
      return mlp(*rc::gen::inRange(1, 65), 128 * *rc::gen::inRange(4, 65));
  }
}

struct Table {
  WorkProfile profile;
  std::vector<Work> works;
};
// A handful of works of every family, each as far from the model as `ratio` says.
template <class Ratio>
Table any_table(const Ratio& ratio) {
  Table t;
  for (int family = 0; family < kFamilies; ++family)
    for (int i = *rc::gen::inRange(0, 8); i > 0; --i) {
      const Work work = t.works.emplace_back(any_of(family));
      add(t.profile, work, ratio() * modelled(work));
    }
  return t;
}
double any_ratio() { return std::exp(*rc::gen::inRange(-100, 101) / 50.0); }

RC_GTEST_PROP(Profiled, MeetsWhatWasMeasured, ()) {
  const Table t = any_table(any_ratio);
  const ProfiledCostModel cost(t.profile, model());
  for (const auto& [key, entry] : t.profile.works) {
    const OpCost c = cost.price(parse_work_key(key));
    RC_ASSERT(c.source == measured);
    RC_ASSERT(c.duration.v == entry.mean_us * 1e-6);
  }
}

// What a machine is that takes 1.37 times as long for everything; and outside of what was measured, the model.
RC_GTEST_PROP(Profiled, AConstantFactorIsThatFactorEverywhereBetween, ()) {
  const double factor = any_ratio();
  const Table t = any_table([&] { return factor; });
  const ProfiledCostModel cost(t.profile, model());
  const Work work = any_of(*rc::gen::inRange(0, kFamilies));
  const OpCost c = cost.price(work), plain = model().price(work);
  RC_TAG(static_cast<int>(c.source));
  const double expected = c.source == analytic ? 1 : factor;
  RC_ASSERT(std::abs(c.duration.v / plain.duration.v - expected) <= 1e-12 * expected);
  RC_ASSERT(std::abs(c.compute.v - expected * plain.compute.v) <= 1e-12 * expected * plain.duration.v);
  RC_ASSERT(std::abs(c.memory.v - expected * plain.memory.v) <= 1e-12 * expected * plain.duration.v);
}

// By the definition: nearest neighbours in modelled time, looked for one by one.
RC_GTEST_PROP(Profiled, IsBetweenTheNearestOnEitherSide, ()) {
  const Table t = any_table(any_ratio);
  const ProfiledCostModel cost(t.profile, model());
  const Work work = any_of(*rc::gen::inRange(0, kFamilies));
  RC_PRE(!t.profile.works.contains(work_key(work)));
  const double a = modelled(work);
  double below = 0, above = INFINITY;
  std::vector<double> ratios_below, ratios_above;
  for (const Work& known : t.works) {
    if (family_of(known) != family_of(work)) continue;
    const double size = modelled(known);
    if (size <= a && size >= below) {
      if (size > below) ratios_below.clear();
      below = size;
      ratios_below.push_back(cost.price(known).duration.v / size);
    }
    if (size >= a && size <= above) {
      if (size < above) ratios_above.clear();
      above = size;
      ratios_above.push_back(cost.price(known).duration.v / size);
    }
  }
  const OpCost c = cost.price(work);
  RC_PRE(below != a && above != a);  // of the same size: another test
  const bool near = below > 0 && above < INFINITY && above / below <= kMostApart;
  RC_ASSERT(c.source == (near ? interpolated : analytic));
  if (!near) return;
  ratios_below.insert(ratios_below.end(), ratios_above.begin(), ratios_above.end());
  const auto [least, most] = std::ranges::minmax(ratios_below);
  const double ratio = c.duration.v / a;
  RC_ASSERT(ratio >= least * (1 - 1e-9) && ratio <= most * (1 + 1e-9));
}

// Larger works take longer, as long as larger measured ones do.
RC_GTEST_PROP(Profiled, RisesWhereTheDataRise, ()) {
  WorkProfile profile;
  double last = 0;
  for (std::int64_t bytes = 1 << 16; bytes <= 1 << 30; bytes *= *rc::gen::element(2, 4, 8)) {
    last = std::max(last, any_ratio() * modelled(gather(bytes)));
    add(profile, gather(bytes), last);
  }
  const ProfiledCostModel cost(profile, model());
  double before = 0;
  for (double bytes = 1 << 16; bytes <= 1 << 30; bytes *= 1.0905) {
    const OpCost c = cost.price(gather(static_cast<std::int64_t>(bytes)));
    if (c.source == analytic) break;  // behind the last one
    RC_ASSERT(c.duration.v >= before * (1 - 1e-12));
    before = c.duration.v;
  }
  RC_ASSERT(before <= last * (1 + 1e-12));
}

TEST(Profiled, DoesNotJumpAtWhatWasMeasured) {
  WorkProfile profile;
  for (const auto& [bytes, ratio] : {std::pair{1 << 20, 0.5}, {1 << 22, 3.0}, {1 << 24, 0.8}})
    add(profile, copy(bytes), ratio * modelled(copy(bytes)));
  const ProfiledCostModel cost(profile, model());
  for (std::int64_t bytes = 1 << 20; bytes < 1 << 24; bytes += bytes / 1000) {
    const double here = cost.price(copy(bytes)).duration.v, next = cost.price(copy(bytes + 1)).duration.v;
    EXPECT_NEAR(next / here, 1, 1e-5) << bytes;
  }
  EXPECT_EQ(cost.price(copy((1 << 22) - 1)).source, interpolated);
  EXPECT_EQ(cost.price(copy(1 << 22)).source, measured);
}

// By hand: half way in the logarithm of size, the geometric mean of 0.5 and 2.
TEST(Profiled, IsLinearInTheLogarithms) {
  const auto bytes_of = [](double seconds) {  // of copies so large that their time goes with their bytes
    return static_cast<std::int64_t>(seconds / modelled(copy(std::int64_t{1} << 34)) * 0x1p34);
  };
  WorkProfile profile;
  const Work small = copy(bytes_of(1)), middle = copy(bytes_of(3)), large = copy(bytes_of(9));
  add(profile, small, 0.5 * modelled(small));
  add(profile, large, 2 * modelled(large));
  const ProfiledCostModel cost(profile, model());
  EXPECT_NEAR(cost.price(middle).duration.v, 3, 1e-3);
  EXPECT_NEAR(cost.price(copy(bytes_of(std::sqrt(3)))).duration.v, std::sqrt(3) * std::sqrt(0.5), 1e-3);
}

TEST(Profiled, ExtrapolatesNothing) {
  WorkProfile profile;
  add(profile, copy(1 << 26), 1);
  EXPECT_EQ(ProfiledCostModel(profile, model()).price(copy(1 << 25)).source, analytic) << "one is no pair";
  add(profile, copy(1 << 27), 2);
  const ProfiledCostModel cost(profile, model());
  for (const std::int64_t bytes : {1 << 20, (1 << 26) - 1, (1 << 27) + 1, 1 << 30}) {
    EXPECT_EQ(cost.price(copy(bytes)).source, analytic) << bytes;
    EXPECT_EQ(cost.price(copy(bytes)).duration.v, modelled(copy(bytes)));
  }
  EXPECT_EQ(cost.price(copy(100'000'000)).source, interpolated) << "control";
}

// Told by another kind of measurement: of families without a work, and between the ends alone.
TEST(Profiled, WhatIsToldIsInterpolatedAndNeverMeasured) {
  const std::int64_t small = 1 << 20, large = 1 << 22, between = 1 << 21;
  const std::vector<ToldTime> told = {{gather(small), Seconds(2 * modelled(gather(small)))},
                                      {gather(large), Seconds(2 * modelled(gather(large)))},
                                      {copy(small), Seconds(5 * modelled(copy(small)))},
                                      {copy(large), Seconds(5 * modelled(copy(large)))}};
  WorkProfile profile;
  add(profile, copy(small), 3 * modelled(copy(small)));
  add(profile, copy(large), 3 * modelled(copy(large)));
  const ProfiledCostModel table(profile, model(), told);
  for (const std::int64_t bytes : {small, between, large}) {
    EXPECT_EQ(table.price(gather(bytes)).source, interpolated);
    EXPECT_NEAR(table.price(gather(bytes)).duration.v / modelled(gather(bytes)), 2, 1e-12);
  }
  EXPECT_EQ(table.price(gather(2 * large)).source, analytic);
  EXPECT_NEAR(table.price(copy(between)).duration.v / modelled(copy(between)), 3, 1e-12)
      << "a work of the family has been timed";
}

TEST(Profiled, LeavesWideGapsToTheModel) {
  const auto source = [](std::int64_t largest) {
    WorkProfile profile;
    add(profile, copy(1 << 26), 1);
    add(profile, copy(largest), 2);
    return ProfiledCostModel(profile, model()).price(copy(1 << 27)).source;
  };
  EXPECT_EQ(source(std::int64_t{15} << 26), interpolated);
  EXPECT_EQ(source(std::int64_t{17} << 26), analytic);
}

TEST(Profiled, TellsNothingOfOtherFamilies) {
  const auto collective = [](std::int64_t bytes) { return std::get<CollectiveWork>(gather(bytes)); };
  const auto transfer = [](std::int64_t bytes) {
    return TransferWork{Bytes(bytes), test::across(test::h100_cluster(), 2, 1)};
  };
  const auto update = [](std::int64_t n) { return StateWork{StateKind::update, n}; };
  WorkProfile profile;
  for (const std::int64_t n : {1 << 23, 1 << 25})
    for (const Work& work : {Work(copy(n)), Work(collective(n)), Work(transfer(n)), Work(update(n))})
      add(profile, work, 1);
  for (const int batch : {1, 4}) add(profile, mlp(batch), 1);
  const ProfiledCostModel cost(profile, model());
  const auto source = [&](auto work, auto change) {
    EXPECT_EQ(cost.price(work).source, interpolated) << work_key(work) << ": control";
    change(work);
    EXPECT_EQ(cost.price(work).duration.v, modelled(work)) << work_key(work);
    return cost.price(work).source;
  };
  const std::int64_t n = 1 << 24;
  EXPECT_EQ(source(CopyWork{Bytes(n), CopyDirection::host_to_device},
                   [](auto& w) { w.direction = CopyDirection::device_to_host; }),
            analytic);
  EXPECT_EQ(source(collective(n), [](auto& w) { w.kind = CollectiveKind::all_reduce; }), analytic);
  EXPECT_EQ(source(collective(n), [](auto& w) { w.group.size = w.group.ranks_per_node = 4; }), analytic);
  EXPECT_EQ(source(collective(n), [](auto& w) { w.tp_overlapped = true; }), analytic);
  EXPECT_EQ(source(collective(n), [](auto& w) { w.group.node_bandwidth = w.group.node_bandwidth * 0.5; }),
            analytic)
      << "another link is another group";
  EXPECT_EQ(source(transfer(n), [](auto& w) { w.link.nodes = 1; }), analytic);
  EXPECT_EQ(source(update(n), [](auto& w) { w.kind = StateKind::norm; }), analytic);
  EXPECT_EQ(source(update(n), [](auto& w) { w.host = true; }), analytic);
  EXPECT_EQ(source(update(n), [](auto& w) { w.gradient = Dtype::bf16; }), analytic);
  EXPECT_EQ(source(mlp(2), [](auto& w) { w.pass = Pass::backward; }), analytic);
  EXPECT_EQ(source(mlp(2), [](auto& w) { w.dtype = Dtype::fp32; }), analytic);
  EXPECT_EQ(source(mlp(2), [](auto& w) { w.kind = BlockKind::attention; }), analytic);
  EXPECT_EQ(source(mlp(2), [](auto& w) { w.head_dim = 64; }), analytic);
  EXPECT_EQ(source(mlp(2), [](auto& w) { w.gated = false; }), analytic);
  EXPECT_EQ(source(mlp(2), [](auto& w) { w.recompute_core = true; }), analytic);
  BlockWork narrow = mlp(4, 2048);  // of the family, whatever its width
  EXPECT_EQ(cost.price(narrow).source, interpolated);
}

// Extents that make no difference to the model: one size, two times.
TEST(Profiled, WorksOfOneSizeCountAsTheirGeometricMean) {
  BlockWork one = mlp(4), other = one, asked = one;
  other.heads = 7;
  asked.heads = 9;
  ASSERT_EQ(modelled(one), modelled(other));
  WorkProfile profile;
  add(profile, mlp(1), modelled(mlp(1)));
  add(profile, one, 2 * modelled(one));
  add(profile, other, 8 * modelled(other));
  const ProfiledCostModel cost(profile, model());
  EXPECT_NEAR(cost.price(asked).duration.v, 4 * modelled(one), 1e-12);
  EXPECT_EQ(cost.price(asked).source, interpolated);
  EXPECT_NEAR(cost.price(other).duration.v, 8 * modelled(other), 1e-12);
}

// Five sizes, twice as long as modelled but the middle one, which is three times as long. Left out, it is taken for twice as
// long, and each of its neighbours for the geometric mean of 2 and 3.
TEST(Profiled, SaysHowFarItIsOffWhatItHas) {
  WorkProfile profile;
  for (const std::int64_t mib : {1, 2, 4, 8, 16})
    add(profile, copy(mib << 20), (mib == 4 ? 3 : 2) * modelled(copy(mib << 20)));
  const LeftOutWorks out = ProfiledCostModel(profile, model()).left_out();
  EXPECT_EQ(out.works, 3);
  EXPECT_NEAR(out.modelled_percent, 100 * (std::cbrt(2 * 2 * 3) - 1), 1e-9);
  EXPECT_NEAR(out.interpolated_percent, 100 * (std::cbrt(1.5 * 1.5) - 1), 2);
  EXPECT_EQ(ProfiledCostModel(WorkProfile{}, model()).left_out().works, 0);
}

// A work that takes no time, in the table or by the model, is no neighbour.
TEST(Profiled, NothingIsToldByWorksWithoutTime) {
  WorkProfile profile;
  add(profile, copy(1 << 24), 0);
  add(profile, copy(1 << 26), 1);
  const ProfiledCostModel cost(profile, model());
  EXPECT_EQ(cost.price(copy(1 << 24)).source, measured);
  EXPECT_EQ(cost.price(copy(1 << 24)).duration.v, 0);
  EXPECT_EQ(cost.price(copy(1 << 25)).source, analytic);
  const ProfiledCostModel empty(WorkProfile{}, model());
  EXPECT_EQ(empty.price(mlp(1)).source, analytic);
  WorkProfile broken;
  broken.works["no such work"] = {};
  EXPECT_THROW(ProfiledCostModel(broken, model()), ConfigError);
}

RC_GTEST_PROP(WorkFamilies, EqualWorksHaveEqualHashes, ()) {
  const Work work = any_of(*rc::gen::inRange(0, kFamilies));
  RC_ASSERT(WorkHash{}(work) == WorkHash{}(parse_work_key(work_key(work))));
  RC_ASSERT(family_of(family_of(work)) == family_of(work));
}

}  // namespace
}  // namespace sextant
