// tokenizer.json (github.com/huggingface/tokenizers) whose model is BPE, over bytes (GPT-2, Llama 3, Qwen, OLMo 2, Mistral's tekken)
// or over characters (LLaMA 2, Mistral, Yi, InternLM, Phi-3, Gemma). Whatever else the format can say and would change the ids is
// refused rather than passed over.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/json_io.hpp"
#include "runtime/data/bpe_tokenizer.hpp"
#include "runtime/data/byte_alphabet.hpp"
#include "runtime/data/text_pipeline.hpp"
#include "runtime/data/tokenizer_file.hpp"
#include "runtime/data/tokenizer_frame.hpp"
#include "runtime/data/tokenizer_steps.hpp"
#include "runtime/data/tokenizer_vocabulary.hpp"

namespace sextant {
namespace {

using nlohmann::json;

void require_bpe(const TokenizerFile& file, const json& model) {
  if (!absent(model, "type")) {
    const std::string type = file.text(model, "model", "type");
    if (type != "BPE")
      file.refuse("model.type", "\"" + type + "\"", "\"BPE\"",
                  type == "Unigram"
                      ? "name the sentencepiece model (tokenizer.model) that it was made of instead"
                      : "");
  }
  if (absent(model, "dropout")) return;
  const json& dropout = model.at("dropout");
  if (!dropout.is_number() || dropout.get<double>() != 0)
    file.refuse("model.dropout", brief(dropout), "0 or none", "training data is the same each time");
}

// All of the vocabulary but the special tokens: no piece of a text becomes one.
TokenIds whole_pieces(const TokenizerVocabulary& v, bool bytes) {
  TokenIds whole;
  whole.reserve(v.ids.size());
  for (const auto& [spelled, id] : v.ids) {
    const auto text = bytes ? from_byte_letters(spelled) : spelled;
    if (text) whole.emplace(*text, id);
  }
  for (const TokenizerVocabulary::Added& added : v.added) {
    const auto text = bytes ? from_byte_letters(added.token.content) : added.token.content;
    if (added.token.special && text) whole.erase(*text);
  }
  return whole;
}

bool spells_all_bytes(const TokenizerVocabulary& v) {
  for (int b = 0; b < 256; ++b)
    if (!v.ids.contains(to_byte_letters(std::string(1, static_cast<char>(b))))) return false;
  return true;
}

// Texts of added tokens, special ones none, over those of the model.
void put_added_texts(const TokenizerVocabulary& v, std::vector<std::string>& texts) {
  for (const TokenizerVocabulary::Added& added : v.added)
    texts[static_cast<std::size_t>(added.token.id)] = added.token.special ? "" : added.token.content;
}

// By id, of a byte-level vocabulary; what is no byte-level token is never found in a text.
std::vector<std::string> byte_texts(const TokenizerVocabulary& v) {
  std::vector<std::string> texts(static_cast<std::size_t>(v.size));
  for (const auto& [spelled, id] : v.ids)
    texts[static_cast<std::size_t>(id)] = from_byte_letters(spelled).value_or("");
  return texts;
}

void over_bytes(const TokenizerFile& file, const json& model, const TokenizerVocabulary& v,
                const TokenizerSteps& steps, TextPipeline& parts) {
  std::vector<std::string> texts = byte_texts(v);
  BytePairModel pairs{.bytes = tokens_of_bytes(texts, file.name()),
                      .merges = read_tokenizer_merges(file, model, v, ""),
                      .whole = {}};
  if (file.flag(model, "model", "ignore_merges", false)) pairs.whole = whole_pieces(v, true);
  parts.model = byte_pair_encoder(std::move(pairs));
  parts.bad_bytes = parts.model;
  put_added_texts(v, texts);
  parts.decode = decode_texts(std::move(texts), steps.prefix);
}

std::vector<std::optional<std::int32_t>> byte_fallback_tokens(const TokenizerVocabulary& v) {
  std::vector<std::optional<std::int32_t>> bytes(256);
  for (std::size_t b = 0; b < bytes.size(); ++b)
    if (const auto found = v.ids.find(fmt::format("<0x{:02X}>", b)); found != v.ids.end())
      bytes[b] = found->second;
  return bytes;
}

std::vector<std::string> texts_of_characters(const CharacterPairModel& m, const TokenizerVocabulary& v,
                                             bool letters) {
  std::vector<std::string> texts(static_cast<std::size_t>(v.size));
  for (const auto& [spelled, id] : v.ids) {
    std::string text = letters ? from_byte_letters(spelled).value_or(spelled) : spelled;
    for (std::size_t at = 0; !m.mark.empty() && (at = text.find(m.mark, at)) != std::string::npos; ++at)
      text.replace(at, m.mark.size(), " ");
    texts[static_cast<std::size_t>(id)] = std::move(text);
  }
  for (std::size_t b = 0; b < m.bytes.size(); ++b)
    if (m.bytes[b]) texts[static_cast<std::size_t>(*m.bytes[b])] = std::string(1, static_cast<char>(b));
  put_added_texts(v, texts);
  return texts;
}

void over_characters(const TokenizerFile& file, const json& model, const TokenizerVocabulary& v,
                     const TokenizerSteps& steps, bool letters, TextPipeline& parts) {
  CharacterPairModel m;
  m.ids = v.ids;
  m.prefix = file.text_if_any(model, "model", "continuing_subword_prefix").value_or("");
  m.suffix = file.text_if_any(model, "model", "end_of_word_suffix").value_or("");
  m.merges = read_tokenizer_merges(file, model, v, m.prefix);
  m.fuse_unknown = file.flag(model, "model", "fuse_unk", false);
  m.mark = letters ? "" : steps.mark;
  if (file.flag(model, "model", "ignore_merges", false)) m.whole = whole_pieces(v, false);
  if (const auto unknown = file.text_if_any(model, "model", "unk_token")) {
    const auto found = v.ids.find(*unknown);
    if (found == v.ids.end()) file.refuse("model.unk_token", brief(*unknown), "a token of model.vocab");
    m.unknown = found->second;
  }
  if (file.flag(model, "model", "byte_fallback", false)) m.bytes = byte_fallback_tokens(v);
  const bool all_bytes =
      !m.bytes.empty() && std::ranges::all_of(m.bytes, [](const auto& b) { return b.has_value(); });
  if (!m.unknown && !all_bytes) {
    if (letters && m.suffix.empty() && m.prefix.empty())
      tokens_of_bytes(byte_texts(v), file.name());  // says which byte
    if (!letters || !spells_all_bytes(v))
      file.refuse("model.unk_token", "none", "one, or byte_fallback and <0x00> to <0xFF> in model.vocab",
                  "characters without a token would be lost");
  }
  if (all_bytes)
    parts.bad_bytes = [bytes = m.bytes](std::span<const std::string_view> pieces, PieceScratch&,
                                        std::vector<std::int32_t>& out) {
      for (const std::string_view bad : pieces)
        for (const char b : bad) out.push_back(*bytes[static_cast<unsigned char>(b)]);
    };
  parts.cut = parts_at_marks(m) ? steps.cut : CutRule::nowhere;
  parts.decode = decode_texts(texts_of_characters(m, v, letters), steps.prefix);
  parts.model = character_pair_encoder(std::move(m));
}

// A space behind what is none.
bool begins_words(std::string_view text, std::string_view mark) {
  bool space = true;  // before `at`
  for (std::size_t at = 0; at < text.size();) {
    const bool marked = !mark.empty() && text.substr(at).starts_with(mark);
    const bool here = marked || text[at] == ' ';
    if (here && !space) return true;
    space = here;
    at += marked ? mark.size() : 1;
  }
  return false;
}

// Added tokens may reach over the place where a text would be divided, or look beyond it.
bool leaves_cuts(const AddedTokens& added, CutRule rule, const std::string& mark) {
  if (added.empty()) return true;
  if (rule == CutRule::at_spaces) return false;  // words behind a token begin otherwise than those of a text
  const bool lines = rule == CutRule::between_lines || rule == CutRule::behind_one_feed;
  return std::ranges::none_of(added.tokens(), [&](const AddedToken& t) {
    if (t.single_word || t.lstrip || t.rstrip) return true;
    const std::string_view inside = std::string_view(t.content).substr(0, t.content.size() - 1);
    if (lines) return inside.find('\n') != std::string_view::npos;
    return begins_words(t.content, mark);
  });
}

bool restores(const AddedTokens& added) {
  return std::ranges::none_of(added.tokens(), [](const AddedToken& t) { return t.lstrip || t.rstrip; });
}

// Other files in JSON that lie beside a tokenizer.json.
void refuse_other_files(const TokenizerFile& file, const json& root) {
  if (root.contains("model") || root.empty()) return;
  constexpr const char* kExpected = "a tokenizer.json, which the model's folder for transformers has";
  const auto vocabulary = root.find("vocab");
  if (root.contains("config") && vocabulary != root.end() && vocabulary->is_array())
    file.refuse("", "Mistral's tekken.json", kExpected);
  if (std::ranges::all_of(root, [](const json& value) { return value.is_number_integer(); }))
    file.refuse("", "a vocabulary alone (vocab.json)", kExpected);
  if (root.contains("tokenizer_class")) file.refuse("", "a tokenizer_config.json", kExpected);
}

}  // namespace

Tokenizer parse_tokenizer_json(std::string_view text, const std::string& file_name,
                               std::string_view config_text) {
  const TokenizerFile file(file_name);
  const json root = parse_json(text, file_name);
  const json config = config_text.empty() ? json() : parse_json(config_text, "tokenizer_config.json");
  if (!root.is_object()) file.refuse("", brief(root), "an object");
  refuse_other_files(file, root);
  const json& model = file.member(root, "", "model", json::value_t::object, "an object");
  require_bpe(file, model);
  const TokenizerVocabulary v = read_tokenizer_vocabulary(file, root, model);
  const bool affixes = !file.text_if_any(model, "model", "continuing_subword_prefix").value_or("").empty() ||
                       !file.text_if_any(model, "model", "end_of_word_suffix").value_or("").empty();
  const bool letters = affixes || !spells_all_bytes(v);
  TokenizerSteps steps = read_tokenizer_steps(file, root, letters);

  TextPipeline parts;
  parts.raw = added_tokens_of(file, v, steps.normalizer, false);
  parts.normalized = added_tokens_of(file, v, steps.normalizer, true);
  parts.cut = steps.cut;
  if (steps.bytes)
    over_bytes(file, model, v, steps, parts);
  else
    over_characters(file, model, v, steps, steps.letters, parts);
  if (!leaves_cuts(parts.raw, parts.cut, steps.mark) || !leaves_cuts(parts.normalized, parts.cut, steps.mark))
    parts.cut = CutRule::nowhere;

  TokenizerInfo info{.kind = TokenizerKind::bpe_json, .vocab_size = static_cast<int>(v.size)};
  info.restores_text = steps.restores_text && restores(parts.raw) && restores(parts.normalized);
  read_tokenizer_frame(file, root, config, v, info);
  info.source = file_name;
  parts.normalizer = std::move(steps.normalizer);
  parts.pre_tokenizer = std::move(steps.pre_tokenizer);
  return make_tokenizer(std::move(info), std::move(parts));
}

}  // namespace sextant
