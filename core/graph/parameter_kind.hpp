// Which parameters does a model have, which block makes the gradient of each, and what is it called?
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/graph/work.hpp"
#include "core/model/model_spec.hpp"
#include "core/plan/parallel_plan.hpp"

namespace sextant {

enum class ParameterKind : std::uint8_t {
  embedding,
  norm_attention,
  q,
  k,
  v,
  o,
  norm_mlp,
  gate,
  up,
  down,
  norm_final,
  head,
  q_bias,
  k_bias,
  v_bias,
  o_bias,
  gate_bias,
  up_bias,
  down_bias,
  q_norm,
  k_norm,
};
inline constexpr std::size_t kParameterKinds = 21;

// The block whose backward pass writes the gradient of this kind last.
BlockKind gradient_writer(ParameterKind);
// Whether a block reads its parameters in a pass. Weight halves do not, but for a normalized head's, which takes out of the
// gradient what lies along the rows; nor does the embedding's backward.
bool reads_parameters(const ModelSpec&, BlockKind, Pass);

inline bool is_of_layer(ParameterKind kind) {
  return kind != ParameterKind::embedding && kind != ParameterKind::norm_final && kind != ParameterKind::head;
}

// A tensor-parallel rank makes a part of its gradient only, which is summed over these ranks when its bucket is reduced: of
// weights that all of them hold and each uses on tokens (SP) or heads of its own.
bool is_summed_over_tp(ParameterKind, const ModelSpec&, const ParallelPlan&);

// Hugging Face name: "model.layers.3.self_attn.q_proj.weight".
std::string parameter_name(ParameterKind, int layer);

}  // namespace sextant
