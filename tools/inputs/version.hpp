// Which build of sextant is this? Stands in every file that it writes.
#pragma once

#include <string>

namespace sextant {

std::string version_text();  // "sextant 0.1.0 (GNU 12.2.0, Release)"

}  // namespace sextant
