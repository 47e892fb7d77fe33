#include "runtime/data/added_tokens.hpp"

#include <algorithm>

#include "runtime/data/split_pattern.hpp"
#include "runtime/data/unicode_forms.hpp"
#include "runtime/data/utf8.hpp"

namespace sextant {
namespace {

bool is_word(std::string_view character) {  // as Rust's \w has it
  static const SplitPattern word(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}])", "", "");
  std::vector<TextMatch> found;
  word.find_all(character, found);
  return !found.empty();
}

std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  const std::string_view before = text.substr(0, begin);
  if (!before.empty() && is_word(before.substr(last_character(before)))) return false;
  return end == text.size() || !is_word(text.substr(end, utf8_character(text, end).bytes));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), first_(256, -1) {
  any_ = std::ranges::any_of(tokens_, [](const AddedToken& t) { return !t.special; });
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    std::int32_t node = -1;
    for (const char c : tokens_[i].content) {
      std::int32_t next = child(node, c);
      if (next < 0) {
        next = static_cast<std::int32_t>(nodes_.size());
        nodes_.emplace_back();
        const auto byte = static_cast<unsigned char>(c);
        if (node < 0) {
          first_[byte] = next;
        } else {
          auto& list = nodes_[static_cast<std::size_t>(node)].next;
          list.insert(std::ranges::upper_bound(list, byte, {}, [](const auto& p) { return p.first; }),
                      {byte, next});
        }
      }
      node = next;
    }
    if (node >= 0) nodes_[static_cast<std::size_t>(node)].token = static_cast<std::int32_t>(i);
  }
}

std::int32_t AddedTokens::child(std::int32_t node, char c) const {
  const auto byte = static_cast<unsigned char>(c);
  if (node < 0) return first_[byte];
  const auto& list = nodes_[static_cast<std::size_t>(node)].next;
  const auto found = std::ranges::lower_bound(list, byte, {}, [](const auto& p) { return p.first; });
  return found != list.end() && found->first == byte ? found->second : -1;
}

std::int32_t AddedTokens::longest_at(std::string_view text, std::size_t at) const {
  std::int32_t token = -1;
  for (std::int32_t node = child(-1, text[at]); node >= 0;) {
    const std::int32_t here = nodes_[static_cast<std::size_t>(node)].token;
    if (here >= 0) token = here;
    if (++at >= text.size()) break;
    node = child(node, text[at]);
  }
  return token;
}

void AddedTokens::split(std::string_view text, std::vector<Part>& parts) const {
  std::size_t done = 0;
  for (std::size_t at = 0; any_ && at < text.size();) {
    if (first_[static_cast<unsigned char>(text[at])] < 0) {
      ++at;
      continue;
    }
    const std::int32_t found = longest_at(text, at);
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(found)];
    std::size_t begin = at, end = at + token.content.size();
    at = end;  // also when it is left: nothing begins within it
    if (token.special || (token.single_word && !stands_alone(text, begin, end))) continue;
    if (token.lstrip) {
      while (begin > done) {
        const std::size_t last = last_character(text.substr(0, begin));
        if (last < done || !is_white_space(utf8_character(text, last).code)) break;
        begin = last;
      }
      begin = std::max(begin, done);  // a token before it has taken white space that this one begins with
    }
    if (token.rstrip)
      while (end < text.size()) {
        const Utf8Character c = utf8_character(text, end);
        if (!is_white_space(c.code)) break;
        end += c.bytes;
      }
    if (done < begin) parts.push_back({text.substr(done, begin - done), -1});
    parts.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), -1});
}

}  // namespace sextant
