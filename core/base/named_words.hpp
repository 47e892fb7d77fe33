// Do words of one text stand in another, whoever spelled it? In any case; dashes, underscores and spaces are one thing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sextant {

// "Megatron_LM" is "megatron lm".
std::string folded(std::string_view text);

// Does `part` stand in the text, from the beginning of a word on, and to the end of one where asked for? "Alpa" is not in
// "Alpaca-Trainer"; a fabric is named by how its word begins: "EFA" is in "EFAv2".
enum class Ends : std::uint8_t { anywhere, with_word };
bool names(std::string_view text, std::string_view part, Ends);

}  // namespace sextant
