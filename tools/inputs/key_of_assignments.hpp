// A layout as people state fields: "tp=8,pp=2".
#pragma once

#include <optional>
#include <string>

namespace sextant {

// "tp=8,pp=2" as a key: "tp8.pp2"; nothing where that is no key.
std::optional<std::string> key_of_assignments(const std::string& text);

}  // namespace sextant
