#include "tools/inputs/weights.hpp"

#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/data/data_set.hpp"
#include "runtime/weights/hugging_face.hpp"
#include "runtime/weights/number_formats.hpp"
#include "tools/inputs/options.hpp"
#include "tools/inputs/run_data.hpp"
#include "tools/inputs/run_options.hpp"

namespace sextant {

namespace fs = std::filesystem;

InitialWeights hugging_face_weights(const std::string& folder, const ModelSpec& planned) {
  const HuggingFaceFolder from(folder);
  require_same_model(from, planned);
  const WeightInventory found = from.check();
  return {from.weights(), found.type};
}

namespace {

using nlohmann::json;

// In which format a run's weights go out: in that of the weights it started from, which is the way back without rounding.
// Runs from before this was kept have config.json beside them, which says what its tensors were.
std::pair<StoredType, std::string> type_of_run(const fs::path& run, const Manifest& m) {
  std::string type = kept_init_dtype(run, m);
  const fs::path config = kept_hugging_face_files(run) / "config.json";
  std::error_code none;
  if (type.empty() && fs::is_regular_file(config, none)) {
    const json kept = read_json_file(config);
    for (const char* key : {"dtype", "torch_dtype"})
      if (const auto found = kept.find(key); found != kept.end() && found->is_string()) type = *found;
  }
  if (const auto known = stored_type_from_name(type); known && is_floating(*known))
    return {*known, "as the weights that the run started from"};
  return {stored_type(m.plan.training.parameter), "as the run's parameters; --dtype fp32 rounds nothing"};
}

// The source of tokens names its data sets; the first one's index names the tokenizer. They may be gone by now.
std::string tokenizer_of(const std::string& data) {
  const auto source = nlohmann::json::parse(data, nullptr, false);
  if (!source.is_object() || !source.contains("sets") || source["sets"].empty()) return "";
  const json& first = source["sets"][0];
  const std::string folder = found_again({{first.value("folder", ""), first.value("path", "")}}).front();
  const fs::path index = fs::path(folder.substr(0, folder.rfind(':'))) / kDataIndexFile;
  std::error_code none;
  if (!fs::is_regular_file(index, none)) return "";
  try {
    return read_data_index(index).tokenizer.source;
  } catch (const ConfigError&) {
    return "";
  }
}

// What is no Hugging Face folder may be a run without checkpoints, or one checkpoint of a run.
void require_no_run(const fs::path& folder) {
  std::error_code none;
  if (fs::exists(folder / kRunOptionsFile, none) || fs::exists(folder / "checkpoints", none))
    throw ConfigError(Problem{
        folder.string(), "", "a run without a complete checkpoint",
        fmt::format("one in {}", (folder / "checkpoints").string()),
        fmt::format("it is saved where it ends and every --save-every steps: sextant run -o {} --resume",
                    folder.string())});
  if (fs::exists(folder / kManifestName, none))
    throw ConfigError(Problem{folder.string(), "", "a checkpoint of a run", "the folder of the run",
                              "--step N chooses one of its checkpoints"});
}

}  // namespace

fs::path kept_hugging_face_files(const fs::path& run) { return run / "hugging_face"; }

void add_step_option(CLI::App& app, int& step) {
  add_number(app,
             {.flag = "--step",
              .metavar = "N",
              .text = "of a run's checkpoints the one of this step; -1 = the newest",
              .min = -1,
              .max = 1e9},
             step);
}

OpenedWeights open_weights(const std::string& from, int step) {
  std::error_code none;
  constexpr auto kUse = CheckpointUse::read_weights;
  if (auto found = step < 0 ? Checkpoint::open_newest(from, kUse) : Checkpoint::open(from, step, kUse)) {
    const auto checkpoint = std::make_shared<const Checkpoint>(std::move(*found));
    const Manifest& m = checkpoint->manifest();
    const fs::path kept = kept_hugging_face_files(from);
    const auto [type, why] = type_of_run(from, m);
    return {.model = m.plan.model,
            .weights = [checkpoint, read = checkpoint->weights()](
                           const ModelSlice& s, std::span<double> values) { read(s, values); },
            .type = type,
            .like = fs::is_directory(kept, none) ? kept : fs::path(),
            .what = checkpoint->path().string(),
            .why_type = why,
            .tokenizer = tokenizer_of(m.data)};
  }
  if (!fs::exists(fs::path(from) / "config.json", none)) require_no_run(from);
  const HuggingFaceFolder folder(from);
  const WeightInventory found = folder.check();
  return {.model = folder.model(),
          .weights = folder.weights(),
          .type = found.type,
          .like = folder.path(),
          .what = from};
}

}  // namespace sextant
