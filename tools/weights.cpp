#include "tools/weights.hpp"

#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/json_io.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/data/data_set.hpp"
#include "runtime/weights/hugging_face.hpp"
#include "tools/options.hpp"

namespace sextant {

namespace fs = std::filesystem;

WeightSource hugging_face_weights(const std::string& folder, const ModelSpec& planned) {
  const HuggingFaceFolder from(folder);
  require_same_model(from, planned);
  from.check();
  return from.weights();
}

namespace {

// The source of tokens names its data sets; the first one's index names the tokenizer. They may be gone by now.
std::string tokenizer_of(const std::string& data) {
  const auto source = nlohmann::json::parse(data, nullptr, false);
  if (!source.is_object() || !source.contains("sets") || source["sets"].empty()) return "";
  const fs::path index = fs::path(source["sets"][0].value("folder", "")) / kDataIndexFile;
  std::error_code none;
  if (!fs::is_regular_file(index, none)) return "";
  try {
    return load_json<DataIndex>(index).tokenizer.source;
  } catch (const ConfigError&) {
    return "";
  }
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
  if (auto found = step < 0 ? Checkpoint::open_newest(from) : Checkpoint::open(from, step)) {
    const auto checkpoint = std::make_shared<const Checkpoint>(std::move(*found));
    const Manifest& m = checkpoint->manifest();
    const fs::path kept = kept_hugging_face_files(from);
    std::error_code none;
    return {.model = m.plan.model,
            .weights = [checkpoint, read = checkpoint->weights()](
                           const ModelSlice& s, std::span<double> values) { read(s, values); },
            .type = stored_type(m.plan.training.parameter),
            .like = fs::is_directory(kept, none) ? kept : fs::path(),
            .what = checkpoint->path().string(),
            .tokenizer = tokenizer_of(m.data)};
  }
  const HuggingFaceFolder folder(from);
  const WeightInventory found = folder.check();
  return {.model = folder.model(),
          .weights = folder.weights(),
          .type = found.type,
          .like = folder.path(),
          .what = from};
}

}  // namespace sextant
