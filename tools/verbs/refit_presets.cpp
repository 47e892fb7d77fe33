#include "tools/verbs/refit_presets.hpp"

#include <algorithm>
#include <iterator>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "planner/calibration/fit_source.hpp"
#include "planner/calibration/fit_uncertainty.hpp"
#include "planner/calibration/held_out.hpp"
#include "tools/inputs/preset_files.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// As preset files are written: a value with its origin, and a list of plain values, on one line.
std::string preset_text(const Json& value, int depth = 0) {
  const bool flat = std::ranges::none_of(value, [](const Json& part) { return part.is_structured(); });
  const bool line = flat && (value.is_array() || value.contains("value"));
  if (!value.is_structured() || value.empty()) return value.dump();
  const std::string gap = line ? "" : "\n" + std::string(2 * static_cast<std::size_t>(depth + 1), ' ');
  std::string out;
  for (const auto& [key, part] : value.items())
    out += fmt::format("{}{}{}{}",
                       out.empty() ? ""
                       : line      ? ", "
                                   : ",",
                       gap, value.is_object() ? fmt::format("{}: ", Json(key).dump()) : "",
                       preset_text(part, depth + 1));
  const std::string end = line ? "" : "\n" + std::string(2 * static_cast<std::size_t>(depth), ' ');
  return value.is_object() ? "{" + out + end + "}" : "[" + out + end + "]";
}

double rounded(double value) { return std::stod(fmt::format("{:.4g}", value)); }

class Files {
 public:
  explicit Files(fs::path folder) : folder_(std::move(folder)) {}

  Json& at(const std::string& kind, const std::string& name) {
    const fs::path path = folder_ / kind / (name + ".json");
    const auto [it, fresh] = files_.try_emplace(path);
    if (fresh) it->second = Json::parse(read_text_file(path), nullptr, true, true);
    return it->second;
  }
  void set(Json& at, double value, const std::string& source, const std::string& date,
           const char* origin = "F") {
    value = rounded(value);
    if (at.is_object() && at.at("value") == value && at.value("origin", "") == origin &&
        at.value("source", "") == source)
      return;
    if (!at.is_object()) at = Json::object();
    at["value"] = value;
    at["origin"] = origin;
    at["source"] = source;
    at["date"] = date;
    ++changed_;
  }
  int write() const {
    for (const auto& [path, content] : files_) write_file_atomic(path, preset_text(content) + "\n");
    return changed_;
  }

 private:
  fs::path folder_;
  std::map<fs::path, Json> files_;
  int changed_ = 0;
};

// One value for several stacks: in the file of each that states it, or that has it from none of the others.
void set_of_stacks(Files& files, const std::vector<std::string>& stacks, const char* part,
                   const std::string& key, double value, const std::string& source, const std::string& date) {
  for (const std::string& stack : stacks) {
    Json& own = files.at("stacks", stack);
    const bool states = own.contains(part) && own[part].contains(key);
    if (states || std::ranges::find(stacks, own.value("base", "")) == stacks.end())
      files.set(own[part][key], value, source, date);
  }
}

void prepare(const fs::path& presets, const fs::path& folder) {
  std::error_code error;
  if (fs::equivalent(presets, folder, error)) return;
  const bool taken =
      fs::exists(folder, error) && (!fs::is_directory(folder, error) || !fs::is_empty(folder, error));
  if (taken &&
      std::ranges::none_of(kPresetKinds, [&](auto kind) { return fs::is_directory(folder / kind, error); }))
    throw ConfigError(Problem{"--write-presets", "", folder.string(), "a new folder, or one of presets", ""});
  fs::create_directories(folder);
  fs::copy(presets, folder, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
}

}  // namespace

int write_refitted(const fs::path& presets, const fs::path& folder, const Calibration& fit,
                   std::span<const MeasuredRun> runs, const std::vector<RefittedMemory>& memory,
                   const std::string& date) {
  prepare(presets, folder);
  Files files(folder);
  for (const auto& [constant, value, sigma] : fit.constants) {
    const std::string source = fit_source(constant, runs);
    std::vector<std::string> owners = {constant.owner};
    owners.insert(owners.end(), constant.also.begin(), constant.also.end());
    if (constant.of == ConstantOwner::stack)
      set_of_stacks(files, owners, "kernels", constant.key, value, source, date);
    if (constant.of == ConstantOwner::fabric)
      files.set(files.at("fabrics", constant.owner)["fabric"][constant.key], value, source, date);
    if (constant.of == ConstantOwner::device)
      files.set(
          files.at("cost", constant.owner.empty() ? "common" : constant.owner)["constants"][constant.key],
          value, source, date);
  }
  for (const RefittedMemory& one : memory)
    for (std::size_t i = 0; i < one.fit.constants.size(); ++i) {
      const FittedConstant& c = one.fit.constants[i];
      set_of_stacks(files, one.stacks, "memory", c.key, finds_better(one.fit) ? c.value : one.presets[i],
                    one.source, date);
    }
  return files.write();
}

int write_widths(const fs::path& folder, const std::vector<std::string>& run_files, const std::string& date) {
  std::vector<RunRow> rows;
  for (const std::string& file : run_files) {
    auto more = read_runs(file);
    std::move(more.begin(), more.end(), std::back_inserter(rows));
  }
  // Widths are those of runs that no fit saw, or of the presets' own errors where these are larger.
  const FrameworkMap map = load_framework_map(folder);
  const HeldOut unseen =
      held_out(rows, map, folder, load_calibration_rules(folder), {.extrapolations = false});
  const std::vector<RunPrediction> seen = predict_runs(rows, map, {folder, nullptr, {}});
  Files files(folder);
  for (const FittedWidth& w : fit_widths(rows, unseen.predictions, seen, load_uncertainty_rules(folder)))
    files.set(files.at("calibration", "intervals")[w.of][std::string(name(w.uncertainty))], w.half_width,
              w.source, date, "T");
  return files.write();
}

}  // namespace sextant
