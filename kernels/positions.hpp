// Where tokens stand: rotary angles by position, and which positions a context-parallel rank holds.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/model_spec.hpp"
#include "kernels/tensor_view.hpp"

namespace sextant {

// Angular frequency of pair i of a head, radians per token: theta^(-2i/d), slowed down by Llama-3 scaling
// where the wavelength exceeds what the model was first trained on, by linear scaling everywhere (position interpolation,
// Chen et al. 2023). Computed in fp64; throws ConfigError on other scalings.
// yarn (Peng et al. 2023; transformers' modeling_rope_utils.py) slows pairs by how often they turn within the first training's
// sequence; dynamic (NTK) takes a larger base for `positions` beyond what the model is made for; longrope (Ding et al. 2024)
// divides each by a number of its own, of another table where there are more `positions` than in the first training.
std::vector<double> rope_frequencies(const ModelSpec&, std::int64_t positions = 0);

// What cosines and sines are multiplied by: yarn's and longrope's factor of attention, else 1.
double rope_magnitude(const ModelSpec&);

// ALiBi's slope of each of a model's heads (Press et al. 2022, 3; heads beyond a power of two take every second slope of
// twice as many, as in their code): 2^(-8 (i + 1) / heads). Scores lose slope times tokens between query and key.
std::vector<double> alibi_slopes(int heads);

// The slopes of heads [first, first + count) of a model in fp32 or fp64; owns its memory.
class SlopeTable {
 public:
  SlopeTable() = default;
  SlopeTable(const ModelSpec&, int first, int count, Dtype accumulator);
  TensorView view() const;  // A [1, count]; no data: the model has none

 private:
  std::vector<double> storage_;  // holds floats when dtype_ is fp32
  int count_ = 0;
  Dtype dtype_ = Dtype::fp32;
};

// cos and sin of every position below `positions`, in fp32 or fp64; owns its memory.
class RopeTable {
 public:
  RopeTable() = default;
  RopeTable(const ModelSpec&, std::int64_t positions, Dtype accumulator);
  TensorView cos() const { return view(0); }  // A [positions, d/2]
  TensorView sin() const { return view(1); }

 private:
  TensorView view(int which) const;
  std::vector<double> storage_;  // holds floats when dtype_ is fp32
  std::int64_t positions_ = 0, half_ = 0;
  Dtype dtype_ = Dtype::fp32;
};

// Positions of one sequence that context-parallel rank `rank` of `cp` holds. The sequence is cut into 2 cp
// chunks and rank r takes chunks r and 2 cp - 1 - r, so that causal attention is equal work for all
// (Llama 3 report, Dubey et al. 2024, 3.3.2). seq_len must divide by 2 cp when cp > 1.
std::vector<std::int32_t> context_positions(int seq_len, int cp, int rank);

// Positions of keys gathered over cp, rank after rank.
std::vector<std::int32_t> gathered_positions(int seq_len, int cp);

}  // namespace sextant
