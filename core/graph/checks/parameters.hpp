// Is every parameter of a stage updated once, gathered or fetched before it is used, and used by every pass of every
// micro-batch?
#pragma once

#include <array>

#include "core/graph/checks/stage_facts.hpp"

namespace sextant::checks {

class ParameterCheck {
 public:
  ParameterCheck(const StageFacts&, ProblemList&);
  void count_use(std::size_t parameter, Pass);
  void use(OpId, const Parameter&, const Access& read);  // a block reads it
  void fetch(OpId);                                      // gather, or copy from the host
  void update(OpId);
  void bring_back(OpId);  // a copy between host and device after the update
  void finish();

 private:
  struct State {
    BufferId home = kUnknown;            // where blocks read parameters that are not fetched
    std::vector<Interval> updated;       // of the slice at rest
    std::vector<Interval> update_reads;  // of the owned gradient
    OpId first_use = std::numeric_limits<OpId>::max();
    int gathers = 0;
  };
  // What a ring buffer holds: a bucket's parameters, fetched for one visit.
  struct Fetched {
    int bucket = -1;
    int visit = -1;  // of its first reader
  };
  struct Update {
    Interval span;
    OpId op = 0;
  };

  void passes();
  void totals();
  void tiles(std::size_t b, std::vector<Interval> spans, Interval all, const char* what);

  const StageFacts& facts_;
  ProblemList& problems_;
  std::vector<State> buckets_;
  std::vector<BufferId> rest_;                       // as facts tell, or where blocks read
  std::vector<std::array<int, 6>> uses_;             // [parameter][Pass]
  std::map<BufferId, int> optimizer_;                // updates of each optimizer state
  std::map<BufferId, Fetched> units_;                // rings of fetched parameters
  std::map<BufferId, std::vector<Update>> updates_;  // of parameters at rest
  std::set<std::pair<BufferId, bool>> host_touched_;
  std::int64_t device_elements_ = 0, host_elements_ = 0;
};

}  // namespace sextant::checks
