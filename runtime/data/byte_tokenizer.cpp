#include "runtime/data/tokenizer.hpp"

namespace sextant {

Tokenizer byte_tokenizer() {
  TokenizerInfo info{.kind = TokenizerKind::bytes, .vocab_size = 258, .bos = 256, .eos = 257};
  info.digest = "bytes-1";
  info.source = "bytes";
  return {std::move(info),
          [](std::string_view text, std::vector<std::int32_t>& out) {
            for (const char c : text) out.push_back(static_cast<unsigned char>(c));
          },
          [](std::span<const std::int32_t> ids) {
            std::string text;
            for (const std::int32_t id : ids)
              if (id >= 0 && id < 256) text += static_cast<char>(id);
            return text;
          },
          [](std::string_view text) -> std::optional<TextCut> {
            // Before the last character: whoever reads the pieces may want each to be UTF-8.
            for (std::size_t at = text.size(); at-- > 1;)
              if ((static_cast<unsigned char>(text[at]) & 0xc0) != 0x80) return TextCut{at, 0};
            return {};
          }};
}

}  // namespace sextant
