#include "core/base/schema.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"

namespace sextant {

void require_schema(const nlohmann::json& j, const char* schema, const char* hint) {
  if (!j.is_object() || !j.contains("schema") || j.at("schema") == schema) return;
  throw ConfigError(
      Problem{.file = "",
              .key = "schema",
              .value = j.at("schema").dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
              .expected = fmt::format("\"{}\"", schema),
              .hint = hint});
}

}  // namespace sextant
