// Has the machine changed, or does it only vary? A sequential test of every step against what was predicted, which says where:
// a rank that computes slower than the others, a node whose exchanges with others take longer, or everything at once.
//
// Each is a series of logarithms z of measured over predicted time. Ranks are compared with the crowd of the same step (the
// lower median), so that what all share is no drift of one; what the model is off at all times, a stage or an exchange, is
// learnt from the first 200 steps. Page's two-sided cumulative sums (Page 1954, "Continuous inspection schemes"), z in units of
// its spread, clipped at kClip so that a single hiccup decides nothing:
//
//   up = max(0, up + z - k), down = max(0, down - z - k), an alarm where either exceeds h
//
// k is half of the smallest effect that matters, and at least half a spread. h is chosen so that the mean number of steps
// between false alarms of all series together is ten times what the options state, by Siegmund's approximation (1985,
// "Sequential analysis", 10.17) for one sum, (exp(2kb) - 2kb - 1) / 2k^2 with b = h + 1.166, and so that no fewer than kSteps
// steps in a row can raise an alarm.
//
// Ignores noise that stays the same for tens of steps: it is a drift, as long as it lasts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/units.hpp"

namespace sextant {

// One step as it was measured, in times of what a sound machine would take.
struct StepObservation {
  std::int64_t step = 0;
  Seconds duration;
  std::vector<double> compute;  // by rank: its own work
  std::vector<double>
      network;  // by node: its exchanges with other nodes, once all had come; 0: there were none
};

// What is expected of it, on the machine as it is believed to be.
struct ExpectedStep {
  std::vector<double> compute;  // by rank: 2 of a device that takes twice as long
  std::vector<double> network;  // by node
  std::vector<int> stage;       // by rank: ranks of one stage do the same work
};

struct DriftOptions {
  double steps_per_false_alarm = 10'000;
  double least_effect = 0.05;  // changes of less than this share do not matter
  int warm_up = 8;             // steps from which noise and bias are learnt
};

struct Drift {
  struct Part {
    int index = 0;     // of a rank, or of a node
    double times = 1;  // as long as was expected
  };
  std::int64_t onset = 0, seen = 0;  // steps
  std::vector<Part> ranks, nodes;
  double everything = 1;  // times as long as in the first steps, on all ranks alike
};

class DriftWatch {
 public:
  static constexpr double kClip = 4;
  static constexpr int kSteps = 5;

  explicit DriftWatch(ExpectedStep, const DriftOptions& = {});
  // In the order of steps. An alarm says all that is clearly not as expected; the watch goes on from what it has found.
  std::optional<Drift> observe(const StepObservation&);
  bool warm() const { return seen_ >= options_.warm_up; }

 private:
  struct Series {
    double bias = 0, up = 0, down = 0;
    std::vector<double> since_up, since_down;  // z since the sum was zero
    std::int64_t up_from = 0, down_from = 0;
    std::vector<double> first;  // of the warm-up
  };
  // Series that share their spread.
  struct Kind {
    std::vector<Series> series;
    double sum = 0, squares = 0;
    std::int64_t count = 0;
    double spread() const;
  };

  void learn(Kind&, std::span<const double> z);
  void end_warm_up();
  bool test(Kind&, std::span<const double> z, std::int64_t step);
  double slack(const Kind&) const;
  double threshold(const Kind&) const;
  std::vector<Drift::Part> drifted(Kind&, std::int64_t& onset);

  ExpectedStep expected_;
  DriftOptions options_;
  Kind ranks_, nodes_, all_;
  int seen_ = 0;
};

}  // namespace sextant
