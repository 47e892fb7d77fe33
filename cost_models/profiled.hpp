// A cost model over a table of measured works: measured first, interpolated next, another model last.
//
// A work that was not measured takes what the other model says, a, times how far measured works of its family and of
// about its size were from that model, r = measured / modelled. Its size is a itself. Between the nearest smaller and the
// nearest larger one, of sizes a0 < a < a1,
//
//   log r = log r0 + (log r1 - log r0) (log a - log a0) / (log a1 - log a0)        seconds in, seconds out
//
// so that the logarithm of time is linear in the logarithm of size from one measured work to the next: it meets both, lies
// between both, and rises where they do. Works of one size count as their geometric mean. Neighbours are at most a factor
// of kMostApart apart; with none on either side, or none so near, the other model has the last word: nothing is
// extrapolated, and the time may jump where the measured range ends.
//
// Ignores shape: works of one family and one modelled time are as far from the model as each other, whatever their extents.
// Neither spread nor number of samples counts.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/timeline/work_profile.hpp"
#include "cost_models/cost_model.hpp"
#include "cost_models/work_family.hpp"

namespace sextant {

// What a work takes that no run has timed, told by a measurement of another kind.
struct ToldTime {
  Work work;
  Seconds took;
};

// Modelled times of two measured works that something is interpolated between.
inline constexpr double kMostApart = 16;

// How well a table tells of its own works: those that lie between others, each left out.
struct LeftOutWorks {
  int works = 0;
  // Off by a factor of 1 + percent / 100, up or down, in the geometric mean; by the other model alone.
  double interpolated_percent = 0, modelled_percent = 0;
};

class ProfiledCostModel final : public CostModel {
 public:
  // The other model outlives this one; the profile need not. Of families that the profile has no work of, times that are
  // told are interpolated between, and never count as measured. Throws ConfigError on a key that is none.
  ProfiledCostModel(const WorkProfile&, const CostModel& otherwise, std::span<const ToldTime> told = {});
  // The parts of a cost are the other model's, in the proportion in which its duration is.
  OpCost price(const Work&) const override;
  LeftOutWorks left_out() const;

 private:
  struct Knot {
    double size, ratio;  // logarithms
  };
  // log r at the logarithm of a size; false where the family has no neighbours for it.
  struct Family {
    std::vector<Knot> knots;  // by size, ascending
    bool told = false;        // not by works of a run
  };
  enum class Origin : std::uint8_t { run, told };
  void add_knot(const Work&, const OpCost& modelled, double seconds, Origin);
  static bool interpolate(std::span<const Knot>, double size, double& ratio);

  const CostModel& otherwise_;
  std::unordered_map<Work, OpCost, WorkHash> measured_;
  std::unordered_map<Work, Family, WorkHash> families_;
};

}  // namespace sextant
