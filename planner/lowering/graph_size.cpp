#include "planner/lowering/graph_size.hpp"

#include <fmt/format.h>

namespace sextant {

std::string too_many_passes(const ModelSpec& model, int microbatches) {
  return fmt::format(
      "micro-batches of a step are {}, expected at most {} with {} layers (more are not simulated): larger "
      "micro-batches, or more dp",
      microbatches, kMostPasses / model.n_layers, model.n_layers);
}

}  // namespace sextant
