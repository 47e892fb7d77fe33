// What is trained: the decoder's shape. Answers parameter counts and model FLOPs; knows nothing of layouts.
// Published counts are reproduced exactly (tests/core/model/model_spec_test.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/base/error.hpp"

namespace sextant {

enum class PositionKind : std::uint8_t { rope, learned, alibi };
enum class NormKind : std::uint8_t { rms, layer };
// Of queries and keys, before their positions turn them: over each head with one weight for all (Qwen 3), or over all heads
// together with a weight of its own for each element (OLMo 2).
enum class QkNorm : std::uint8_t { none, head, whole };
// Before the GEMMs of a half-layer, or behind them, on what is added to the residual stream (OLMo 2).
enum class NormPlacement : std::uint8_t { before, after };
inline constexpr std::array<std::string_view, 3> kPositionNames = {"rope", "learned", "alibi"};
inline constexpr std::array<std::string_view, 2> kNormNames = {"rms", "layer"};
inline constexpr std::array<std::string_view, 3> kQkNormNames = {"none", "head", "whole"};
inline constexpr std::array<std::string_view, 2> kNormPlacementNames = {"before", "after"};

// That the runtime trains.
inline constexpr std::array<std::string_view, 5> kRopeTypes = {"llama3", "linear", "dynamic", "yarn",
                                                               "longrope"};

// Scaling of rotary frequencies, as Hugging Face names its kinds; absent means plain RoPE. No kind changes what a plan costs: any name is
// planned, and what the runtime cannot scale (rope_not_run) it refuses.
struct RopeScaling {
  std::string type = "llama3";
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int original_max_positions = 8192;
  // Of yarn: rotations within the first training's longest sequence above which pairs are left alone, below which they are
  // slowed in full.
  double beta_fast = 32, beta_slow = 1;
  // Of yarn and longrope: what q and k are multiplied by each. 0: 0.1 ln(factor) + 1 (yarn), sqrt(1 + ln(factor) /
  // ln(original_max_positions)) (longrope).
  double attention_factor = 0;
  // Of longrope: what each pair's frequency is divided by, head_dim / 2 numbers; the first of sequences up to
  // original_max_positions, the second of longer ones. Empty: not stated, which is enough to plan.
  std::vector<double> short_factor = {}, long_factor = {};
  // What a file lacks, or states in words that are not known.
  std::optional<std::string> not_run = std::nullopt;
  bool operator==(const RopeScaling&) const = default;
};

struct ModelSpec {
  std::string name;
  int n_layers = 0;
  int hidden = 0;                // h
  int n_heads = 0;               // a
  int n_kv_heads = 0;            // = n_heads without grouped queries
  int head_dim = 0;              // usually hidden / n_heads, but a field of its own
  int ffn_hidden = 0;            // f, inner width of the MLP
  int vocab_size = 0;            // V, unpadded
  bool gated_mlp = true;         // three MLP matrices (SwiGLU) instead of two
  bool tied_embeddings = false;  // the LM head is the input embedding
  bool linear_bias = false;      // biases on every linear layer (GPT style): the three below together
  bool qkv_bias = false;         // biases on q, k, v
  bool output_bias = false;      // a bias on the attention's output projection
  bool mlp_bias = false;         // biases on the MLP's matrices
  bool embedding_norm = false;   // a layer norm behind the embedding (BLOOM)
  NormKind norm = NormKind::rms;
  QkNorm qk_norm = QkNorm::none;
  NormPlacement norm_placement = NormPlacement::before;
  PositionKind position = PositionKind::rope;
  int window = 0;                // keys that a query sees, its own included; 0: all up to its own
  bool normalized_head = false;  // rows of the LM head are divided by their length (Baichuan 2)
  int max_positions = 2048;      // rows of a learned position table; the longest sequence otherwise
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling;
  double norm_eps = 1e-5;

  bool operator==(const ModelSpec&) const = default;
};

// Elements by part of the model. Norm elements include biases of layer norms.
struct ParameterCounts {
  std::int64_t embedding = 0;  // vocab x hidden (+ position table, + embedding norm)
  std::int64_t attention = 0;  // per layer: q, k, v, o with biases
  std::int64_t mlp = 0;        // per layer, with biases
  std::int64_t norms = 0;      // per layer: both norms
  std::int64_t final_norm = 0;
  std::int64_t head = 0;  // 0 when tied
  std::int64_t layer() const { return attention + mlp + norms; }
  std::int64_t total = 0;
};

ParameterCounts parameter_counts(const ModelSpec&);

// Elements of the matrices that multiply every token: all layers and the LM head, without the input
// embedding.
std::int64_t matmul_parameters(const ModelSpec&);

// Keys that a query sees at most in a sequence: the window, or all of it.
int widest_context(const ModelSpec&, int seq_len);
// Pairs of a query and a key that it sees in a sequence, over those of plain causal attention: 1 without a window.
double visible_share(int window, int seq_len);

enum class AttentionFlops : std::uint8_t { full, causal };

// Model FLOPs of one token, forward and backward: 6 * matmul_parameters + 12 * L * (heads * head_dim) *
// widest_context. Attention is counted in full, as published figures do (a window's width for each query); `causal`
// counts the pairs that are seen, each once. Recomputation is never counted.
double model_flops_per_token(const ModelSpec&, int seq_len, AttentionFlops = AttentionFlops::full);

std::vector<Problem> validate(const ModelSpec&);

// Why the runtime cannot train with it: "longrope is not known"; nothing where it can.
std::optional<std::string> rope_not_run(const RopeScaling&);

void to_json(nlohmann::json&, const RopeScaling&);
void from_json(const nlohmann::json&, RopeScaling&);
void to_json(nlohmann::json&, const ModelSpec&);
void from_json(const nlohmann::json&, ModelSpec&);  // throws ConfigError with every problem

}  // namespace sextant
