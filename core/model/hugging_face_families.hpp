// How do the files of a Hugging Face family say what a ModelSpec says? One entry a family: the names of its configuration, what
// of LLaMA's decoder it switches, and where its tensors lie. A new family of known features is an entry here
// (docs/contributing.md) and nothing else. Sources: transformers' configuration_*.py and modeling_*.py, and the code beside the
// checkpoints of InternLM2 and Baichuan.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/model/model_spec.hpp"

namespace sextant {

// Which linear layers have biases: as attention_bias and mlp_bias say; q, k and v always; or q, k and v as attention_bias says
// (which is on where it is absent) and the output as attention_out_bias says (Seed-OSS).
enum class FamilyBias : std::uint8_t { never, as_stated, of_qkv, apart };
// What is made of sliding_window: nothing, a window where it stands there, or only where use_sliding_window is on.
enum class FamilyWindow : std::uint8_t { never, as_stated, switched };

// Where the rows of one of our tensors lie in a tensor of the file: alone; behind those of the parts before it; or by key head:
// the queries that share it, then the key, then the value (InternLM2).
enum class TensorPacking : std::uint8_t { alone, stacked, by_key_head };
struct FamilyTensors {
  std::string_view stored;              // "self_attn.qkv_proj"; a name without a layer is the whole name
  std::vector<std::string_view> parts;  // ours, in their order in the file
  TensorPacking packing = TensorPacking::alone;
};

struct ModelFamily {
  std::string_view model_type;
  std::vector<std::string_view> classes;  // of "architectures"; the first is written
  std::vector<std::pair<std::string_view, std::string_view>> keys = {};  // their name of a key, LLaMA's
  std::vector<std::string_view> ignored = {};                            // keys that change no shape
  FamilyBias bias = FamilyBias::never;
  bool mlp_bias = false;  // its configuration has mlp_bias
  FamilyWindow window = FamilyWindow::never;
  QkNorm qk_norm = QkNorm::none;
  NormPlacement norms = NormPlacement::before;
  int window_default = 0, n_kv_heads_default = 0,
      head_dim_default = 0;  // where the key is absent; 0: as LLaMA
  int original_positions_default =
      0;  // original_max_position_embeddings; 0: as the scaling of positions says
  double norm_eps_default = 1e-6;
  int alibi_from_hidden = 0;  // ALiBi in place of RoPE from this width on; 0: never
  // What tells models with a normalized head from those without: a key, which is written, or a vocabulary of this size.
  std::string_view normalized_head_key = "";
  int normalized_head_vocab = 0;
  std::vector<FamilyTensors> tensors = {};  // those named otherwise than LLaMA's
};

const std::vector<ModelFamily>& families();

// Whether a model with so many words has a normalized head, where its configuration has or lacks the family's key.
bool normalizes_head(const ModelFamily&, bool has_key, int vocab_size);

// Whether the family reads `key` of its configurations, beside those that all have.
bool reads_key(const ModelFamily&, std::string_view key);

// Whose configuration it is; null: GPT-2's or BLOOM's. ConfigError: nobody's that is known.
const ModelFamily* family_of_config(const nlohmann::json& config);

// The first family whose files can say all of the model; null when none can.
const ModelFamily* family_of(const ModelSpec&);

// Rows of one of our tensors in a file: row r is row offset + r / block * stride + r % block of `tensor`. Of tensors of one
// extent (biases) the same holds for their elements.
struct TensorPlace {
  std::string tensor;
  std::int64_t rows = 0;  // of the stored tensor
  std::int64_t block = 1, stride = 1, offset = 0;
  std::int64_t row(std::int64_t r) const { return offset + r / block * stride + r % block; }
};

// Of the tensor that we call `name` (core/graph/parameter_layout's parameter_name), which has so many rows.
TensorPlace place_of(const ModelFamily&, const ModelSpec&, std::string_view name, std::int64_t rows);

// What a model_type, or a class ("MixtralForCausalLM"), needs that no ModelSpec can say ("a mixture of experts"); empty for
// those that nobody here knows.
struct MissingFeatures {
  std::string what = {};
  bool costs_like_llama = false;  // a LLaMA of the same shape has its parameters, and its plan
};
MissingFeatures missing_for(std::string_view model_type);

}  // namespace sextant
