#include "runtime/data/text_pipeline.hpp"

#include <memory>
#include <utility>

#include <tbb/enumerable_thread_specific.h>

#include "runtime/data/utf8.hpp"

namespace sextant {
namespace {

class Pipeline {
 public:
  explicit Pipeline(TextPipeline parts) : parts_(std::move(parts)) {}

  void encode(std::string_view text, std::vector<std::int32_t>& out) const {
    Scratch& mine = scratch_.local();
    std::string mended;
    if (!parts_.bad_bytes && valid_utf8_prefix(text) < text.size())
      text = mended = replace_invalid_utf8(text);
    for (bool start = true; !text.empty(); start = false) {
      const std::size_t valid = valid_utf8_prefix(text);
      find_raw(text.substr(0, valid), start, mine, out);
      text.remove_prefix(valid);
      std::size_t bad = 0;
      while (bad < text.size() && valid_utf8_prefix(text.substr(bad, 4)) == 0) ++bad;
      const std::string_view bytes = text.substr(0, bad);
      if (bad > 0) parts_.bad_bytes(std::span(&bytes, 1), mine.piece, out);
      text.remove_prefix(bad);
    }
  }

  std::string decode(std::span<const std::int32_t> ids) const { return parts_.decode(ids); }

  std::optional<TextCut> last_cut(std::string_view text) const {
    switch (parts_.cut) {
      case CutRule::nowhere:
        return {};
      case CutRule::between_lines:
      case CutRule::behind_one_feed:
        for (std::size_t at = text.size(); at-- > 2;)
          if (text[at - 1] == '\n' && alphanumeric(text[at]) &&
              (parts_.cut == CutRule::between_lines || graph(text[at - 2])))
            return TextCut{at, 0};
        return {};
      case CutRule::at_spaces:
      case CutRule::before_spaces:
        for (std::size_t at = text.size(); at-- > 1;)
          if (text[at] == ' ' && at + 1 < text.size() && graph(text[at - 1]) && graph(text[at + 1]))
            return TextCut{at, parts_.cut == CutRule::at_spaces ? 1U : 0U};
        return {};
    }
    return {};
  }

 private:
  struct Scratch {
    std::vector<AddedTokens::Part> raw, normalized;
    TextNormalizer::Scratch normalizer;
    TextPieces pieces;
    PieceScratch piece;
  };

  // ASCII: what is a space or a letter elsewhere need not be known here.
  static bool graph(char c) { return c > ' ' && c < 0x7f; }
  static bool alphanumeric(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  }

  void find_raw(std::string_view text, bool start, Scratch& mine, std::vector<std::int32_t>& out) const {
    if (parts_.raw.empty()) return normalize(text, start, mine, out);
    mine.raw.clear();
    parts_.raw.split(text, mine.raw);
    for (const AddedTokens::Part& part : mine.raw)
      if (part.id >= 0)
        out.push_back(part.id);
      else
        normalize(part.text, start && part.text.data() == text.data(), mine, out);
  }

  void normalize(std::string_view text, bool start, Scratch& mine, std::vector<std::int32_t>& out) const {
    text = parts_.normalizer.apply(text, mine.normalizer);
    if (parts_.normalized.empty()) return cut(text, start, mine, out);
    mine.normalized.clear();
    parts_.normalized.split(text, mine.normalized);
    for (const AddedTokens::Part& part : mine.normalized)
      if (part.id >= 0)
        out.push_back(part.id);
      else
        cut(part.text, start && part.text.data() == text.data(), mine, out);
  }

  void cut(std::string_view text, bool start, Scratch& mine, std::vector<std::int32_t>& out) const {
    parts_.pre_tokenizer.apply(text, start, mine.pieces);
    parts_.model(mine.pieces.now, mine.piece, out);
  }

  TextPipeline parts_;
  mutable tbb::enumerable_thread_specific<Scratch> scratch_;
};

}  // namespace

Tokenizer make_tokenizer(TokenizerInfo info, TextPipeline parts) {
  const auto pipeline = std::make_shared<const Pipeline>(std::move(parts));
  return {std::move(info),
          [pipeline](std::string_view text, std::vector<std::int32_t>& out) { pipeline->encode(text, out); },
          [pipeline](std::span<const std::int32_t> ids) { return pipeline->decode(ids); },
          [pipeline](std::string_view text) { return pipeline->last_cut(text); }};
}

}  // namespace sextant
