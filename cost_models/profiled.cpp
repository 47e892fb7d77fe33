#include "cost_models/profiled.hpp"

#include <algorithm>
#include <cmath>

namespace sextant {
namespace {

constexpr double kSameSize = 1e-9;  // difference of logarithms

OpCost scaled(OpCost cost, double factor, CostSource source, bool overlapped) {
  for (Seconds* part : {&cost.duration, &cost.compute, &cost.memory, &cost.latency}) *part = *part * factor;
  cost.source = source;
  cost.overlapped = overlapped;
  return cost;
}

bool positive(double x) { return std::isfinite(x) && x > 0; }

}  // namespace

void ProfiledCostModel::add_knot(const Work& work, const OpCost& modelled, double seconds, Origin origin) {
  const bool told = origin == Origin::told;
  const double size = modelled.duration.v;
  if (!positive(size) || !positive(seconds)) return;
  Family& family = families_[family_of(work)];
  if (family.knots.empty()) family.told = told;
  if (family.told == told) family.knots.push_back({std::log(size), std::log(seconds / size)});
}

ProfiledCostModel::ProfiledCostModel(const WorkProfile& profile, const CostModel& otherwise,
                                     std::span<const ToldTime> told)
    : otherwise_(otherwise) {
  for (const auto& [key, measured] : profile.works) {
    const Work work = parse_work_key(key);
    const OpCost modelled = otherwise_.price(work);
    const double seconds = measured.mean_us * 1e-6, size = modelled.duration.v;
    OpCost cost = scaled(modelled, positive(size) ? seconds / size : 0, CostSource::measured, true);
    cost.duration = Seconds(seconds);  // to the last bit
    measured_.emplace(work, cost);
    add_knot(work, modelled, seconds, Origin::run);
  }
  for (const ToldTime& t : told) add_knot(t.work, otherwise_.price(t.work), t.took.v, Origin::told);
  for (auto& [work, family] : families_) {
    std::vector<Knot>& knots = family.knots;
    std::ranges::sort(knots, [](const Knot& a, const Knot& b) {
      return a.size != b.size ? a.size < b.size : a.ratio < b.ratio;
    });
    std::vector<Knot> merged;
    for (std::size_t i = 0, n = 0; i < knots.size(); i += n) {
      double sum = 0;
      for (n = 0; i + n < knots.size() && knots[i + n].size - knots[i].size <= kSameSize; ++n)
        sum += knots[i + n].ratio;
      merged.push_back({knots[i].size, sum / static_cast<double>(n)});
    }
    knots = std::move(merged);
  }
}

bool ProfiledCostModel::interpolate(std::span<const Knot> knots, double size, double& ratio) {
  const auto first = std::ranges::lower_bound(knots, size - kSameSize, {}, &Knot::size);
  const auto at = static_cast<std::size_t>(first - knots.begin());
  // Between the knot before and this one; at the size of this one, between it and the next as well.
  for (std::size_t i = std::max<std::size_t>(at, 1); i < std::min(at + 2, knots.size()); ++i) {
    const Knot &below = knots[i - 1], &above = knots[i];
    const double apart = above.size - below.size;
    if (below.size > size + kSameSize || apart > std::log(kMostApart)) continue;
    ratio = std::lerp(below.ratio, above.ratio, std::clamp((size - below.size) / apart, 0.0, 1.0));
    return true;
  }
  return false;
}

LeftOutWorks ProfiledCostModel::left_out() const {
  LeftOutWorks out;
  for (const auto& [work, family] : families_) {
    const std::vector<Knot>& knots = family.knots;
    for (std::size_t i = 1; i + 1 < knots.size() && !family.told; ++i) {
      const Knot around[] = {knots[i - 1], knots[i + 1]};
      double ratio = 0;
      if (!interpolate(around, knots[i].size, ratio)) continue;
      ++out.works;
      out.interpolated_percent += std::abs(ratio - knots[i].ratio);
      out.modelled_percent += std::abs(knots[i].ratio);
    }
  }
  for (double* sum : {&out.interpolated_percent, &out.modelled_percent})
    *sum = 100 * std::expm1(*sum / std::max(1, out.works));
  return out;
}

OpCost ProfiledCostModel::price(const Work& work) const {
  if (const auto found = measured_.find(work); found != measured_.end()) return found->second;
  const OpCost modelled = otherwise_.price(work);
  const auto family = families_.find(family_of(work));
  if (family == families_.end() || !positive(modelled.duration.v)) return modelled;
  double ratio = 0;
  const auto& [knots, told] = family->second;
  if (!interpolate(knots, std::log(modelled.duration.v), ratio)) return modelled;
  return scaled(modelled, std::exp(ratio), CostSource::interpolated, !told);
}

}  // namespace sextant
