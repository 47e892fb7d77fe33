#include "core/base/annotated.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/json_io.hpp"

namespace sextant {

namespace {
using nlohmann::json;

const std::vector<std::string> kAnnotations = {"value",  "low",    "high", "unit",
                                               "origin", "source", "date", "note"};

json strip(const json& j, const std::string& path, std::vector<Problem>& problems) {
  if (j.is_array()) {
    json out = json::array();
    for (std::size_t i = 0; i < j.size(); ++i)
      out.push_back(strip(j[i], fmt::format("{}[{}]", path, i), problems));
    return out;
  }
  if (!j.is_object()) return j;
  if (j.contains("value")) {
    for (const auto& item : j.items())
      if (std::ranges::find(kAnnotations, item.key()) == kAnnotations.end()) {
        const std::string near = closest(item.key(), kAnnotations);
        problems.push_back(
            {"", path + "." + item.key(), "", "",
             near.empty() ? fmt::format("unknown annotation, there are {}", fmt::join(kAnnotations, ", "))
                          : fmt::format("unknown annotation, did you mean {}?", near)});
      }
    return value_of(j);
  }
  json out = json::object();
  for (const auto& item : j.items())
    out[item.key()] = strip(item.value(), path.empty() ? item.key() : path + "." + item.key(), problems);
  return out;
}
}  // namespace

const json& value_of(const json& stated) {
  return stated.is_object() && stated.contains("value") ? stated["value"] : stated;
}

json plain_values(const json& annotated) {
  std::vector<Problem> problems;
  json plain = strip(annotated, "", problems);
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return plain;
}

void refuse_plan_file(const json& j) {
  if (!j.is_object() || !j.contains("provenance") || !j.contains("prediction")) return;
  throw ConfigError(
      Problem{"", "", "a plan file", "another one",
              "its model, cluster and stack can be read once each is saved as a file of its own; plan files "
              "are for: sextant simulate, explain and run"});
}

json read_plain_values(const std::filesystem::path& path) {
  json plain;
  with_json_file(path, [&](const json& annotated) {
    refuse_plan_file(annotated);
    plain = plain_values(annotated);
  });
  return plain;
}

}  // namespace sextant
