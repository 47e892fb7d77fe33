#include "tools/weights.hpp"

#include <fmt/format.h>

#include "runtime/weights/hugging_face.hpp"

namespace sextant {

WeightSource hugging_face_weights(const std::string& folder, const ModelSpec& planned) {
  const HuggingFaceFolder from(folder);
  require_same_model(from, planned);
  from.check();
  return from.weights();
}

OpenedWeights open_weights(const std::string& from) {
  const HuggingFaceFolder folder(from);
  const WeightInventory found = folder.check();
  return {.model = folder.model(),
          .weights = folder.weights(),
          .type = found.type,
          .like = folder.path(),
          .what = from};
}

}  // namespace sextant
