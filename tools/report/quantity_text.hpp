// Numbers as a report prints them: as many digits as a reader can use, and the unit that suits the size.
#pragma once

#include <string>
#include <string_view>

namespace sextant {

std::string seconds_text(double seconds);      // "28.432 s", "143.2 s", "9.56 ms", "12.3 µs"
std::string gib_text(double GiB);              // "70.4"
std::string share_text(double share);          // "51.8 %" of 0.518
std::string signed_share_text(double share);   // "+6.7 %", "-0.7 %"
std::string count_words(double n);             // "163.7e12", "1,024"
std::string part_text(std::string_view part);  // "exposed TP" of "exposed_tp"
std::string rate_text(double per_s);           // "147,522", "12.4"

}  // namespace sextant
