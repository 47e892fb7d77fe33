#include "core/base/former_keys.hpp"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace sextant {

bool has_former(const nlohmann::json& object, const FormerKey& key) {
  return object.is_object() && object.contains(key.former) && !object.contains(key.present);
}

bool take_present_key(nlohmann::json& object, const FormerKey& key) {
  if (!has_former(object, key)) return false;
  nlohmann::json value = std::move(object[key.former]);
  object.erase(key.former);
  object[key.present] = std::move(value);
  return true;
}

std::string change_text(const FormerKey& key) {
  return fmt::format("\"{}\" is read as \"{}\"", key.former, key.present);
}

std::string former_text(const std::string& file, const std::vector<std::string>& changes) {
  if (changes.empty()) return {};
  return fmt::format("{}: {}; the next version reads the latter alone", file, fmt::join(changes, ", "));
}

}  // namespace sextant
