#include "tools/inputs/version.hpp"

namespace sextant {

std::string version_text() { return "sextant " SEXTANT_VERSION; }

}  // namespace sextant
