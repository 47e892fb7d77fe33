#include "runtime/data/split_pattern.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "core/base/error.hpp"
#include "runtime/data/oniguruma_pattern.hpp"

namespace sextant {
namespace {

template <auto free_it>
struct Free {
  template <class T>
  void operator()(T* p) const {
    free_it(p);
  }
};

constexpr std::size_t kJitStackFirst = 32U << 10, kJitStackMost = 64U << 20;
constexpr std::uint32_t kMostSteps = 20'000'000;  // of one match: some tenths of a second
constexpr std::uint32_t kMostHeapKiB = 1U << 20;

// What a thread needs to match with; a pattern whose groups nobody asks for needs one pair of offsets.
struct Matcher {
  std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context{
      pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(kJitStackFirst, kJitStackMost, nullptr)};
  Matcher() {
    if (!data || !context) throw std::bad_alloc();
    pcre2_set_match_limit(context.get(), kMostSteps);
    pcre2_set_heap_limit(context.get(), kMostHeapKiB);
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 200> text = {};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct SplitPattern::Code {
  std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code;
  std::string file, key;
};

SplitPattern::SplitPattern(std::string_view pattern, const std::string& file, const std::string& key) {
  const auto refuse = [&](const std::string& expected, const std::string& hint) {
    throw ConfigError(Problem{file, key, std::string(pattern.substr(0, 120)), expected, hint});
  };
  std::string spelled;
  try {
    spelled = pcre2_of_oniguruma(pattern);
  } catch (const std::invalid_argument& e) {
    refuse("a regular expression that means the same to Oniguruma and to PCRE2",
           fmt::format("cannot be followed: {}", e.what()));
  }
  const std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>> context{
      pcre2_compile_context_create(nullptr)};
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_bsr(context.get(), PCRE2_BSR_UNICODE);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  code->file = file;
  code->key = key;
  code->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                                 &offset, context.get()));
  if (!code->code) refuse("a regular expression", message_of(error));
  pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE);  // where there is none, the interpreter serves
  code_ = std::move(code);
}

template <class Found>
void SplitPattern::each_match(std::string_view text, const Found& found) const {
  thread_local const Matcher matcher;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto match_from = [&](std::size_t from, std::uint32_t options) {
    return pcre2_match(code_->code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | options,
                       matcher.data.get(), matcher.context.get());
  };
  std::size_t from = 0, last_end = std::string_view::npos;
  while (from <= text.size()) {
    int matched = match_from(from, 0);
    if (matched == PCRE2_ERROR_JIT_STACKLIMIT) matched = match_from(from, PCRE2_NO_JIT);  // on the heap
    if (matched == PCRE2_ERROR_NOMATCH) break;
    if (matched < 0)
      throw BackendError(
          fmt::format("{}: {}: matching a text of {} bytes at byte {} failed: {}; the pattern tries too many "
                      "ways to match "
                      "it: divide the text (--document line), or use another tokenizer",
                      code_->file, code_->key, text.size(), from, message_of(matched)));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(matcher.data.get());
    const TextMatch match{range[0], range[1]};
    if (match.end == match.begin &&
        match.end == last_end) {  // once is enough: go on behind the next character
      ++from;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) ++from;
      continue;
    }
    found(match);
    from = last_end = match.end;
  }
}

void SplitPattern::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  std::size_t done = 0;
  const auto add = [&](std::size_t end) {
    if (end > done) pieces.push_back(text.substr(done, end - done));
    done = end;
  };
  each_match(text, [&](TextMatch m) {
    add(m.begin);
    add(m.end);
  });
  add(text.size());
}

void SplitPattern::find_all(std::string_view text, std::vector<TextMatch>& matches) const {
  each_match(text, [&](TextMatch m) { matches.push_back(m); });
}

}  // namespace sextant
