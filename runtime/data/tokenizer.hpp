// Text to tokens and back, as checkpoints of LLaMA and its family do it: a sentencepiece model (LLaMA 1 and 2), BPE of
// tokenizer.json, Meta's tiktoken ranks (Llama 3), or plain bytes. Text is text: nothing in it becomes a special token, bos and eos are put by who knows where a document begins. Values: copies share one tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

enum class TokenizerKind : std::uint8_t { bytes, sentencepiece, bpe_json, tiktoken };
std::string_view name(TokenizerKind);

struct TokenizerInfo {
  TokenizerKind kind = TokenizerKind::bytes;
  int vocab_size = 0;  // ids are below it; a model may have more rows
  std::optional<std::int32_t> bos = {}, eos = {};
  std::string bos_name = {}, eos_name = {};  // as its file calls them; may be empty
  bool bos_in_front = true;                  // of a document, where there is a bos
  bool restores_text = true;                 // decode(encode(text)) is the text
  std::string digest = {};                   // of what the ids depend on: equal digests, equal ids
  std::string source = {};                   // the file as given, or "bytes"
};

// Where a text may be divided: encode(text[0, end)) and encode(text[end + skip, ...)) are together encode(text).
struct TextCut {
  std::size_t end = 0, skip = 0;
};

class Tokenizer {
 public:
  using Encode = std::function<void(std::string_view text, std::vector<std::int32_t>& out)>;
  using Decode = std::function<std::string(std::span<const std::int32_t> ids)>;
  using Cut = std::function<std::optional<TextCut>(std::string_view text)>;

  Tokenizer(TokenizerInfo info, Encode encode, Decode decode, Cut cut)
      : info_(std::move(info)),
        encode_(std::move(encode)),
        decode_(std::move(decode)),
        cut_(std::move(cut)) {}

  const TokenizerInfo& info() const { return info_; }
  int vocab_size() const { return info_.vocab_size; }
  Tokenizer with_digest(std::string digest) && {
    info_.digest = std::move(digest);
    return std::move(*this);
  }

  // Appends. Safe from several threads at once. No text is refused, unless a pattern of its file takes too long on it
  // (BackendError); bytes that are no UTF-8 survive the way back except through sentencepiece and models without tokens for
  // bytes, which make U+FFFD of them.
  void encode(std::string_view text, std::vector<std::int32_t>& out) const { encode_(text, out); }
  std::vector<std::int32_t> encode(std::string_view text) const {
    std::vector<std::int32_t> ids;
    encode_(text, ids);
    return ids;
  }
  // Special tokens, and ids beyond the vocabulary, give no text. The end of a text that was cut between tokens may be half
  // a character.
  std::string decode(std::span<const std::int32_t> ids) const { return decode_(ids); }
  // The last such place, so that documents of any size can be encoded piece by piece; none when there is none.
  std::optional<TextCut> last_cut(std::string_view text) const { return cut_(text); }

 private:
  TokenizerInfo info_;
  Encode encode_;
  Decode decode_;
  Cut cut_;
};

// "bytes", a file, or a checkpoint folder with tokenizer.model or tokenizer.json in it. What a file is follows from its
// content. Throws ConfigError with file, key and expectation.
Tokenizer load_tokenizer(const std::string& file_or_name);

// Ids 0..255 are the bytes; bos 256, eos 257.
Tokenizer byte_tokenizer();

}  // namespace sextant
