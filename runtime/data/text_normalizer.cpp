#include "runtime/data/text_normalizer.hpp"

#include <utility>

#include "runtime/data/byte_alphabet.hpp"
#include "runtime/data/utf8.hpp"

namespace sextant {

NormalizerStep unicode_form_step(UnicodeForm form) {
  return [form](std::string_view text, std::string& out) { return to_unicode_form(form, text, out); };
}

NormalizerStep lower_case_step() {
  return [](std::string_view text, std::string& out) {
    out.clear();
    for (std::size_t at = 0; at < text.size();) {
      const Utf8Character c = utf8_character(text, at);
      append_lower_case(out, c.code);
      at += c.bytes;
    }
    return true;
  };
}

NormalizerStep strip_accents_step() {
  return [](std::string_view text, std::string& out) {
    out.clear();
    for (std::size_t at = 0; at < text.size();) {
      const Utf8Character c = utf8_character(text, at);
      if (!is_combining_mark(c.code)) out += text.substr(at, c.bytes);
      at += c.bytes;
    }
    return true;
  };
}

NormalizerStep strip_step(bool left, bool right) {
  return [left, right](std::string_view text, std::string& out) {
    std::size_t from = 0, end = 0;  // end: behind the last character that stays
    for (std::size_t at = 0; at < text.size();) {
      const Utf8Character c = utf8_character(text, at);
      const bool space = is_white_space(c.code);
      if (left && space && from == at) from += c.bytes;
      at += c.bytes;
      if (!space) end = at;
    }
    if (!right) end = text.size();
    if (from == 0 && end == text.size()) return false;
    out = text.substr(from, end > from ? end - from : 0);
    return true;
  };
}

NormalizerStep prepend_step(std::string front) {
  return [front = std::move(front)](std::string_view text, std::string& out) {
    (out = front) += text;
    return true;
  };
}

NormalizerStep replace_step(std::string what, std::string by) {
  return [what = std::move(what), by = std::move(by)](std::string_view text, std::string& out) {
    std::size_t found = text.find(what);
    if (found == std::string_view::npos) return false;
    out.clear();
    out.reserve(text.size() + text.size() / 4);
    std::size_t done = 0;
    for (; found != std::string_view::npos; found = text.find(what, done)) {
      (out += text.substr(done, found - done)) += by;
      done = found + what.size();
    }
    out += text.substr(done);
    return true;
  };
}

NormalizerStep replace_step(SplitPattern what, std::string by) {
  return [what = std::move(what), by = std::move(by)](std::string_view text, std::string& out) {
    std::vector<TextMatch> matches;
    what.find_all(text, matches);
    if (matches.empty()) return false;
    out.clear();
    std::size_t done = 0;
    for (const TextMatch& m : matches) {
      (out += text.substr(done, m.begin - done)) += by;
      done = m.end;
    }
    out += text.substr(done);
    return true;
  };
}

NormalizerStep byte_letters_step() {
  return [](std::string_view text, std::string& out) {
    out = to_byte_letters(text);
    return true;
  };
}

std::string_view TextNormalizer::apply(std::string_view text, Scratch& scratch) const {
  for (const NormalizerStep& step : steps_) {
    if (text.empty()) break;
    if (!step(text, scratch.next)) continue;
    std::swap(scratch.now, scratch.next);
    text = scratch.now;
  }
  return text;
}

}  // namespace sextant
