#include "core/graph/parameter_kind.hpp"

#include <fmt/format.h>

namespace sextant {

BlockKind gradient_writer(ParameterKind kind) {
  switch (kind) {
    case ParameterKind::embedding:
      return BlockKind::embedding;
    case ParameterKind::q:
    case ParameterKind::k:
    case ParameterKind::v:
    case ParameterKind::q_bias:
    case ParameterKind::k_bias:
    case ParameterKind::v_bias:
      return BlockKind::qkv;
    case ParameterKind::q_norm:
    case ParameterKind::k_norm:
      return BlockKind::qk_norm;
    case ParameterKind::o:
    case ParameterKind::o_bias:
      return BlockKind::attention;
    case ParameterKind::gate:
    case ParameterKind::up:
    case ParameterKind::down:
    case ParameterKind::gate_bias:
    case ParameterKind::up_bias:
    case ParameterKind::down_bias:
      return BlockKind::mlp;
    case ParameterKind::head:
      return BlockKind::head;
    case ParameterKind::norm_attention:
    case ParameterKind::norm_mlp:
    case ParameterKind::norm_final:
      break;
  }
  return BlockKind::norm;
}

bool is_summed_over_tp(ParameterKind kind, const ModelSpec& m, const ParallelPlan& plan) {
  if (plan.tp == 1) return false;
  if (gradient_writer(kind) == BlockKind::norm) return plan.sequence_parallel;
  return m.qk_norm == QkNorm::head && (kind == ParameterKind::q_norm || kind == ParameterKind::k_norm);
}

std::string parameter_name(ParameterKind kind, int layer) {
  const auto in_layer = [layer](const char* tail, const char* what = "weight") {
    return fmt::format("model.layers.{}.{}.{}", layer, tail, what);
  };
  switch (kind) {
    case ParameterKind::embedding:
      return "model.embed_tokens.weight";
    case ParameterKind::norm_attention:
      return in_layer("input_layernorm");
    case ParameterKind::q:
      return in_layer("self_attn.q_proj");
    case ParameterKind::k:
      return in_layer("self_attn.k_proj");
    case ParameterKind::v:
      return in_layer("self_attn.v_proj");
    case ParameterKind::o:
      return in_layer("self_attn.o_proj");
    case ParameterKind::norm_mlp:
      return in_layer("post_attention_layernorm");
    case ParameterKind::gate:
      return in_layer("mlp.gate_proj");
    case ParameterKind::up:
      return in_layer("mlp.up_proj");
    case ParameterKind::down:
      return in_layer("mlp.down_proj");
    case ParameterKind::norm_final:
      return "model.norm.weight";
    case ParameterKind::head:
      return "lm_head.weight";
    case ParameterKind::q_bias:
      return in_layer("self_attn.q_proj", "bias");
    case ParameterKind::k_bias:
      return in_layer("self_attn.k_proj", "bias");
    case ParameterKind::v_bias:
      return in_layer("self_attn.v_proj", "bias");
    case ParameterKind::o_bias:
      return in_layer("self_attn.o_proj", "bias");
    case ParameterKind::gate_bias:
      return in_layer("mlp.gate_proj", "bias");
    case ParameterKind::up_bias:
      return in_layer("mlp.up_proj", "bias");
    case ParameterKind::down_bias:
      return in_layer("mlp.down_proj", "bias");
    case ParameterKind::q_norm:
      return in_layer("self_attn.q_norm");
    case ParameterKind::k_norm:
      return in_layer("self_attn.k_norm");
  }
  return {};
}

bool reads_parameters(const ModelSpec& model, BlockKind kind, Pass pass) {
  if (kind == BlockKind::embedding) return pass == Pass::forward || pass == Pass::recompute;
  return pass != Pass::backward_weight || (kind == BlockKind::head && model.normalized_head);
}

}  // namespace sextant
