#include "core/model/model_spec.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"

namespace sextant {
namespace {

constexpr auto kModelFields = [](auto& io, auto& m) {
  io.optional("name", m.name);
  io.required("n_layers", m.n_layers);
  io.required("hidden", m.hidden);
  io.required("n_heads", m.n_heads);
  io.optional("n_kv_heads", m.n_kv_heads);  // absent: n_heads
  io.optional("head_dim", m.head_dim);      // absent: hidden / n_heads
  io.required("ffn_hidden", m.ffn_hidden);
  io.required("vocab_size", m.vocab_size);
  io.optional("gated_mlp", m.gated_mlp);
  io.optional("tied_embeddings", m.tied_embeddings);
  io.optional("linear_bias", m.linear_bias);
  io.optional("qkv_bias", m.qkv_bias);
  io.optional("output_bias", m.output_bias);
  io.optional("mlp_bias", m.mlp_bias);
  io.optional("embedding_norm", m.embedding_norm);
  io.optional("norm", m.norm, kNormNames);
  io.optional("qk_norm", m.qk_norm, kQkNormNames);
  io.optional("norm_placement", m.norm_placement, kNormPlacementNames);
  io.optional("position", m.position, kPositionNames);
  io.optional("window", m.window);
  io.optional("normalized_head", m.normalized_head);
  io.optional("max_positions", m.max_positions);
  io.optional("rope_theta", m.rope_theta);
  io.optional("rope_scaling", m.rope_scaling);
  io.optional("norm_eps", m.norm_eps);
  // Where a preset's numbers come from, for people.
  for (const auto* note : {"source", "date", "note", "aliases"}) io.ignored(note);
};

constexpr auto kRopeFields = [](auto& io, auto& s) {
  io.required("type", s.type);
  io.required("factor", s.factor);
  io.optional("low_freq_factor", s.low_freq_factor);
  io.optional("high_freq_factor", s.high_freq_factor);
  io.optional("original_max_positions", s.original_max_positions);
  io.optional("beta_fast", s.beta_fast);
  io.optional("beta_slow", s.beta_slow);
  io.optional("attention_factor", s.attention_factor);
  io.optional("short_factor", s.short_factor);
  io.optional("long_factor", s.long_factor);
  io.optional("not_run", s.not_run);
};

// Elements of one layer's matrices, without biases.
struct Matrices {
  std::int64_t attention, mlp;
};

Matrices layer_matrices(const ModelSpec& m) {
  const std::int64_t h = m.hidden;
  const std::int64_t q = std::int64_t{m.n_heads} * m.head_dim, kv = std::int64_t{m.n_kv_heads} * m.head_dim;
  return {.attention = h * q + 2 * h * kv + q * h, .mlp = (m.gated_mlp ? 3 : 2) * h * m.ffn_hidden};
}

std::int64_t norm_elements(const ModelSpec& m, NormKind kind) {
  return kind == NormKind::layer ? 2 * std::int64_t{m.hidden} : m.hidden;  // weight, and bias of a layer norm
}

}  // namespace

ParameterCounts parameter_counts(const ModelSpec& m) {
  const std::int64_t h = m.hidden;
  const std::int64_t q = std::int64_t{m.n_heads} * m.head_dim, kv = std::int64_t{m.n_kv_heads} * m.head_dim;
  const Matrices matrices = layer_matrices(m);
  ParameterCounts c;
  c.embedding = m.vocab_size * h;
  if (m.position == PositionKind::learned) c.embedding += m.max_positions * h;
  if (m.embedding_norm) c.embedding += norm_elements(m, NormKind::layer);
  c.attention = matrices.attention;
  if (m.linear_bias || m.qkv_bias) c.attention += q + 2 * kv;
  if (m.linear_bias || m.output_bias) c.attention += h;
  if (m.qk_norm == QkNorm::head) c.attention += 2 * std::int64_t{m.head_dim};
  if (m.qk_norm == QkNorm::whole) c.attention += q + kv;
  c.mlp = matrices.mlp;
  if (m.linear_bias || m.mlp_bias) c.mlp += (m.gated_mlp ? 2 : 1) * std::int64_t{m.ffn_hidden} + h;
  c.norms = 2 * norm_elements(m, m.norm);
  c.final_norm = norm_elements(m, m.norm);
  c.head = m.tied_embeddings ? 0 : m.vocab_size * h;
  c.total = c.embedding + m.n_layers * c.layer() + c.final_norm + c.head;
  return c;
}

std::int64_t matmul_parameters(const ModelSpec& m) {
  const Matrices matrices = layer_matrices(m);
  return m.n_layers * (matrices.attention + matrices.mlp) + std::int64_t{m.vocab_size} * m.hidden;
}

int widest_context(const ModelSpec& m, int seq_len) {
  return m.window > 0 ? std::min(m.window, seq_len) : seq_len;
}

double visible_share(int window, int seq_len) {
  if (window <= 0 || window >= seq_len) return 1;
  const double s = seq_len,
               w = window;  // the first w queries see what plain attention shows them, the others w keys each
  return (w * s - w * (w - 1) / 2) / (s * (s + 1) / 2);
}

double model_flops_per_token(const ModelSpec& m, int seq_len, AttentionFlops counted) {
  // 2 products (scores, values) x 2 FLOPs x 3 (forward + two gradients) = 12 per layer, channel and key.
  const double by_key = 12.0 * m.n_layers * (static_cast<double>(m.n_heads) * m.head_dim);
  const double attention = counted == AttentionFlops::causal
                               ? by_key * seq_len / 2 * visible_share(m.window, seq_len)
                               : by_key * widest_context(m, seq_len);
  return 6.0 * static_cast<double>(matmul_parameters(m)) + attention;
}

std::vector<Problem> validate(const ModelSpec& m) {
  std::vector<Problem> problems;
  const auto require = [&](bool holds, std::string_view key, auto value, std::string expected) {
    if (!holds) problems.push_back({"", std::string(key), fmt::format("{}", value), std::move(expected), ""});
  };
  // Wide bounds that keep every product inside 63 bits.
  struct Bounds {
    std::string_view key;
    int value, most;
  };
  for (const auto& [key, value, most] :
       {Bounds{"n_layers", m.n_layers, 10'000}, Bounds{"hidden", m.hidden, 1 << 18},
        Bounds{"n_heads", m.n_heads, 1 << 13}, Bounds{"n_kv_heads", m.n_kv_heads, 1 << 13},
        Bounds{"head_dim", m.head_dim, 1 << 13}, Bounds{"ffn_hidden", m.ffn_hidden, 1 << 20},
        Bounds{"vocab_size", m.vocab_size, 1 << 24}, Bounds{"max_positions", m.max_positions, 1 << 27}})
    require(value >= 1 && value <= most, key, value, fmt::format("from 1 to {}", most));
  if (m.n_heads > 0 && m.n_kv_heads > 0)
    require(m.n_heads % m.n_kv_heads == 0, "n_kv_heads", m.n_kv_heads,
            fmt::format("a divisor of the {} heads", m.n_heads));
  if (m.position == PositionKind::rope) {
    require(m.head_dim % 2 == 0, "head_dim", m.head_dim, "an even number (rotary embedding turns pairs)");
    require(std::isfinite(m.rope_theta) && m.rope_theta > 0, "rope_theta", m.rope_theta, "above 0");
  }
  require(m.window >= 0 && m.window <= 1 << 27, "window", m.window, "from 1 to 134217728, or 0 for none");
  require(m.norm_placement == NormPlacement::before || m.norm == NormKind::rms, "norm_placement", "after",
          "before, or rms norms");
  require(std::isfinite(m.norm_eps) && m.norm_eps >= 0, "norm_eps", m.norm_eps, "0 or more");
  if (m.rope_scaling) {
    const RopeScaling& s = *m.rope_scaling;
    require(m.position == PositionKind::rope, "rope_scaling", s.type, "none without rotary embedding");
    require(!s.type.empty(), "rope_scaling.type", "\"\"",
            fmt::format("one of {}", fmt::join(kRopeTypes, ", ")));
    require(std::isfinite(s.factor) && s.factor >= 1, "rope_scaling.factor", s.factor, "1 or more");
    require(s.low_freq_factor > 0 && std::isfinite(s.low_freq_factor), "rope_scaling.low_freq_factor",
            s.low_freq_factor, "above 0");
    // The blend between the two divides by their difference.
    require(s.high_freq_factor > s.low_freq_factor && std::isfinite(s.high_freq_factor),
            "rope_scaling.high_freq_factor", s.high_freq_factor, "more than low_freq_factor");
    require(std::isfinite(s.beta_slow) && s.beta_slow > 0, "rope_scaling.beta_slow", s.beta_slow, "above 0");
    require(std::isfinite(s.beta_fast) && s.beta_fast >= s.beta_slow, "rope_scaling.beta_fast", s.beta_fast,
            "beta_slow or more");
    require(std::isfinite(s.attention_factor) && s.attention_factor >= 0, "rope_scaling.attention_factor",
            s.attention_factor, "above 0, or 0 for the usual one");
    require(s.original_max_positions >= 1, "rope_scaling.original_max_positions", s.original_max_positions,
            "1 or more");
    const bool tables = s.type == "longrope" && !(s.short_factor.empty() && s.long_factor.empty());
    for (const auto& [key, table] : {std::pair{"rope_scaling.short_factor", &s.short_factor},
                                     {"rope_scaling.long_factor", &s.long_factor}}) {
      const auto half = static_cast<std::size_t>(tables ? std::max(0, m.head_dim / 2) : 0);
      require(table->size() == half, key, fmt::format("{} numbers", table->size()),
              tables ? fmt::format("{}: one for each pair of a head of {}", half, m.head_dim)
                     : "none but of longrope");
      const auto wrong = std::ranges::find_if(*table, [](double f) { return !std::isfinite(f) || f <= 0; });
      require(wrong == table->end(), key, wrong == table->end() ? 0 : *wrong, "numbers above 0");
    }
  }
  return problems;
}

std::optional<std::string> rope_not_run(const RopeScaling& s) {
  if (s.not_run) return s.not_run;
  if (s.type == "longrope" && s.long_factor.empty())
    return "longrope: short_factor and long_factor are missing (the model's config.json has them)";
  if (std::ranges::count(kRopeTypes, s.type) > 0) return std::nullopt;
  return fmt::format("{} is not known", s.type);
}

void to_json(nlohmann::json& j, const RopeScaling& s) {
  write_object(j, s, kRopeFields);
  if (s.short_factor.empty() && s.long_factor.empty()) {
    j.erase("short_factor");
    j.erase("long_factor");
  }
}
void from_json(const nlohmann::json& j, RopeScaling& s) { read_object(j, s, kRopeFields); }

void to_json(nlohmann::json& j, const ModelSpec& m) { write_object(j, m, kModelFields); }

void from_json(const nlohmann::json& j, ModelSpec& out) {
  JsonReader reader(j);
  ModelSpec m;
  kModelFields(reader, m);
  if (!reader.has("n_kv_heads")) m.n_kv_heads = m.n_heads;
  if (!reader.has("head_dim") && m.n_heads > 0) m.head_dim = m.hidden / m.n_heads;
  std::vector<Problem> problems = validate(m);
  const auto is_wrong = [&](std::string_view key) {
    return std::ranges::count(problems, key, &Problem::key) > 0;
  };
  // What is worked out from a wrong value is no mistake of its own.
  const bool no_heads = is_wrong("n_heads"), no_head_dim = no_heads || is_wrong("hidden");
  std::erase_if(problems, [&](const Problem& p) {
    return (no_heads && p.key == "n_kv_heads" && !reader.has(p.key)) ||
           (no_head_dim && p.key == "head_dim" && !reader.has(p.key));
  });
  if (!no_head_dim && !reader.has("head_dim") && m.hidden % m.n_heads != 0)
    reader.fail({"", "head_dim", "", "", "is missing, and n_heads does not divide hidden"});
  reader.finish(std::move(problems));
  out = std::move(m);
}

}  // namespace sextant
