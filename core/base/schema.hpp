// The kind and version that a JSON file of ours states in `schema`.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sextant {

// Asked before anything else is read: of a file that is something else, its other fields are no news. A file that states no
// schema passes; it is missed with the other fields. Throws ConfigError with `hint`.
void require_schema(const nlohmann::json&, const char* schema, const char* hint);

}  // namespace sextant
