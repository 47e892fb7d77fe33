// A Hugging Face checkpoint folder of a LLaMA model: config.json beside model.safetensors, or beside shards and
// model.safetensors.index.json. Read in place: a shard is opened when a tensor of it is first asked for, and of a
// tensor only the asked rectangle is touched. Rotary pairs stand on halves in these files as in our kernels
// (kernels/kernel_table.hpp), so nothing is permuted; Meta's own files (consolidated.*.pth) interleave them and are
// not read.
//
// Everything is judged before it is used, and refused with file, tensor and expectation (ConfigError).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "core/base/safetensors.hpp"
#include "core/model/model_spec.hpp"
#include "runtime/weights/model_slice.hpp"

namespace sextant {

struct WeightInventory {
  int shards = 0, tensors = 0;
  std::int64_t parameters = 0;
  std::uint64_t bytes = 0;         // of the tensors
  std::optional<StoredType> type;  // when all have the same
};

class HuggingFaceFolder {
 public:
  explicit HuggingFaceFolder(std::filesystem::path);  // reads config.json and the index

  const std::filesystem::path& path() const;
  const ModelSpec& model() const;  // by config.json; named as the folder

  // Opens every shard: each tensor of the model is there once, of its shape, in F64, F32, F16 or BF16, and nothing else
  // that could carry weights. All problems at once.
  WeightInventory check() const;

  // Values of any slice. Lives on its own; safe from many threads. Throws also where a number is not finite.
  WeightSource weights() const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// Throws a problem for every field in which weights and plan differ, by its Hugging Face name. Name and longest sequence
// may differ.
void require_same_model(const HuggingFaceFolder&, const ModelSpec& planned);

}  // namespace sextant
