#include "tools/export/python_text.hpp"

#include <fmt/format.h>

#include "core/base/decimal.hpp"

namespace sextant {

std::string python_model_settings(const ModelSpec& m) {
  std::string text = fmt::format("HIDDEN, LAYERS, FFN, VOCAB = {}, {}, {}, {}\n", m.hidden, m.n_layers,
                                 m.ffn_hidden, m.vocab_size);
  text += fmt::format("HEADS, KV_HEADS, HEAD_DIM = {}, {}, {}\n", m.n_heads, m.n_kv_heads, m.head_dim);
  text += fmt::format("NORM_EPS, TIED, ROPE_THETA = {}, {}, {}\n", decimal(m.norm_eps),
                      python_bool(m.tied_embeddings), decimal(m.rope_theta));
  text += "# factor, low_freq_factor, high_freq_factor, original_max_position_embeddings of llama3\n";
  if (const auto& r = m.rope_scaling)
    text += fmt::format("ROPE_SCALING = ({}, {}, {}, {})\n", decimal(r->factor), decimal(r->low_freq_factor),
                        decimal(r->high_freq_factor), r->original_max_positions);
  else
    text += "ROPE_SCALING = None\n";
  return text;
}

}  // namespace sextant
