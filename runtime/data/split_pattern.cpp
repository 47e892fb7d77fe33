#include "runtime/data/split_pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "core/base/error.hpp"
#include "runtime/data/utf8.hpp"

namespace sextant {
namespace {

template <auto free_it>
struct Free {
  template <class T>
  void operator()(T* p) const {
    free_it(p);
  }
};

// White_Space of Unicode 15, as the inside of a bracket.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// \s and \S spelled out; \S inside a bracket has no spelling there and keeps PCRE2's meaning.
std::string spell_out_spaces(std::string_view pattern) {
  std::string out;
  bool bracket = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's')
        out += bracket ? std::string(kSpaces) : fmt::format("[{}]", kSpaces);
      else if (next == 'S' && !bracket)
        out += fmt::format("[^{}]", kSpaces);
      else
        (out += c) += next;
      continue;
    }
    if (c == '[') bracket = true;
    if (c == ']') bracket = false;
    out += c;
  }
  return out;
}

constexpr std::size_t kJitStackFirst = 32U << 10, kJitStackMost = 16U << 20;

// What a thread needs to match with; a pattern without groups needs one pair of offsets.
struct Matcher {
  std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context{
      pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(kJitStackFirst, kJitStackMost, nullptr)};
  Matcher() {
    if (!data || !context) throw std::bad_alloc();
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

}  // namespace

struct SplitPattern::Code {
  std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code;
};

SplitPattern::SplitPattern(std::string_view pattern, const std::string& file, const std::string& key) {
  if (pattern == kLlama3Split) parts_ = Parts::between_lines;
  if (pattern == kGpt2Split) parts_ = Parts::behind_one_feed;
  const std::string spelled = spell_out_spaces(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  code->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
  if (!code->code) {
    PCRE2_UCHAR text[200] = {};
    pcre2_get_error_message(error, text, sizeof text);
    throw ConfigError(Problem{file, key, std::string(pattern.substr(0, 120)), "a regular expression",
                              reinterpret_cast<const char*>(text)});
  }
  pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE);  // where there is none, the interpreter serves
  code_ = std::move(code);
}

void SplitPattern::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    split_valid(text.substr(0, valid), pieces);
    text.remove_prefix(valid);
    std::size_t bad = 0;
    while (bad < text.size() && valid_utf8_prefix(text.substr(bad, 4)) == 0) ++bad;
    if (bad > 0) pieces.push_back(text.substr(0, bad));
    text.remove_prefix(bad);
  }
}

void SplitPattern::split_valid(std::string_view text, std::vector<std::string_view>& pieces) const {
  thread_local const Matcher matcher;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::size_t done = 0, from = 0;
  while (from < text.size()) {
    const int matched = pcre2_match(code_->code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                    matcher.data.get(), matcher.context.get());
    if (matched == PCRE2_ERROR_NOMATCH) break;
    if (matched < 0)
      throw BackendError(
          fmt::format("the tokenizer's split pattern failed on a text (PCRE2 error {})", matched));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(matcher.data.get());
    if (range[1] <= range[0]) {  // a match of nothing: go on behind the next character
      from = std::max(from, range[0]) + 1;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) ++from;
      continue;
    }
    if (range[0] > done) pieces.push_back(text.substr(done, range[0] - done));
    pieces.push_back(text.substr(range[0], range[1] - range[0]));
    done = from = range[1];
  }
  if (done < text.size()) pieces.push_back(text.substr(done));
}

}  // namespace sextant
