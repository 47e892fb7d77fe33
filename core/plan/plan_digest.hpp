// Plans inside of files that have a digest of their own: one from before plan files had any gets its own.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sextant {

void add_missing_digest(nlohmann::json& plan);

}  // namespace sextant
