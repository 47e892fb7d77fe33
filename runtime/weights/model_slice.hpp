// Where does a rank's parameter stand in the model? The rectangle of a Hugging Face tensor that one tensor-parallel rank
// holds, row-major and without gaps: what initial weights, checkpoints and tests read and write. Knows nothing of
// buckets and shards.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/graph/parameter_layout.hpp"
#include "core/model/model_spec.hpp"
#include "kernels/kernel_table.hpp"

namespace sextant {

struct ModelSlice {
  std::string name;                             // "model.layers.3.self_attn.q_proj.weight"
  std::int64_t model_rows = 0, model_cols = 0;  // of the whole tensor
  std::int64_t first_row = 0, first_col = 0;
  std::int64_t rows = 0, cols = 0;  // local; rows beyond model_rows are padding of the vocabulary
  bool replicated = false;          // every tensor-parallel rank holds all of it
  std::int64_t real_rows() const { return std::max<std::int64_t>(0, std::min(rows, model_rows - first_row)); }
};

ModelSlice model_slice(const ModelSpec&, const LocalShape&, const Parameter&, int tp, int tp_rank);

// Every parameter of the model, whole, in the order of a forward pass; a tied head is the embedding.
std::vector<ModelSlice> model_tensors(const ModelSpec&);

// Weights that a device can make by itself: mean + deviation times the normal numbers of `key` (RandomNormalArgs).
struct RandomTensor {
  std::uint64_t key = 0;
  double mean = 0, deviation = 0;
};

// Where weights come from: fills rows x cols values of a slice (its real rows; the caller clears the padding), row-major.
class WeightSource {
 public:
  using Read = std::function<void(const ModelSlice&, std::span<double>)>;
  using Recipe = std::function<RandomTensor(const ModelSlice&)>;
  WeightSource() = default;
  template <class F>
  requires std::convertible_to<F, Read> &&(!std::same_as<F, WeightSource>)WeightSource(F read)
      : read_(std::move(read)) {}
  explicit WeightSource(const Recipe& recipe);

  void operator()(const ModelSlice& slice, std::span<double> values) const { read_(slice, values); }
  explicit operator bool() const { return static_cast<bool>(read_); }
  // How a device makes the same values in place; empty when they have to be read.
  const Recipe& recipe() const { return recipe_; }

 private:
  Read read_;
  Recipe recipe_;
};

// Normal numbers of standard deviation 0.02, smaller by sqrt(2 layers) for what is added to the residual stream (GPT-2,
// Radford et al. 2019); ones for norms, zeros for biases. An element depends on seed, name and its place in the model alone, so every
// layout starts from the same weights, and so does every device.
WeightSource random_weights(const ModelSpec&, std::uint64_t seed);

// The part of a slice from element `begin` on (row-major, of its real rows) that fills `x`.
RandomNormalArgs random_args(const RandomTensor&, const ModelSlice&, std::int64_t begin, const TensorView& x);

}  // namespace sextant
