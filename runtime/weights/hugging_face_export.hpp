// Weights out: a folder that transformers loads with from_pretrained, from any source of weights. Written tensor by
// tensor, in blocks of rows, so that memory does not grow with the model; beside the destination, which it becomes by
// one rename when everything is on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/base/safetensors.hpp"
#include "core/model/model_spec.hpp"
#include "runtime/weights/model_slice.hpp"

namespace sextant {

struct HuggingFaceExport {
  StoredType type = StoredType::f32;
  std::uint64_t max_shard_bytes =
      5'000'000'000;  // of tensors; transformers' default. A larger tensor stands alone
  // A Hugging Face folder whose tokenizer files, generation_config.json and, if it describes the same model, further
  // fields of config.json are carried over. Empty: none.
  std::filesystem::path like = {};
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = {};  // bytes of tensors
};

struct ExportedWeights {
  std::vector<std::string> files;  // all that was written
  int tensors = 0;
  std::uint64_t bytes = 0;  // of tensors
};

// `out` must be absent or an empty folder. ConfigError: it is not, no family can say the model, or a number is beyond the format; BackendError: the
// disk refuses. Nothing is left behind then.
ExportedWeights export_hugging_face(const ModelSpec&, const WeightSource&, const std::filesystem::path& out,
                                    const HuggingFaceExport&);

// config.json of the first family that has all of the model; model_from_hugging_face reads the same model back.
nlohmann::ordered_json hugging_face_config(const ModelSpec&, StoredType);

// Copies what an export can carry over (config, generation config, tokenizer) into `to`, which is made.
void keep_hugging_face_files(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace sextant
