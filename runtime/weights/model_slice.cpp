#include "runtime/weights/model_slice.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "kernels/cpu/cpu_kernels.hpp"

namespace sextant {
namespace {

// SplitMix64 (Steele et al. 2014): a good 64-bit hash of a counter.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t hash_of(std::string_view text, std::uint64_t seed) {
  std::uint64_t h = 0xcbf29ce484222325u ^ mixed(seed);
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return mixed(h);
}

}  // namespace

// NOLINTNEXTLINE(readability-function-size): one switch, a short case for each kind of parameter.
ModelSlice model_slice(const ModelSpec& m, const LocalShape& local, const Parameter& p, int tp, int tp_rank) {
  ModelSlice s;
  s.name = parameter_name(p.kind, p.layer);
  const std::int64_t h = m.hidden, d = m.head_dim;
  const auto by_rows = [&](std::int64_t whole, std::int64_t own, std::int64_t first) {
    s.model_rows = whole;
    s.model_cols = s.cols = h;
    s.rows = own;
    s.first_row = first;
  };
  const auto by_cols = [&](std::int64_t whole, std::int64_t own) {
    s.model_rows = s.rows = h;
    s.model_cols = whole;
    s.cols = own;
    s.first_col = own * tp_rank;
  };
  const auto of_row = [&](std::int64_t whole, std::int64_t own) {
    s.model_rows = s.rows = 1;
    s.model_cols = whole;
    s.cols = own;
    s.first_col = own * tp_rank;
  };
  const auto whole_row = [&](std::int64_t width) {
    s.model_rows = s.rows = 1;
    s.model_cols = s.cols = width;
    s.replicated = tp > 1;
  };
  switch (p.kind) {
    case ParameterKind::embedding:
    case ParameterKind::head:
      by_rows(m.vocab_size, local.vocab, std::int64_t{local.vocab} * tp_rank);
      break;
    case ParameterKind::q:
      by_rows(m.n_heads * d, local.heads * d, local.heads * d * tp_rank);
      break;
    case ParameterKind::k:
    case ParameterKind::v:
      by_rows(m.n_kv_heads * d, local.kv_heads * d, local.kv_heads * d * tp_rank);
      break;
    case ParameterKind::gate:
    case ParameterKind::up:
      by_rows(m.ffn_hidden, local.ffn, std::int64_t{local.ffn} * tp_rank);
      break;
    case ParameterKind::o:
      by_cols(m.n_heads * d, local.heads * d);
      break;
    case ParameterKind::down:
      by_cols(m.ffn_hidden, local.ffn);
      break;
    case ParameterKind::q_bias:
      of_row(m.n_heads * d, local.heads * d);
      break;
    case ParameterKind::k_bias:
    case ParameterKind::v_bias:
      of_row(m.n_kv_heads * d, local.kv_heads * d);
      break;
    case ParameterKind::gate_bias:
    case ParameterKind::up_bias:
      of_row(m.ffn_hidden, local.ffn);
      break;
    case ParameterKind::q_norm:
      m.qk_norm == QkNorm::head ? whole_row(d) : of_row(m.n_heads * d, local.heads * d);
      break;
    case ParameterKind::k_norm:
      m.qk_norm == QkNorm::head ? whole_row(d) : of_row(m.n_kv_heads * d, local.kv_heads * d);
      break;
    case ParameterKind::norm_attention:
    case ParameterKind::norm_mlp:
    case ParameterKind::norm_final:
    case ParameterKind::o_bias:
    case ParameterKind::down_bias:
      whole_row(h);
      break;
  }
  return s;
}

std::vector<ModelSlice> model_tensors(const ModelSpec& m) {
  std::vector<ModelSlice> tensors;
  const LocalShape whole = local_shape(m, 1, 1);
  const auto add = [&](ParameterKind kind, int layer = 0) {
    Parameter p;
    p.kind = kind;
    p.layer = static_cast<std::uint16_t>(layer);
    tensors.push_back(model_slice(m, whole, p, 1, 0));
  };
  add(ParameterKind::embedding);
  std::vector<ParameterKind> of_layer = layer_parameters(m);
  std::ranges::reverse(of_layer);  // into the order of use
  for (int layer = 0; layer < m.n_layers; ++layer)
    for (const ParameterKind kind : of_layer) add(kind, layer);
  add(ParameterKind::norm_final);
  if (!m.tied_embeddings) add(ParameterKind::head);
  return tensors;
}

WeightSource::WeightSource(const Recipe& recipe)
    : read_([recipe](const ModelSlice& s, std::span<double> values) {
        const std::int64_t n = s.real_rows() * s.cols;
        if (n > 0)
          cpu_kernels().random_normal(random_args(recipe(s), s, 0, {values.data(), Dtype::fp64, 1, n}));
      }),
      recipe_(recipe) {}

WeightSource random_weights(const ModelSpec& model, std::uint64_t seed) {
  const double residual = 0.02 / std::sqrt(2.0 * model.n_layers);
  return WeightSource([=, tied = model.tied_embeddings](const ModelSlice& s) -> RandomTensor {
    if (s.model_rows == 1) return {.mean = s.name.ends_with(".bias") ? 0.0 : 1.0};
    const bool into_stream =
        s.name.find("o_proj") != std::string::npos || s.name.find("down_proj") != std::string::npos;
    const bool copy = tied && s.name == parameter_name(ParameterKind::head, 0);
    return {.key = hash_of(copy ? parameter_name(ParameterKind::embedding, 0) : s.name, seed),
            .deviation = into_stream ? residual : 0.02};
  });
}

RandomNormalArgs random_args(const RandomTensor& r, const ModelSlice& s, std::int64_t begin,
                             const TensorView& x) {
  return {.x = x,
          .key = r.key,
          .begin = begin,
          .cols = s.cols,
          .first_row = s.first_row,
          .first_col = s.first_col,
          .model_cols = s.model_cols,
          .mean = r.mean,
          .deviation = r.deviation};
}

}  // namespace sextant
