// tokenizer.model of LLaMA 1 and 2, through Google's library; linked when it was found.
#include "runtime/data/sentencepiece_tokenizer.hpp"

#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include "core/error.hpp"

namespace sextant {
namespace {

using sentencepiece::SentencePieceProcessor;

constexpr std::size_t kPiece = 4096;
constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, how pieces spell a space

[[noreturn]] void failed(const std::string& file, const sentencepiece::util::Status& status) {
  throw ConfigError(
      Problem{file, "", status.ToString(), "a sentencepiece model, as LLaMA 1 and 2 ship it", ""});
}

std::vector<int> encode(const SentencePieceProcessor& model, std::string_view text) {
  std::vector<int> ids;
  if (const auto status = model.Encode({text.data(), text.size()}, &ids); !status.ok())
    throw BackendError("sentencepiece: " + status.ToString());
  return ids;
}

// Whether a text may be divided at a space between words: no piece reaches over the beginning of a word, and a text is
// given the space that the division takes away.
bool parts_at_words(const SentencePieceProcessor& model) {
  for (int id = 0; id < model.GetPieceSize(); ++id) {
    const std::string& piece = model.IdToPiece(id);
    std::size_t at = 0;
    while (piece.compare(at, kSpace.size(), kSpace) == 0) at += kSpace.size();
    if (piece.find(kSpace, at) != std::string::npos) return false;
  }
  auto twice = encode(model, "a");
  twice.insert(twice.end(), twice.begin(), twice.end());
  return encode(model, "a a") == twice;
}

std::optional<TextCut> last_word(std::string_view text) {
  const auto word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  for (std::size_t at = text.size(); at-- > 2;)
    if (text[at - 1] == ' ' && word(text[at]) && word(text[at - 2])) return TextCut{at - 1, 1};
  return {};
}

// The library takes more than linear time and memory for a long text, so that it is given pieces where words part.
void encode_pieces(const SentencePieceProcessor& model, std::string_view text,
                   std::vector<std::int32_t>& out) {
  const auto add = [&](std::string_view piece) {
    const auto ids = encode(model, piece);
    out.insert(out.end(), ids.begin(), ids.end());
  };
  for (std::size_t piece = kPiece; text.size() > piece;) {
    const auto cut = last_word(text.substr(0, piece));
    if (!cut) {
      piece *= 2;
      continue;
    }
    add(text.substr(0, cut->end));
    text.remove_prefix(cut->end + cut->skip);
    piece = kPiece;
  }
  add(text);
}

}  // namespace

Tokenizer parse_sentencepiece(std::string_view model_bytes, const std::string& file) {
  const auto model = std::make_shared<SentencePieceProcessor>();
  if (const auto status = model->LoadFromSerializedProto({model_bytes.data(), model_bytes.size()});
      !status.ok())
    failed(file, status);
  TokenizerInfo info{.kind = TokenizerKind::sentencepiece, .vocab_size = model->GetPieceSize()};
  if (model->bos_id() >= 0) info.bos = model->bos_id();
  if (model->eos_id() >= 0) info.eos = model->eos_id();
  info.source = file;
  const bool words = parts_at_words(*model);
  const std::vector<int> word_before = words ? encode(*model, "a") : std::vector<int>();
  return {std::move(info),
          [model, words](std::string_view text, std::vector<std::int32_t>& out) {
            if (words) return encode_pieces(*model, text, out);
            const auto ids = encode(*model, text);
            out.insert(out.end(), ids.begin(), ids.end());
          },
          [model, word_before](std::span<const std::int32_t> ids) {
            // Behind a word of our own: at the beginning, some versions of the library drop all spaces, not one.
            std::vector<int> known = word_before;
            std::ranges::copy_if(ids, std::back_inserter(known),
                                 [&](std::int32_t id) { return id >= 0 && id < model->GetPieceSize(); });
            std::string text;
            if (const auto status = model->Decode(known, &text); !status.ok())
              throw BackendError("sentencepiece: " + status.ToString());
            if (!word_before.empty()) text.erase(0, text.compare(0, 2, "a ") == 0 ? 2 : 1);
            return text;
          },
          [words](std::string_view text) -> std::optional<TextCut> {
            return words ? last_word(text) : std::nullopt;
          }};
}

bool sentencepiece_available() { return true; }

}  // namespace sextant
