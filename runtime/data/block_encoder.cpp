#include "runtime/data/block_encoder.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "runtime/data/utf8.hpp"

namespace sextant {
namespace {

using nlohmann::json;

constexpr const char* kBadTextHint = "convert it (iconv -t UTF-8), or give --bad-text skip or replace";

[[noreturn]] void refuse_block(const TextBlock& block, std::int64_t line, std::string key, std::string found,
                               std::string expected, std::string hint = "") {
  throw ConfigError(Problem{fmt::format("{}:{}", block.input->path.string(), line), std::move(key),
                            std::move(found), std::move(expected), std::move(hint)});
}

}  // namespace

EncodedBlock BlockEncoder::encode(const TextBlock& block) const {
  EncodedBlock out;
  out.next = block.next;
  out.done_bytes = block.done_bytes;
  out.empty_input = block.text.empty() && !block.continues;
  for (const DocumentSlice& slice : documents_of(block, options_.unit)) {
    std::string held;
    std::string_view text = slice.text;
    try {
      if (block.input->jsonl) text = held = field_of(block, slice);
      check(block, slice, text, held);
    } catch (const ConfigError& e) {
      if (options_.bad_text == BadText::stop) throw;
      if (slice.continues || slice.open)
        throw ConfigError(Problem{block.input->path.string(), "", "a document too long to be left out",
                                  "--bad-text stop, or replace for what is no UTF-8", e.what()});
      if (out.left_out++ == 0) out.first_left_out = e.what();
      continue;
    }
    const std::size_t before = out.ids.size();
    const bool whole = !slice.continues && !slice.open;
    const bool blank = whole && text.find_first_not_of(" \t\r\n\v\f") == text.npos;
    if (!blank) tokenizer_.encode(text, out.ids);
    out.text_bytes += static_cast<std::int64_t>(text.size());
    if (out.ids.size() > before || !whole)
      out.parts.push_back({out.ids.size() - before, slice.continues, slice.open});
    else if (out.left_out++ == 0)
      out.first_left_out = fmt::format("{}:{}: an empty document", block.input->path.string(), slice.line);
  }
  return out;
}

std::string BlockEncoder::field_of(const TextBlock& block, const DocumentSlice& slice) const {
  if (valid_utf8_prefix(slice.text) < slice.text.size() && options_.bad_text != BadText::replace)
    refuse_block(block, slice.line, "", "bytes that are no UTF-8", "a line of JSON in UTF-8", kBadTextHint);
  json value;
  try {
    value = json::parse(options_.bad_text == BadText::replace ? replace_invalid_utf8(slice.text)
                                                              : std::string(slice.text));
  } catch (const json::exception& e) {
    std::string why = e.what();
    why.erase(0, std::min(why.size(), why.find("parse error")));
    why.erase(std::min(why.size(), why.find("; last read")));  // all of a string that has no end
    refuse_block(block, slice.line, "", fmt::format("'{}'", replace_invalid_utf8(slice.text.substr(0, 40))),
                 "a line of JSON", why.substr(0, 200));
  }
  if (!value.is_object())
    refuse_block(block, slice.line, "", value.type_name(), "a JSON object on each line");
  const auto found = value.find(options_.field);
  if (found == value.end()) {
    std::vector<std::string> keys;
    for (const auto& [key, ignored] : value.items()) keys.push_back(key);
    std::string others;
    for (const auto& key : keys) others += (others.empty() ? "" : ", ") + key;
    refuse_block(block, slice.line, options_.field, "missing", "the text of the document",
                 fmt::format("the line has: {}; name the field with --field", others));
  }
  if (!found->is_string()) refuse_block(block, slice.line, options_.field, found->type_name(), "a string");
  return found->get<std::string>();
}

void BlockEncoder::check(const TextBlock& block, const DocumentSlice& slice, std::string_view& text,
                         std::string& held) const {
  const auto line_of = [&](std::size_t at) {
    if (block.input->jsonl) return slice.line;
    return slice.line + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  };
  if (const void* nul = text.empty() ? nullptr : std::memchr(text.data(), 0, text.size())) {
    const auto at = static_cast<std::size_t>(static_cast<const char*>(nul) - text.data());
    refuse_block(block, line_of(at), "", "a NUL byte", "text", "is this a binary file?");
  }
  const std::size_t valid = valid_utf8_prefix(text);
  if (valid == text.size()) return;
  if (options_.bad_text != BadText::replace)
    refuse_block(
        block, line_of(valid), "",
        fmt::format("byte 0x{:02x}, which is no UTF-8 there", static_cast<unsigned char>(text[valid])),
        "text in UTF-8", kBadTextHint);
  text = held = replace_invalid_utf8(text);
}

}  // namespace sextant
