// Text files and JSONL as blocks that can be encoded apart from each other, of any size and gzipped or not. A block ends
// where documents end, or where the tokenizer lets a text be divided. Knows where it is, and can begin there again.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/tokenizer.hpp"

namespace sextant {

// What is a document in a plain text; in JSONL it is a line.
enum class DocumentUnit : std::uint8_t { file, paragraph, line };
inline constexpr std::array<std::string_view, 3> kDocumentUnitNames = {"file", "paragraph", "line"};

struct TextInput {
  std::filesystem::path path;
  std::int64_t bytes = 0;        // on disk
  std::int64_t modified_ns = 0;  // since the epoch
  bool jsonl = false;            // by its name: .jsonl, .ndjson, and .gz behind it
};

// Files as given; of a folder its files named *.txt, *.text, *.md, *.jsonl, *.ndjson (each also with .gz) and those of its
// folders, in order of their names; of a pattern with *, ? or [ what it matches; what links lead to again is taken once. Throws ConfigError when one gives nothing,
// or when two give the same file.
std::vector<TextInput> find_texts(const std::vector<std::string>& arguments);

struct TextPosition {
  std::size_t input = 0;     // all before it are done
  std::int64_t offset = 0;   // bytes of the text, unpacked
  std::int64_t line = 1;     // at offset
  bool in_document = false;  // the document at offset began before it
  bool operator==(const TextPosition&) const = default;
};

struct TextBlock {
  std::string text;
  const TextInput* input = nullptr;
  std::int64_t first_line = 1;
  bool continues = false;       // its beginning belongs to the document of the block before
  bool open = false;            // its end is not the end of a document
  TextPosition next;            // behind it
  std::int64_t done_bytes = 0;  // of all inputs, on disk
};

class TextReader {
 public:
  // `last_cut` is the tokenizer's. Both outlive the reader.
  // `stop`: looked at between reads; null: none.
  TextReader(const std::vector<TextInput>&, DocumentUnit, const Tokenizer&, TextPosition from = {},
             const std::atomic<bool>* stop = nullptr);
  ~TextReader();
  // Nothing behind the last one, and once `stop` is set. Throws ConfigError when a file cannot be read.
  std::optional<TextBlock> next();

 private:
  struct File;
  bool open();
  void fill(std::size_t bytes);

  const std::vector<TextInput>& inputs_;
  DocumentUnit unit_;
  const Tokenizer& tokenizer_;
  TextPosition at_;
  const std::atomic<bool>* stop_;
  std::int64_t bytes_before_ = 0;  // of the inputs that are done
  std::unique_ptr<File> file_;
  std::string buffer_;  // read, and in no block yet
};

// The documents of a block, without those that are empty: line ends and, between paragraphs, empty lines are no text.
struct DocumentSlice {
  std::string_view text;
  std::int64_t line = 1;
  bool continues = false, open = false;
};
std::vector<DocumentSlice> documents_of(const TextBlock&, DocumentUnit);

}  // namespace sextant
