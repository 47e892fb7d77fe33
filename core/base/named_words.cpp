#include "core/base/named_words.hpp"

#include <cctype>

namespace sextant {

namespace {

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

}  // namespace

std::string folded(std::string_view text) {
  std::string out;
  for (const char c : text)
    out += c == '-' || c == '_' ? ' ' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool names(std::string_view text, std::string_view part, Ends ends) {
  const std::string in = folded(text), what = folded(part);
  if (what.empty()) return true;
  for (std::size_t at = in.find(what); at != std::string::npos; at = in.find(what, at + 1)) {
    const std::size_t end = at + what.size();
    const bool begins = at == 0 || !in_word(in[at - 1]) || !in_word(what.front());
    if (begins && (ends == Ends::anywhere || end == in.size() || !in_word(in[end]) || !in_word(what.back())))
      return true;
  }
  return false;
}

}  // namespace sextant
