#include "tools/import/foreign_keys.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <fnmatch.h>

#include "core/base/decimal.hpp"
#include "core/base/error.hpp"
#include "core/base/words.hpp"

namespace sextant {

namespace {

constexpr std::size_t kLongestShown = 60;

std::string shown(const nlohmann::json& value) {
  std::string text = value.is_string() ? value.get<std::string>()
                                       : value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kLongestShown) text = text.substr(0, kLongestShown) + "...";
  return text;
}

}  // namespace

ForeignKeys::ForeignKeys(nlohmann::json settings, std::string file, std::vector<std::string> no_effect)
    : settings_(std::move(settings)), file_(std::move(file)), no_effect_(std::move(no_effect)) {}

const nlohmann::json* ForeignKeys::find(const std::string& path) const {
  const nlohmann::json* at = &settings_;
  for (const std::string_view part : split(path, '.')) {
    if (!at->is_object()) return nullptr;
    const auto next = at->find(std::string(part));
    if (next == at->end()) return nullptr;
    at = &*next;
  }
  return at->is_null() || *at == "auto" ? nullptr : at;
}

const nlohmann::json* ForeignKeys::value(const std::string& path) {
  asked_.insert(path);
  return find(path);
}

void ForeignKeys::wrong(const std::string& path, const std::string& value, const std::string& expected,
                        const std::string& hint) const {
  throw ConfigError(Problem{file_, path, value, expected, hint});
}
void ForeignKeys::wrong(const std::string& path, const std::string& expected, const std::string& hint) const {
  const nlohmann::json* found = find(path);
  wrong(path, found ? shown(*found) : "nothing", expected, hint);
}

std::optional<int> ForeignKeys::count(const std::string& path, int least) {
  const nlohmann::json* found = value(path);
  if (!found) return std::nullopt;
  const auto number = [&]() -> std::optional<double> {
    if (found->is_number()) return found->get<double>();
    return found->is_string() ? parse_decimal(found->get<std::string>()) : std::nullopt;
  }();
  if (!number || *number != static_cast<double>(static_cast<long long>(*number)) || *number < least ||
      *number > std::numeric_limits<int>::max())
    wrong(path, fmt::format("a whole number from {}", least));
  return static_cast<int>(*number);
}

std::optional<double> ForeignKeys::real(const std::string& path) {
  const nlohmann::json* found = value(path);
  if (!found) return std::nullopt;
  const auto number = found->is_number()   ? std::optional(found->get<double>())
                      : found->is_string() ? parse_decimal(found->get<std::string>())
                                           : std::nullopt;
  if (!number) wrong(path, "a number");
  return number;
}

std::optional<std::string> ForeignKeys::text(const std::string& path) {
  const nlohmann::json* found = value(path);
  if (!found) return std::nullopt;
  if (found->is_structured()) wrong(path, "a word");
  return shown(*found);
}

std::optional<bool> ForeignKeys::flag(const std::string& path) {
  const nlohmann::json* found = value(path);
  if (!found) return std::nullopt;
  if (found->is_boolean()) return found->get<bool>();
  const std::string word = found->is_string() ? lower(found->get<std::string>()) : "";
  if (word != "true" && word != "false") wrong(path, "true or false");
  return word == "true";
}

std::vector<std::string> ForeignKeys::unread() const {
  std::vector<std::string> all;
  const auto covered = [&](const std::string& path) {
    return asked_.contains(path) || std::ranges::any_of(no_effect_, [&](const std::string& pattern) {
             return fnmatch(pattern.c_str(), path.c_str(), 0) == 0;
           });
  };
  const auto walk = [&](const auto& self, const nlohmann::json& at, const std::string& path,
                        int depth) -> void {
    if (covered(path) || depth > 20) return;
    if (at.is_object()) {
      for (const auto& [key, item] : at.items())
        self(self, item, path.empty() ? key : path + "." + key, depth + 1);
    } else if (!at.is_null() && at != false && at != "auto" && !(at.is_array() && at.empty())) {
      all.push_back(path + " " + shown(at));
    }
  };
  walk(walk, settings_, "", 0);
  return all;
}

}  // namespace sextant
