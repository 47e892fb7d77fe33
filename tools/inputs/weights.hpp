// Weights that a command is pointed at: judged as a whole before anything starts from them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "core/base/safetensors.hpp"
#include "runtime/weights/model_slice.hpp"

namespace sextant {

// Values of a Hugging Face folder that holds the planned model; throws ConfigError with file and tensor.
struct InitialWeights {
  WeightSource values;
  std::optional<StoredType> type;  // nothing when tensors differ
};
InitialWeights hugging_face_weights(const std::string& folder, const ModelSpec& planned);

// Where a run keeps what came with the weights it started from: configuration and tokenizer, for its exports.
std::filesystem::path kept_hugging_face_files(const std::filesystem::path& run);

// What `weights export` and `sample` read.
struct OpenedWeights {
  ModelSpec model;
  WeightSource weights;  // keeps alive what it reads
  std::optional<StoredType>
      type;  // of all tensors; of a run what it started from, or else its parameters'. Nothing when tensors differ
  std::filesystem::path
      like;          // a folder with the tokenizer and configuration that belong to them; may be empty
  std::string what;  // for people
  std::string why_type = {};  // of a run: where `type` is from
  std::string tokenizer =
      {};  // of the data that the run has seen, as load_tokenizer takes it; empty when not known
};
// --step: which checkpoint of a run.
void add_step_option(CLI::App&, int& step);
// The newest complete checkpoint of a run's folder (its master weights), or that of `step` unless it is below 0; or a
// Hugging Face folder.
OpenedWeights open_weights(const std::string& from, int step);

}  // namespace sextant
