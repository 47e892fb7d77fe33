// The documents of a block of text as tokens; and what is no text: told with its file and line, left out, or mended, as
// --bad-text says. Blocks are encoded apart from each other, on any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/prepare.hpp"
#include "runtime/data/text_reader.hpp"
#include "runtime/data/tokenizer.hpp"

namespace sextant {

// A document, or the part of one that a block holds.
struct EncodedPart {
  std::size_t tokens = 0;
  bool continues = false, open = false;
};

struct EncodedBlock {
  std::vector<std::int32_t> ids;
  std::vector<EncodedPart> parts;
  std::int64_t text_bytes = 0, left_out = 0;
  std::string first_left_out;
  bool empty_input = false;
  TextPosition next;
  std::int64_t done_bytes = 0;
};

class BlockEncoder {
 public:
  // Both outlive it.
  BlockEncoder(const Tokenizer& tokenizer, const PrepareOptions& options)
      : tokenizer_(tokenizer), options_(options) {}

  EncodedBlock encode(const TextBlock&) const;  // throws ConfigError with file and line

 private:
  std::string field_of(const TextBlock&, const DocumentSlice&) const;
  // Throws unless it is text; what is mended stands in `held` then.
  void check(const TextBlock&, const DocumentSlice&, std::string_view& text, std::string& held) const;

  const Tokenizer& tokenizer_;
  const PrepareOptions& options_;
};

}  // namespace sextant
