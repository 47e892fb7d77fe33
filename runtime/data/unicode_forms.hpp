// Unicode's normalisation forms (UAX #15) and the kinds of characters that tokenizers ask for, from utf8proc (Unicode 15). The
// forms, punctuation and marks are those of the tokenizers library, which knows older versions: what was assigned since is left as
// it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sextant {

enum class UnicodeForm : std::uint8_t { nfc, nfd, nfkc, nfkd };

// False when the text is in the form already; what is in `out` then means nothing. Linear, whatever marks it has. `text` is
// UTF-8. Safe from several threads at once.
bool to_unicode_form(UnicodeForm form, std::string_view text, std::string& out);

bool is_white_space(char32_t);     // White_Space
bool is_numeric(char32_t);         // Nd, Nl, No
bool is_punctuation(char32_t);     // P*, and ASCII's symbols
bool is_combining_mark(char32_t);  // Mn, Mc, Me
// Appends the full lower case of one character, without regard to those around it.
void append_lower_case(std::string& out, char32_t);

}  // namespace sextant
