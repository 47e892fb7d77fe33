// Text that may be JSON or something else, of strangers: read without an end by its depth.
#pragma once

#include <cstddef>
#include <string_view>

#include <nlohmann/json.hpp>

namespace sextant {

inline constexpr std::size_t kMostJsonLevels = 200;

// Whether the text is JSON of at most 200 levels, comments allowed. Deeper values end the program that copies them, which calls
// itself once for each level.
bool is_shallow_json(std::string_view text);

// Discarded (is_discarded()) where the text is no JSON of at most 200 levels. parse_json() of core/base/json_io.hpp is for files
// that have to be JSON, and says what is wrong.
template <class Json = nlohmann::json>
Json json_or_discarded(std::string_view text) {
  if (!is_shallow_json(text)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false, /*ignore_comments=*/true);
}

}  // namespace sextant
