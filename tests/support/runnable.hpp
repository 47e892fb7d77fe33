// A training that the runtime can carry out: in one format, sums and state in its accumulator's.
#pragma once

#include "core/graph/block_tensors.hpp"
#include "kernels/tensor_view.hpp"
#include "tests/support/specs.hpp"

namespace sextant::testing {

inline TrainingSpec runnable_training(int global_batch, Dtype dtype = Dtype::fp32, int seq_len = 32) {
  TrainingSpec t = tiny_training(global_batch);
  t.seq_len = seq_len;
  t.compute = dtype;
  t.parameter = kept_as(dtype);
  t.gradient = t.reduction = t.optimizer_state = accumulator_of(dtype);
  t.stack = "sextant";
  return t;
}

}  // namespace sextant::testing
