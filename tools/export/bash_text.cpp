#include "tools/export/bash_text.hpp"

namespace sextant {

std::string bash_word(const std::string& text) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string BashOptions::text() const {
  std::string text = array_ + "=(\n";
  for (const std::string& line : lines_) text += "  " + line + "\n";
  return text + ")\n";
}

}  // namespace sextant
