// A small question with a given device memory, and its search space.
#pragma once

#include "planner/search/search_space.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {

using testing::OwnedJob;

inline OwnedJob job_of(double memory_GiB, int nodes = 2) {
  OwnedJob owned = testing::small_job(nodes, 4, 8);
  owned.cluster.device.memory = from_gib(memory_GiB);
  owned.finish();
  return owned;
}

inline SearchSpace space_of(const OwnedJob& owned) {
  SearchSpace s = default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
  s.axis_order.resize(1);
  s.activation_offload = {{0, 1}};
  s.optimizer_offload = {0};
  s.parameter_offload = {0};
  return s;
}

}  // namespace sextant
