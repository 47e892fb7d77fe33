#include "tools/weights.hpp"

#include <memory>

#include <fmt/format.h>

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/weights/hugging_face.hpp"

namespace sextant {

namespace fs = std::filesystem;

WeightSource hugging_face_weights(const std::string& folder, const ModelSpec& planned) {
  const HuggingFaceFolder from(folder);
  require_same_model(from, planned);
  from.check();
  return from.weights();
}

fs::path kept_hugging_face_files(const fs::path& run) { return run / "hugging_face"; }

OpenedWeights open_weights(const std::string& from) {
  if (auto newest = Checkpoint::open_newest(from)) {
    const auto checkpoint = std::make_shared<const Checkpoint>(std::move(*newest));
    const Manifest& m = checkpoint->manifest();
    const fs::path kept = kept_hugging_face_files(from);
    std::error_code none;
    return {.model = m.plan.model,
            .weights = [checkpoint, read = checkpoint->weights()](
                           const ModelSlice& s, std::span<double> values) { read(s, values); },
            .type = stored_type(m.plan.training.parameter),
            .like = fs::is_directory(kept, none) ? kept : fs::path(),
            .what = checkpoint->path().string()};
  }
  const HuggingFaceFolder folder(from);
  const WeightInventory found = folder.check();
  return {.model = folder.model(),
          .weights = folder.weights(),
          .type = found.type,
          .like = folder.path(),
          .what = from};
}

}  // namespace sextant
