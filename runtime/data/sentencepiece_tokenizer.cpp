// tokenizer.model of LLaMA 1 and 2, through Google's library; linked when it was found.
#include "runtime/data/sentencepiece_tokenizer.hpp"

#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <tbb/enumerable_thread_specific.h>

#include "core/base/error.hpp"
#include "runtime/data/piece_cache.hpp"

namespace sextant {
namespace {

using sentencepiece::SentencePieceProcessor;

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, how pieces spell a space

// Some damage the library tells by its status, some by what its parts throw.
void load(SentencePieceProcessor& model, std::string_view bytes, const std::string& file) {
  std::string found;
  try {
    const auto status = model.LoadFromSerializedProto({bytes.data(), bytes.size()});
    if (status.ok()) return;
    found = status.ToString();
  } catch (const std::exception&) {
    found = "pieces of which no vocabulary can be made";
  }
  throw ConfigError(Problem{file, "", found, "a sentencepiece model, as LLaMA 1 and 2 ship it", ""});
}

std::vector<int> encode(const SentencePieceProcessor& model, std::string_view text) {
  std::vector<int> ids;
  if (const auto status = model.Encode({text.data(), text.size()}, &ids); !status.ok())
    throw BackendError("sentencepiece: " + status.ToString());
  return ids;
}

// Scores of a model of byte pairs are the ranks of its merges. Those of a unigram model are logarithms: sums of them that are
// nearly the same come out in another order when a text is divided.
bool scores_are_ranks(const SentencePieceProcessor& model) {
  for (int id = 0; id < model.GetPieceSize(); ++id)
    if (const float score = model.GetScore(id); score != std::floor(score)) return false;
  return true;
}

// Whether a text may be divided at a space between words: no piece reaches over the beginning of a word, and a text is
// given the space that the division takes away.
bool parts_at_words(const SentencePieceProcessor& model) {
  if (!scores_are_ranks(model)) return false;
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

// A word to decode behind, where the model gives every text a space to begin with, which decoding takes away again.
std::vector<int> word_before(const SentencePieceProcessor& model) {
  std::vector<int> ids = encode(model, "a");
  std::string text;
  const bool spaced = !ids.empty() && model.IdToPiece(ids.front()).starts_with(kSpace);
  if (!spaced || !model.Decode(ids, &text).ok() || text != "a") return {};
  return ids;
}

bool graph(char c) { return c > ' ' && c < 0x7f; }  // of ASCII, which normalisation leaves as it is

// A space at which a text may be divided; `space` is its place.
bool parts_words(std::string_view text, std::size_t space) {
  return space > 0 && space + 1 < text.size() && text[space] == ' ' && graph(text[space - 1]) &&
         graph(text[space + 1]);
}

// Where words part, a text is given to the library word by word: most of them it has seen before.
class WordEncoder {
 public:
  explicit WordEncoder(std::shared_ptr<const SentencePieceProcessor> model) : model_(std::move(model)) {}

  void encode(std::string_view text, std::vector<std::int32_t>& out) const {
    PieceCache& cache = caches_.local();
    for (std::size_t from = 0; from <= text.size();) {
      std::size_t end = text.find(' ', from + 1);
      while (end < text.size() && !parts_words(text, end)) end = text.find(' ', end + 1);
      end = std::min(end, text.size());
      add(text.substr(from, end - from), cache, out);
      from = end + 1;
    }
  }

 private:
  void add(std::string_view piece, PieceCache& cache, std::vector<std::int32_t>& out) const {
    const auto known = cache.find(piece);
    if (known) {
      out.insert(out.end(), known->begin(), known->end());
      return;
    }
    const auto ids = sextant::encode(*model_, piece);
    out.insert(out.end(), ids.begin(), ids.end());
    cache.keep(piece, ids);
  }
  std::shared_ptr<const SentencePieceProcessor> model_;
  mutable tbb::enumerable_thread_specific<PieceCache> caches_;
};

}  // namespace

Tokenizer parse_sentencepiece(std::string_view model_bytes, const std::string& file) {
  const auto model = std::make_shared<SentencePieceProcessor>();
  load(*model, model_bytes, file);
  TokenizerInfo info{.kind = TokenizerKind::sentencepiece, .vocab_size = model->GetPieceSize()};
  if (model->bos_id() >= 0) {
    info.bos = model->bos_id();
    info.bos_name = model->IdToPiece(*info.bos);
  }
  if (model->eos_id() >= 0) {
    info.eos = model->eos_id();
    info.eos_name = model->IdToPiece(*info.eos);
  }
  info.source = file;
  info.restores_text = false;  // not what is no UTF-8
  const bool words = parts_at_words(*model);
  const auto by_words = words ? std::make_shared<const WordEncoder>(model) : nullptr;
  return {std::move(info),
          [model, by_words](std::string_view text, std::vector<std::int32_t>& out) {
            if (by_words) return by_words->encode(text, out);
            const auto ids = encode(*model, text);
            out.insert(out.end(), ids.begin(), ids.end());
          },
          [model, before = word_before(*model)](std::span<const std::int32_t> ids) {
            // Behind a word of our own: at the beginning, some versions of the library drop all spaces, not one.
            std::vector<int> known = before;
            std::ranges::copy_if(ids, std::back_inserter(known),
                                 [&](std::int32_t id) { return id >= 0 && id < model->GetPieceSize(); });
            std::string text;
            if (const auto status = model->Decode(known, &text); !status.ok())
              throw BackendError("sentencepiece: " + status.ToString());
            if (!before.empty()) text.erase(0, text.compare(0, 2, "a ") == 0 ? 2 : 1);
            return text;
          },
          [words](std::string_view text) -> std::optional<TextCut> {
            for (std::size_t at = text.size(); words && at-- > 0;)
              if (parts_words(text, at)) return TextCut{at, 1};
            return {};
          }};
}

bool sentencepiece_available() { return true; }

}  // namespace sextant
