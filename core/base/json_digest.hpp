// The digest that a JSON object carries of its other fields: of the values, not of the text, so that indentation and the
// order of fields are no matter.
#pragma once

#include <initializer_list>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace sextant {

std::string digest_without(nlohmann::json object, std::initializer_list<const char*> fields);

}  // namespace sextant
