// Meta's params.json, as ModelArgs and FeedForward of the llama, llama3 and llama-models repositories read
// it.
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"
#include "core/model/model_files.hpp"

namespace sextant {
namespace {

// FeedForward.__init__: 2/3 of 4 * dim, times the multiplier, rounded up to a multiple.
int ffn_width(int dim, double multiplier, int multiple_of) {
  const int two_thirds = static_cast<int>(2LL * 4 * dim / 3);
  const auto scaled = static_cast<long long>(multiplier * two_thirds);
  const long long width = (scaled + multiple_of - 1) / multiple_of * multiple_of;
  return width <= 1 << 30 ? static_cast<int>(width) : 0;
}

using Notes = std::vector<std::string>;

// LLaMA 1 and 2 write -1, "ask the tokenizer", and share one of 32,000 pieces. They state no rope_theta; a
// file that does and has no vocabulary is another model.
void settle_vocabulary(JsonReader& io, ModelSpec& m, Notes* notes) {
  if (m.vocab_size != -1) return;
  if (io.has("rope_theta"))
    io.fail({"", "vocab_size", "-1", "the size of the tokenizer's vocabulary", "write it into the file"});
  m.vocab_size = 32000;
  if (notes)
    notes->emplace_back(
        "vocab_size: -1 in the file leaves it to the tokenizer; 32000 is taken, that of LLaMA 1 and 2 "
        "(another one: --set "
        "model.vocab_size=N)");
}

bool is_small_llama32(const ModelSpec& m) {
  return m.vocab_size == 128256 &&
         ((m.hidden == 2048 && m.n_layers == 16) || (m.hidden == 3072 && m.n_layers == 28));
}

// The file does not say that Llama-3.2 1B and 3B tie their embeddings; their model card does. Their rotary
// scaling factor is 32, that of Llama-3.1 is 8.
void settle_ties(bool llama32, ModelSpec& m, Notes* notes) {
  m.tied_embeddings = llama32;
  if (notes)
    notes->push_back(fmt::format(
        "tied_embeddings: the file does not state it; {} (--set model.tied_embeddings={} is the other)",
        llama32 ? "true is taken, as of Llama-3.2 1B and 3B, whose sizes these are"
                : "false is taken, as of all LLaMA models but Llama-3.2 1B and 3B",
        !llama32));
}

// Only scaled files say how far they reach; 2048 is ModelArgs' own max_seq_len.
void settle_positions(JsonReader& io, bool stated, bool scaled_rope, ModelSpec& m, Notes* notes) {
  m.max_positions = scaled_rope ? 131072 : 2048;
  io.optional("max_seq_len", m.max_positions);
  if (notes && !stated)
    notes->push_back(fmt::format(
        "max_positions: the file does not state it; {} is taken, {} (--set model.max_positions=N is another; "
        "sequences are that long at most unless --seq-len states more)",
        m.max_positions, scaled_rope ? "as of Llama-3.1 and 3.2" : "the reference code's own"));
}

}  // namespace

ModelSpec model_from_meta(const nlohmann::json& j, const std::string& name, std::vector<std::string>* notes) {
  JsonReader io(j);
  ModelSpec m;
  m.name = name;
  int multiple_of = 256;
  double multiplier = 1.0;
  bool scaled_rope = false;
  io.required("dim", m.hidden, between(1, 1 << 18));
  io.required("n_layers", m.n_layers);
  io.required("n_heads", m.n_heads, at_least(1));
  io.required("vocab_size", m.vocab_size);
  m.n_kv_heads = m.n_heads;
  io.optional("n_kv_heads", m.n_kv_heads);
  io.optional("multiple_of", multiple_of, between(1, 1 << 20));
  io.optional("ffn_dim_multiplier", multiplier, between(0, 64));
  io.optional("norm_eps", m.norm_eps);
  io.optional("rope_theta", m.rope_theta);
  io.optional("use_scaled_rope", scaled_rope);
  for (const char* key : {"max_batch_size", "model_parallel_size"}) io.ignored(key);
  settle_vocabulary(io, m, notes);
  if (m.n_heads > 0 && m.hidden % m.n_heads != 0)
    io.fail({"", "n_heads", fmt::format("{}", m.n_heads), fmt::format("a divisor of dim {}", m.hidden), ""});
  m.head_dim = m.n_heads > 0 ? m.hidden / m.n_heads : 0;
  m.ffn_hidden = ffn_width(m.hidden, multiplier, multiple_of);
  const bool llama32 = is_small_llama32(m);
  settle_ties(llama32, m, notes);
  settle_positions(io, j.contains("max_seq_len"), scaled_rope, m, notes);
  if (scaled_rope)
    m.rope_scaling = RopeScaling{.type = "llama3",
                                 .factor = llama32 ? 32.0 : 8.0,
                                 .low_freq_factor = 1.0,
                                 .high_freq_factor = 4.0,
                                 .original_max_positions = 8192};
  io.finish();
  if (auto problems = validate(m); !problems.empty()) throw ConfigError(std::move(problems));
  return m;
}

}  // namespace sextant
