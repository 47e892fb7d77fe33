// The graph of a step grows with its micro-batches. One of so many passes of a layer takes about 1 GiB of this machine's
// memory, and none that is trained has more.
#pragma once

#include <cstdint>
#include <string>

#include "core/model/model_spec.hpp"

namespace sextant {

inline constexpr std::int64_t kMostPasses = std::int64_t{1} << 20;  // micro-batches * layers

inline bool has_too_many_passes(const ModelSpec& model, int microbatches) {
  return std::int64_t{microbatches} * model.n_layers > kMostPasses;
}
// Why such a layout is not simulated.
std::string too_many_passes(const ModelSpec&, int microbatches);

}  // namespace sextant
