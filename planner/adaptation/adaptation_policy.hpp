// When does a run change its layout, and to which? A drift becomes a defect of the cluster; the best layouts for that cluster
// are searched beside training; one is taken when what it gains over the steps that are left, with the uncertainty against it, is
// more than what the change costs. What is measured afterwards decides whether it stays: less than half of what was
// predicted, and the run goes back, and knows better next time.
//
//   gain = (now - then (1 + uncertainty)) steps_left - move
//
// `now` is measured since the drift began, `then` is predicted and corrected by what the present layout was measured at over
// what was predicted for it; or by the same of that layout where it has been tried, and then with little uncertainty. Knows nothing
// of how layouts are searched, predicted or run, nor of whether steps are real: the same policy runs on the virtual clock.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/adaptation/drift.hpp"
#include "planner/adaptation/machine_belief.hpp"

namespace sextant {

// A plan whose ranks sit on the usable GPUs in their order, but for those left idle.
struct Layout {
  ParallelPlan plan;
  std::vector<GpuPlace> idle;
  bool operator==(const Layout&) const = default;
};
// The cluster with the layout's idle GPUs missing.
ClusterSpec used_by(const Layout&, ClusterSpec);

struct Forecast {
  Layout layout;
  Seconds step;
  bool tried = false;  // some time in this run
};

enum class DecisionKind : std::uint8_t {
  stay,       // nothing that is left to gain pays for a change
  change,     // another layout from now on
  keep,       // a change held what it promised
  go_back,    // it did not
  lost,       // ranks are gone: another layout from now on
  no_layout,  // no layout is possible on what is left
};
std::string_view name(DecisionKind);

struct Decision {
  DecisionKind kind = DecisionKind::stay;
  int number = 0;
  std::int64_t step = 0;  // the last one done
  std::int64_t onset = 0, seen = 0;
  std::string trigger;                // one word: drift, lost, joined, verified
  std::vector<std::string> evidence;  // lines
  Layout from, to;                    // `to` where the layout changes
  std::vector<Forecast> alternatives;
  Seconds now, then, move;  // a step, a step, once
  std::int64_t steps_left = 0;
  double uncertainty = 0;
  std::string why;
  bool changes() const {
    return kind == DecisionKind::change || kind == DecisionKind::go_back || kind == DecisionKind::lost;
  }
  Seconds gain() const { return (now - then * (1 + uncertainty)) * static_cast<double>(steps_left) - move; }
};

// How layouts are found and judged; `cluster` is the machine as it is believed to be.
struct AdaptationTools {
  // Best first; on a thread of its own. Once `abandoned` is true nobody wants them: what there is by then, soon.
  std::function<std::vector<Forecast>(const ClusterSpec& cluster, const std::atomic<bool>& abandoned)> plans;
  std::function<Seconds(const Layout&, const ClusterSpec& cluster)> step;
  std::function<Seconds(const Layout& to, const ClusterSpec& cluster)> move;
};

struct AdaptationOptions {
  DriftOptions drift;
  double uncertainty = 0.05;        // by which two predictions of one job are wrong against each other
  double uncertainty_tried = 0.01;  // by which a layout takes another time than when it was tried
  int verify_steps = 8;             // from which a change is judged
  int decided = 0;                  // decisions of the run before this policy's first
  std::vector<GpuPlace> lost = {};  // before it
  bool leaves_idle = true;          // a layout may, from now on
  bool waits = false;  // for a search, in the step that begins it: the same decisions in every run
};

class AdaptationPolicy {
 public:
  AdaptationPolicy(ClusterSpec given, Layout, AdaptationTools, AdaptationOptions = {});
  ~AdaptationPolicy();

  // Behind every step. A decision that changes the layout is carried out by the caller, who then says how long it took.
  std::optional<Decision> observe(const StepObservation&, std::int64_t steps_left);
  void changed(Seconds took);
  // Ranks are gone, known at once; ranks are there again, a reason to search.
  Decision lose(const std::vector<GpuPlace>&, std::int64_t step, std::int64_t steps_left);
  void find(const std::vector<GpuPlace>&, std::int64_t step);

  // Of a layout that was tried: what it takes, against what is predicted.
  void measured(const Layout&, Seconds step);

  const Layout& layout() const { return layout_; }
  // Of the search that goes on.
  const std::vector<std::string>& evidence() const { return pending_.evidence; }
  const MachineBelief& belief() const { return belief_; }
  bool searching() const { return search_.valid(); }

 private:
  void watch();
  void begin_search(std::string trigger, std::vector<std::string> evidence, std::int64_t onset,
                    std::int64_t seen);
  void abandon_search();
  Decision decide(std::int64_t step, std::int64_t steps_left);
  std::optional<Decision> verify(std::int64_t step, std::int64_t steps_left);
  Decision begun(DecisionKind, std::int64_t step, std::int64_t steps_left);
  std::optional<Seconds> typical(std::int64_t from, std::int64_t to) const;  // of these steps of the layout
  double correction(const Layout&) const;
  bool tried(const Layout&) const;
  bool possible(const Layout& l) const { return options_.leaves_idle || l.idle.empty(); }
  double uncertainty(const Forecast& f) const {
    return f.tried ? options_.uncertainty_tried : options_.uncertainty;
  }
  void correct(std::vector<Forecast>&) const;  // and order them, uncertainty against them

  MachineBelief belief_;
  Layout layout_;
  AdaptationTools tools_;
  AdaptationOptions options_;
  std::optional<DriftWatch> watch_;
  std::deque<std::pair<std::int64_t, Seconds>> recent_;  // steps of this layout
  struct Tried {
    Layout layout;
    double correction = 1;  // measured over predicted
  };
  std::vector<Tried> tried_;

  std::atomic<bool> abandoned_ = false;  // the search
  std::future<std::vector<Forecast>> search_;
  Decision pending_;  // what began the search

  struct Trial {
    Decision decision;
    Seconds before;  // measured
  };
  std::optional<Trial> trial_;
  int decisions_ = 0;
  Seconds restart_;  // what a change has cost beyond moving
};

}  // namespace sextant
