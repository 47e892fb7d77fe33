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
    around_added(parts_.raw, text, start, mine.raw, out,
                 [&](std::string_view between, bool starts) { normalize(between, starts, mine, out); });
  }

  void normalize(std::string_view text, bool start, Scratch& mine, std::vector<std::int32_t>& out) const {
    text = parts_.normalizer.apply(text, mine.normalizer);
    around_added(parts_.normalized, text, start, mine.normalized, out,
                 [&](std::string_view between, bool starts) { cut(between, starts, mine, out); });
  }

  // Added tokens as they come, and what lies between them as `use` has it.
  template <class Use>
  static void around_added(const AddedTokens& added, std::string_view text, bool start,
                           std::vector<AddedTokens::Part>& parts, std::vector<std::int32_t>& out,
                           const Use& use) {
    if (added.empty()) return use(text, start);
    parts.clear();
    added.split(text, parts);
    for (const AddedTokens::Part& part : parts)
      if (part.id >= 0)
        out.push_back(part.id);
      else
        use(part.text, start && part.text.data() == text.data());
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

Tokenizer::Decode decode_texts(std::vector<std::string> texts, bool drops_space) {
  return [texts = std::move(texts), drops_space](std::span<const std::int32_t> ids) {
    std::string text;
    for (const std::int32_t id : ids)
      if (id >= 0 && static_cast<std::size_t>(id) < texts.size()) text += texts[static_cast<std::size_t>(id)];
    if (drops_space && text.starts_with(' ')) text.erase(0, 1);
    return text;
  };
}

}  // namespace sextant
