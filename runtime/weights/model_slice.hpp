// Where does a rank's parameter stand in the model? The rectangle of a Hugging Face tensor that one tensor-parallel rank
// holds, row-major and without gaps: what initial weights, checkpoints and tests read and write. Knows nothing of
// buckets and shards.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/graph/parameter_layout.hpp"
#include "core/model/model_spec.hpp"

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

// Fills rows x cols values of a slice (its real rows; the caller clears the padding), row-major.
using WeightSource = std::function<void(const ModelSlice&, std::span<double>)>;

// Normal numbers of standard deviation 0.02, smaller by sqrt(2 layers) for what is added to the residual stream (GPT-2,
// Radford et al. 2019); ones for norms, zeros for biases. An element depends on seed, name and its place in the model alone, so every
// layout starts from the same weights.
WeightSource random_weights(const ModelSpec&, std::uint64_t seed);

}  // namespace sextant
