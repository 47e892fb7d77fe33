#include "core/timeline/work_profile.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/former_keys.hpp"
#include "core/base/json_io.hpp"
#include "core/base/preset_path.hpp"
#include "core/base/schema.hpp"
#include "core/graph/work.hpp"

namespace sextant {
namespace {

constexpr auto kWork = [](auto& io, auto& w) {
  io.required("mean_us", w.mean_us, at_least(0));
  io.required("median_us", w.median_us, at_least(0));
  io.optional("spread_us", w.spread_us, at_least(0));
  io.optional("alone_us", w.alone_us, at_least(0));
  io.optional("samples", w.samples, at_least(0));
  io.optional("outliers", w.outliers, at_least(0));
};
constexpr FormerKey kOperations{"works", "operations"};  // of version 0.1, read until version 0.3

constexpr auto kProfile = [](auto& io, auto& p) {
  io.required("schema", p.schema);
  io.optional("machine", p.machine);
  io.optional("date", p.date);
  io.optional("sextant", p.sextant);
  io.optional("command", p.command);
  io.optional("timed_by", p.timed_by);
  io.optional("notes", p.notes);
  io.optional("ranks", p.ranks, at_least(1));
  io.required(kOperations.present, p.works);
  io.optional("facts", p.facts);
};

}  // namespace

void to_json(nlohmann::json& j, const MeasuredWork& w) { write_object(j, w, kWork); }
void from_json(const nlohmann::json& j, MeasuredWork& w) { read_object(j, w, kWork); }
void to_json(nlohmann::json& j, const WorkProfile& p) { write_object(j, p, kProfile); }
void from_json(const nlohmann::json& j, WorkProfile& p) {
  require_schema(j, kProfileSchema,
                 "a profile is written by: sextant profile --for plan.json -o profile.json");
  if (has_former(j, kOperations)) {
    nlohmann::json present = j;
    take_present_key(present, kOperations);
    read_object(present, p, kProfile);
  } else {
    read_object(j, p, kProfile);
  }
  for (const auto& [key, work] : p.works)
    if (const std::string own = work_key(parse_work_key(key)); own != key)
      throw ConfigError(Problem{"", kOperations.present, key, own,
                                "an operation has one spelling: it is found by that alone"});
}

WorkProfile load_profile(const std::string& file_or_name, const std::filesystem::path& presets) {
  std::error_code none;
  if (std::filesystem::exists(file_or_name, none)) {
    WorkProfile profile;
    with_json_file(file_or_name, [&](const nlohmann::json& j) {
      from_json(j, profile);
      std::vector<std::string> former;
      if (has_former(j, kOperations)) former.push_back(change_text(kOperations));
      const auto facts = j.find("facts");
      if (std::string key = facts == j.end() ? "" : former_measurement_key(*facts); !key.empty())
        former.push_back(std::move(key));
      profile.former = former_text(file_or_name, former);
    });
    return profile;
  }
  if (const auto shipped = find_preset(presets, "profiles", file_or_name))
    return load_json<WorkProfile>(*shipped);
  const std::vector<std::string> names = preset_names(presets, "profiles");
  throw ConfigError(Problem{file_or_name, "", "no such file",
                            fmt::format("a file of sextant profile -o, or one that is shipped: {}",
                                        names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))),
                            "sextant profile --for plan.json -o profile.json"});
}

}  // namespace sextant
