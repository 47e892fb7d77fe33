#include "runtime/data/unicode_forms.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include <utf8proc.h>

#include "core/base/error.hpp"
#include "runtime/data/utf8.hpp"

namespace sextant {
namespace {

struct CodeRange {
  char32_t first, last;
};

// What tokenizers 0.23.3 leaves as it is (Unicode 9 of its crate unicode-normalization-alignments) and Unicode 15 composes,
// decomposes or puts in order: all characters compared, alone and between marks.
constexpr CodeRange kInert[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
    {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},
    {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x10781, 0x10785},
    {0x10787, 0x107b0}, {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff},
    {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e},
    {0x11839, 0x1183a}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
    {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f},
    {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1f16c, 0x1f16c},
    {0x1fbf0, 0x1fbf9}};

// Punctuation of Unicode 15 that is none to tokenizers 0.23.3 (its crate unicode_categories: Unicode 8).
constexpr CodeRange kLaterPunctuation[] = {
    {0x61d, 0x61d},     {0x9fd, 0x9fd},     {0xa76, 0xa76},     {0xc77, 0xc77},     {0xc84, 0xc84},
    {0x1b7d, 0x1b7e},   {0x2e43, 0x2e4f},   {0x2e52, 0x2e5d},   {0x10ead, 0x10ead}, {0x10f55, 0x10f59},
    {0x10f86, 0x10f89}, {0x1144b, 0x1144f}, {0x1145a, 0x1145b}, {0x1145d, 0x1145d}, {0x11660, 0x1166c},
    {0x116b9, 0x116b9}, {0x1183b, 0x1183b}, {0x11944, 0x11946}, {0x119e2, 0x119e2}, {0x11a3f, 0x11a46},
    {0x11a9a, 0x11a9c}, {0x11a9e, 0x11aa2}, {0x11b00, 0x11b09}, {0x11c41, 0x11c45}, {0x11c70, 0x11c71},
    {0x11ef7, 0x11ef8}, {0x11f43, 0x11f4f}, {0x11fff, 0x11fff}, {0x12ff1, 0x12ff2}, {0x16e97, 0x16e9a},
    {0x16fe2, 0x16fe2}, {0x1e95e, 0x1e95f}};

// Marks of Unicode 15 that are none to its crate unicode-normalization-alignments.
constexpr CodeRange kLaterMarks[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xafa, 0xaff},
    {0xb55, 0xb55},     {0xc04, 0xc04},     {0xc3c, 0xc3c},     {0xcf3, 0xcf3},     {0xd00, 0xd00},
    {0xd3b, 0xd3c},     {0xd81, 0xd81},     {0xeba, 0xeba},     {0xece, 0xece},     {0x1715, 0x1715},
    {0x180f, 0x180f},   {0x1abf, 0x1ace},   {0x1cf7, 0x1cf7},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},
    {0xa8ff, 0xa8ff},   {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50},
    {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x11073, 0x11074}, {0x110c2, 0x110c2}, {0x11145, 0x11146},
    {0x111c9, 0x111c9}, {0x111ce, 0x111cf}, {0x11241, 0x11241}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e},
    {0x1182c, 0x1183a}, {0x11930, 0x11935}, {0x11937, 0x11938}, {0x1193b, 0x1193e}, {0x11940, 0x11940},
    {0x11942, 0x11943}, {0x119d1, 0x119d7}, {0x119da, 0x119e0}, {0x119e4, 0x119e4}, {0x11a01, 0x11a0a},
    {0x11a33, 0x11a39}, {0x11a3b, 0x11a3e}, {0x11a47, 0x11a47}, {0x11a51, 0x11a5b}, {0x11a8a, 0x11a99},
    {0x11d31, 0x11d36}, {0x11d3a, 0x11d3a}, {0x11d3c, 0x11d3d}, {0x11d3f, 0x11d45}, {0x11d47, 0x11d47},
    {0x11d8a, 0x11d8e}, {0x11d90, 0x11d91}, {0x11d93, 0x11d97}, {0x11ef3, 0x11ef6}, {0x11f00, 0x11f01},
    {0x11f03, 0x11f03}, {0x11f34, 0x11f3a}, {0x11f3e, 0x11f42}, {0x13440, 0x13440}, {0x13447, 0x13455},
    {0x16f4f, 0x16f4f}, {0x16f7f, 0x16f87}, {0x16fe4, 0x16fe4}, {0x16ff0, 0x16ff1}, {0x1cf00, 0x1cf2d},
    {0x1cf30, 0x1cf46}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
    {0x1e4ec, 0x1e4ef}};

bool is_in(std::span<const CodeRange> ranges, char32_t code) {
  const auto behind = std::ranges::upper_bound(ranges, code, {}, &CodeRange::first);
  return behind != ranges.begin() && code <= std::prev(behind)->last;
}

constexpr std::size_t kCodes = 0x110000;

utf8proc_option_t options_of(UnicodeForm form) {
  const bool compose = form == UnicodeForm::nfc || form == UnicodeForm::nfkc;
  const bool compatible = form == UnicodeForm::nfkc || form == UnicodeForm::nfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                        (compatible ? UTF8PROC_COMPAT : 0));
}

int combining_class(char32_t code) {
  return is_in(kInert, code) ? 0
                             : utf8proc_get_property(static_cast<utf8proc_int32_t>(code))->combining_class;
}

// May it be the second of two that compose? Vowels and final consonants of Hangul, and what the tables say.
bool may_end_a_pair(char32_t code) {
  constexpr unsigned kSecond = 0x8000, kNone = 0xffff;
  if ((code >= 0x1161 && code <= 0x1175) || (code >= 0x11a8 && code <= 0x11c2)) return true;
  const unsigned index = utf8proc_get_property(static_cast<utf8proc_int32_t>(code))->comb_index;
  return index != kNone && index >= kSecond;
}

class FormTable {
 public:
  explicit FormTable(UnicodeForm form) : options_(options_of(form)), stable_(kCodes) {
    const bool compose = (options_ & UTF8PROC_COMPOSE) != 0;
    for (std::size_t i = 0; i < kCodes; ++i) {
      const auto code = static_cast<char32_t>(i);
      if (code >= 0xd800 && code < 0xe000) continue;
      if (is_in(kInert, code)) {
        stable_[i] = true;
        continue;
      }
      if (combining_class(code) != 0 || (compose && may_end_a_pair(code))) continue;
      std::vector<utf8proc_int32_t> parts;
      decompose(code, parts);
      if (compose) recompose(parts);
      stable_[i] = parts.size() == 1 && parts[0] == static_cast<utf8proc_int32_t>(code);
    }
    while (stable_[first_unstable_]) ++first_unstable_;
    std::string lead;
    append_utf8(lead, first_unstable_);
    first_lead_ = static_cast<unsigned char>(lead[0]);
  }

  bool convert(std::string_view text, std::string& out) const {
    std::size_t starter = 0;  // of the character before `at`: what follows may compose with it
    std::size_t at = next_unstable(text, 0, starter);
    if (at == text.size()) return false;
    out.clear();
    out.reserve(text.size() + text.size() / 8);
    std::size_t done = 0;
    std::vector<utf8proc_int32_t> codes;
    while (at < text.size()) {
      out += text.substr(done, starter - done);
      codes.clear();
      std::size_t end = starter;
      while (end < text.size()) {
        const Utf8Character c = utf8_character(text, end);
        if (end >= at && stable_[c.code]) break;
        decompose(c.code, codes);
        end += c.bytes;
      }
      put_in_order(codes);
      if (options_ & UTF8PROC_COMPOSE) recompose(codes);
      for (const utf8proc_int32_t code : codes) append_utf8(out, static_cast<char32_t>(code));
      done = starter = end;
      at = next_unstable(text, end, starter);
    }
    out += text.substr(done);
    return out != text;
  }

 private:
  // The next place of a character that is not left alone; `before` gets that of the character before it.
  std::size_t next_unstable(std::string_view text, std::size_t at, std::size_t& before) const {
    while (at < text.size()) {
      if (static_cast<unsigned char>(text[at]) < first_lead_) {  // a stable character, or the inside of one
        std::size_t end = at + 1;
        while (end < text.size() && static_cast<unsigned char>(text[end]) < first_lead_) ++end;
        // Only whole characters: bytes of the inside of a later one are below every lead, so end stands at a lead.
        before = end - 1;
        while ((static_cast<unsigned char>(text[before]) & 0xc0) == 0x80) --before;
        at = end;
        continue;
      }
      const Utf8Character c = utf8_character(text, at);
      if (!stable_[c.code]) return at;
      before = at;
      at += c.bytes;
    }
    return text.size();
  }

  void decompose(char32_t code, std::vector<utf8proc_int32_t>& out) const {
    constexpr std::size_t kMost = 32;  // U+FDFA has 18
    if (is_in(kInert, code)) return out.push_back(static_cast<utf8proc_int32_t>(code));
    std::array<utf8proc_int32_t, kMost> parts;
    int boundary = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts.data(),
                                                       parts.size(), options_, &boundary);
    SEXTANT_CHECK(n >= 0 && n <= static_cast<utf8proc_ssize_t>(kMost),
                  "utf8proc decomposes a character into more than 32");
    out.insert(out.end(), parts.begin(), parts.begin() + n);
  }

  // Canonical order, run by run of combining marks.
  static void put_in_order(std::vector<utf8proc_int32_t>& codes) {
    const auto class_of = [](utf8proc_int32_t code) { return combining_class(static_cast<char32_t>(code)); };
    for (auto at = codes.begin(); at != codes.end();) {
      if (class_of(*at) == 0) {
        ++at;
        continue;
      }
      const auto end = std::find_if(at, codes.end(), [&](auto code) { return class_of(code) == 0; });
      sort_by_class(std::span(&*at, static_cast<std::size_t>(end - at)));
      at = end;
    }
  }

  // Stable, and linear: there are 256 classes.
  static void sort_by_class(std::span<utf8proc_int32_t> marks) {
    if (marks.size() < 2) return;
    std::array<std::size_t, 257> begin = {};
    std::vector<std::pair<int, utf8proc_int32_t>> before;
    before.reserve(marks.size());
    for (const utf8proc_int32_t code : marks) {
      before.emplace_back(combining_class(static_cast<char32_t>(code)), code);
      ++begin[static_cast<std::size_t>(before.back().first) + 1];
    }
    for (std::size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
    for (const auto& [kind, code] : before) marks[begin[static_cast<std::size_t>(kind)]++] = code;
  }

  // utf8proc composes; a character that is left alone is composed with nothing and lets nothing across.
  static void recompose(std::vector<utf8proc_int32_t>& codes) {
    constexpr utf8proc_int32_t kSecondOfInert = 0x11930;  // whose composition is in kInert
    std::size_t done = 0;
    for (std::size_t from = 0; from < codes.size();) {
      std::size_t end = from + 1;
      while (end < codes.size() && codes[end] != kSecondOfInert &&
             !is_in(kInert, static_cast<char32_t>(codes[end])))
        ++end;
      const utf8proc_ssize_t n =
          utf8proc_normalize_utf32(codes.data() + from, static_cast<utf8proc_ssize_t>(end - from),
                                   static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
      SEXTANT_CHECK(n >= 0, "utf8proc composes no text");
      std::copy_n(codes.begin() + static_cast<std::ptrdiff_t>(from), n,
                  codes.begin() + static_cast<std::ptrdiff_t>(done));
      done += static_cast<std::size_t>(n);
      from = end;
    }
    codes.resize(done);
  }

  utf8proc_option_t options_;
  std::vector<bool> stable_;  // by code: alone it stays as it is, and it composes with nothing before it
  char32_t first_unstable_ = 0;
  unsigned char first_lead_ = 0;
};

// A table is made when a text first asks for it.
template <UnicodeForm form>
bool convert_to(std::string_view text, std::string& out) {
  static const FormTable table(form);
  return table.convert(text, out);
}

utf8proc_category_t category_of(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

}  // namespace

bool to_unicode_form(UnicodeForm form, std::string_view text, std::string& out) {
  switch (form) {
    case UnicodeForm::nfc:
      return convert_to<UnicodeForm::nfc>(text, out);
    case UnicodeForm::nfd:
      return convert_to<UnicodeForm::nfd>(text, out);
    case UnicodeForm::nfkc:
      return convert_to<UnicodeForm::nfkc>(text, out);
    case UnicodeForm::nfkd:
      return convert_to<UnicodeForm::nfkd>(text, out);
  }
  return false;
}

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_numeric(char32_t c) {
  const utf8proc_category_t kind = category_of(c);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80 && c != 0 && std::strchr("$+<=>^`|~", static_cast<int>(c))) return true;
  if (c == 0x166d || c == 0x111c9) return true;  // were, in Unicode 8
  const utf8proc_category_t kind = category_of(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO && !is_in(kLaterPunctuation, c);
}

bool is_combining_mark(char32_t c) {
  if (c == 0x1cf2 || c == 0x1cf3) return true;  // were, in Unicode 9
  const utf8proc_category_t kind = category_of(c);
  return (kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC || kind == UTF8PROC_CATEGORY_ME) &&
         !is_in(kLaterMarks, c);
}

void append_lower_case(std::string& out, char32_t c) {
  if (c == 0x130) {  // the one that becomes two
    out += "i\xcc\x87";
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace sextant
