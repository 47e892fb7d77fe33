// What a bash script does not tell stands marked in a word: what a command prints, or a variable that the script does not set.
#pragma once

#include <string>
#include <string_view>

namespace sextant {

// A place whose text is not known: kUnknownBegin, what stands there, kUnknownEnd.
inline constexpr char kUnknownBegin = '\x01', kUnknownEnd = '\x02';
std::string unknown(std::string_view what);
bool has_unknown(std::string_view word);
std::string without_unknown(std::string_view word);  // as if nothing stood there
std::string shown_unknown(std::string_view word);    // "$MBS", as the script has it

}  // namespace sextant
