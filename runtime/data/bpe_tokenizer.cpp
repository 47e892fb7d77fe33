#include "runtime/data/bpe_tokenizer.hpp"

#include <memory>

#include <fmt/format.h>
#include <tbb/enumerable_thread_specific.h>

#include "core/base/error.hpp"

namespace sextant {
namespace {

std::array<std::int32_t, 256> byte_tokens(const std::vector<std::string>& tokens, const std::string& file) {
  std::array<std::int32_t, 256> bytes;
  bytes.fill(-1);
  for (std::size_t id = 0; id < tokens.size(); ++id)
    if (tokens[id].size() == 1)
      bytes[static_cast<unsigned char>(tokens[id][0])] = static_cast<std::int32_t>(id);
  for (std::size_t c = 0; c < bytes.size(); ++c)
    if (bytes[c] < 0)
      throw ConfigError(Problem{file, "", fmt::format("no token for byte 0x{:02x}", c),
                                "a token for each of the 256 bytes",
                                "byte-level BPE, as of Llama 3, can write any text"});
  return bytes;
}

struct Bpe {
  Bpe(BytePairModel m, const std::string& file)
      : model(std::move(m)), pairs(byte_tokens(model.tokens, file), model.merges) {
    if (!model.whole_pieces) return;
    for (std::size_t id = 0; id < model.tokens.size(); ++id)
      if (!model.tokens[id].empty()) ids.emplace(model.tokens[id], static_cast<std::int32_t>(id));
  }

  void encode(std::string_view text, std::vector<std::int32_t>& out) const {
    Scratch& mine = scratch.local();
    mine.pieces.clear();
    model.split.split(text, mine.pieces);
    for (const std::string_view piece : mine.pieces) {
      if (const auto* known = mine.cache.find(piece)) {
        out.insert(out.end(), known->begin(), known->end());
        continue;
      }
      const std::size_t first = out.size();
      if (const auto whole = ids.find(piece); whole != ids.end())
        out.push_back(whole->second);
      else
        pairs.encode(piece, out);
      mine.cache.keep(piece, std::span(out).subspan(first));
    }
  }

  std::string decode(std::span<const std::int32_t> list) const {
    std::string text;
    for (const std::int32_t id : list)
      if (id >= 0 && static_cast<std::size_t>(id) < model.tokens.size())
        text += model.tokens[static_cast<std::size_t>(id)];
    return text;
  }

  std::optional<TextCut> last_cut(std::string_view text) const {
    using Parts = SplitPattern::Parts;
    const Parts parts = model.split.parts();
    if (parts == Parts::unknown) return {};
    // ASCII on both sides: what is a space elsewhere need not be known here.
    const auto graph = [&](std::size_t at) { return text[at] > ' ' && text[at] < 0x7f; };
    for (std::size_t at = text.size(); at-- > 2;)
      if (text[at - 1] == '\n' && graph(at) && (parts == Parts::between_lines || graph(at - 2)))
        return TextCut{at, 0};
    return {};
  }

 private:
  struct Scratch {
    std::vector<std::string_view> pieces;
    PieceCache cache;
  };
  BytePairModel model;
  BytePairs pairs;
  std::unordered_map<std::string_view, std::int32_t> ids;  // into model.tokens; of whole_pieces only
  mutable tbb::enumerable_thread_specific<Scratch> scratch;
};

}  // namespace

Tokenizer make_bpe_tokenizer(TokenizerInfo info, BytePairModel model) {
  const auto bpe = std::make_shared<const Bpe>(std::move(model), info.source);
  return {std::move(info),
          [bpe](std::string_view text, std::vector<std::int32_t>& out) { bpe->encode(text, out); },
          [bpe](std::span<const std::int32_t> ids) { return bpe->decode(ids); },
          [bpe](std::string_view text) { return bpe->last_cut(text); }};
}

}  // namespace sextant
