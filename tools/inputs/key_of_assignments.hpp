// A layout as people write it down: "tp=8,pp=2", "tp8_pp2_dp4", "TP: 8, PP: 2", or the words of `sextant plan`'s own answer.
#pragma once

#include <optional>
#include <string>

namespace sextant {

// "tp=8,pp=2" and "TP4 PP4 VP10 DP8 ZeRO-1 MBS1, no recomputation" as keys: "tp8.pp2", "tp4.pp4.vp10.dp8.z1.mbs1". Nothing for what is
// a key already, and where that is no key.
std::optional<std::string> key_of_assignments(const std::string& text);

}  // namespace sextant
