#include "tools/weights.hpp"

#include "runtime/weights/hugging_face.hpp"

namespace sextant {

WeightSource hugging_face_weights(const std::string& folder, const ModelSpec& planned) {
  const HuggingFaceFolder from(folder);
  require_same_model(from, planned);
  from.check();
  return from.weights();
}

}  // namespace sextant
