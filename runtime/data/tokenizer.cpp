#include "runtime/data/tokenizer.hpp"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "core/base/digest.hpp"
#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "runtime/data/bpe_tokenizer.hpp"
#include "runtime/data/sentencepiece_tokenizer.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAccepted =
    "a sentencepiece model, tokenizer.json, Llama 3's tiktoken ranks, a folder with one of them, or the word "
    "bytes";

fs::path tokenizer_file(const std::string& given) {
  std::error_code error;  // whoever reads it says what is wrong
  if (!fs::is_directory(given, error)) return given;
  for (const char* usual : {"tokenizer.json", "tokenizer.model", "original/tokenizer.model"})
    if (fs::exists(fs::path(given) / usual)) return fs::path(given) / usual;
  throw ConfigError(Problem{given, "", "a folder without tokenizer.model or tokenizer.json", kAccepted, ""});
}

enum class Content : std::uint8_t { unknown, json_text, sentencepiece, ranks };

Content content_of(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return Content::unknown;
  if (text[first] == '{') return Content::json_text;
  // A protocol buffer whose field 1 holds the pieces; each begins with a field 1 of its own, the piece.
  if (text.size() > 3 && text[0] == '\x0a' && text.substr(1, 12).find('\x0a') != std::string_view::npos)
    return Content::sentencepiece;
  const std::string_view line = text.substr(first, text.find('\n', first) - first);
  const std::size_t digit = line.find(' ') + 1;
  const bool ranked =
      digit > 1 && digit < line.size() && line.find_first_not_of("0123456789\r", digit) == line.npos;
  return ranked ? Content::ranks : Content::unknown;
}

Tokenizer parse(const fs::path& file, std::string_view text) {
  const std::string name = file.string();
  switch (content_of(text)) {
    case Content::json_text: {
      const fs::path config = file.parent_path() / "tokenizer_config.json";
      return parse_tokenizer_json(text, name, fs::exists(config) ? read_text_file(config) : "");
    }
    case Content::sentencepiece:
      return parse_sentencepiece(text, name);
    case Content::ranks:
      return parse_tiktoken_ranks(text, name);
    case Content::unknown:
      break;
  }
  throw ConfigError(Problem{name, "", text.empty() ? "an empty file" : "something else", kAccepted, ""});
}

}  // namespace

std::string_view name(TokenizerKind kind) {
  switch (kind) {
    case TokenizerKind::bytes:
      return "bytes";
    case TokenizerKind::sentencepiece:
      return "sentencepiece";
    case TokenizerKind::bpe_json:
      return "tokenizer.json";
    case TokenizerKind::tiktoken:
      return "tiktoken";
  }
  return "";
}

Tokenizer load_tokenizer(const std::string& file_or_name) {
  if (file_or_name == "bytes") return byte_tokenizer();
  const fs::path file = tokenizer_file(file_or_name);
  const std::string text = read_text_file(file);
  const std::string of_file = digest(text);
  Tokenizer found = [&] {
    try {
      return parse(file, text);
    } catch (const ConfigError&) {
      const fs::path model = file.parent_path() / "tokenizer.model";
      if (fs::path(file_or_name) == file || file.filename() != "tokenizer.json" || !fs::exists(model)) throw;
      return load_tokenizer(model.string());  // a folder of LLaMA 1 or 2 has both
    }
  }();
  if (!found.info().digest.empty()) return found;
  return std::move(found).with_digest(of_file);
}

}  // namespace sextant
