// Weights that a command is pointed at: judged as a whole before anything starts from them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/safetensors.hpp"
#include "runtime/model_slice.hpp"

namespace sextant {

// Values of a Hugging Face folder that holds the planned model; throws ConfigError with file and tensor.
WeightSource hugging_face_weights(const std::string& folder, const ModelSpec& planned);

// What `weights export` and `sample` read: a Hugging Face folder.
struct OpenedWeights {
  ModelSpec model;
  WeightSource weights;
  std::optional<StoredType> type;  // of all tensors; nothing when they differ
  std::filesystem::path
      like;          // a folder with the tokenizer and configuration that belong to them; may be empty
  std::string what;  // for people
};
OpenedWeights open_weights(const std::string& from);

}  // namespace sextant
