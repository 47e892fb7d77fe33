// Patterns of tokenizer.json are written for Oniguruma (github.com/kkos/oniguruma, doc/RE); PCRE2 matches them here. The same
// letters mean other things to both: sets within sets, \h, \v, \s, \w, {,n}, {n,m}+, (?m), $, names of properties. What is known
// to mean the same, or can be spelled so that it does, is translated; everything else is refused rather than guessed.
#pragma once

#include <string>
#include <string_view>

namespace sextant {

// For pcre2_compile with UTF, UCP and MULTILINE, and line feed as the only newline. Throws std::invalid_argument that
// says what cannot be followed. What is no regular expression at all may be left to pcre2_compile to refuse.
std::string pcre2_of_oniguruma(std::string_view pattern);

}  // namespace sextant
