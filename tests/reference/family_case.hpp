// A tiny random model of a Hugging Face family (tests/golden/families, made by make_families.py), and what transformers computes
// with it: logits, loss and every gradient of one batch, and twenty steps of training.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/safetensors.hpp"
#include "runtime/weights/hugging_face.hpp"
#include "tests/reference/fixture_training.hpp"

namespace sextant::testing {

// Beside the source tree, or where a bundle of the tests has them.
inline std::filesystem::path family_folder(const std::string& name) {
  const char* elsewhere = std::getenv("SEXTANT_FAMILIES");
  return std::filesystem::path(elsewhere ? elsewhere : SEXTANT_SOURCE_DIR "/tests/golden/families") / name;
}

struct FamilyCase {
  HuggingFaceFolder folder;
  GradientCase batch;
  TrainingCase training;

  explicit FamilyCase(const std::string& name) : folder(family_folder(name)) {
    folder.check();
    batch.model = folder.model();
    if (name.ends_with("alibi")) batch.model.position = PositionKind::alibi;
    training.model = batch.model;
    for (const ModelSlice& s : model_tensors(folder.model())) {
      std::vector<double>& values = batch.weights[s.name];
      values.resize(static_cast<std::size_t>(s.model_rows * s.model_cols));
      folder.weights()(s, values);
    }
    training.start = batch.weights;
    const SafetensorsFile expected(family_folder(name) / "expected.safetensors");
    batch.ids = read_tokens(expected, "ids");
    batch.targets = read_tokens(expected, "targets");
    const auto& shape = expected.require("ids").shape;
    batch.batch = training.batch = static_cast<int>(shape[0]);
    batch.seq = training.seq = static_cast<int>(shape[1]);
    batch.logits = read_doubles(expected, "logits");
    batch.loss = read_doubles(expected, "loss");
    batch.gradients = read_all(expected, "grad.");
    training.tokens = read_tokens(expected, "tokens");
    training.loss = read_doubles(expected, "losses");
    training.norm = read_doubles(expected, "norms");
    training.final_weights = read_all(expected, "final.");
  }
};

}  // namespace sextant::testing
