#include "tools/inputs/run_data.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "core/base/json_io.hpp"
#include "runtime/weights/hugging_face_export.hpp"
#include "tools/inputs/options.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

// "DIR:0.3" is a folder and a weight, unless a folder has that very name.
std::pair<std::string, double> folder_and_weight(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos || std::filesystem::exists(text)) return {text, 1.0};
  double weight = 0;
  const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), weight);
  if (error != std::errc{} || end != text.data() + text.size() || !(weight > 0) || !(weight <= 1e6))
    throw ConfigError(Problem{"--data", "", text, "DIR, or DIR:WEIGHT with a weight above 0", ""});
  return {text.substr(0, colon), weight};
}

Packing packing_of(const std::string& text) {
  const auto found = std::ranges::find(kPackingNames, text);
  if (found == kPackingNames.end())
    throw UsageError(fmt::format("--packing: found '{}', expected across, apart or within", text));
  return static_cast<Packing>(found - kPackingNames.begin());
}

std::string absolute(const std::string& folder) {
  std::error_code error;
  const auto path = std::filesystem::absolute(folder, error);
  return error ? folder : path.lexically_normal().string();
}

constexpr auto kFolderFields = [](auto& io, auto& f) {
  io.required("folder", f.folder);
  io.optional("path", f.path);
  io.required("weight", f.weight, above(0));
};

nlohmann::json without_folders(const std::string& text) {
  auto identity = nlohmann::json::parse(text, nullptr, false);  // the order of its keys says nothing
  if (identity.is_object() && identity.contains("sets"))
    for (auto& set : identity["sets"]) {
      set.erase("folder");
      set.erase("path");
    }
  if (identity.is_object()) identity.erase("tokenizer");  // in the digests of the sets, and new to old runs
  return identity;
}

void require_vocabulary(const DataSet& data, const DataSet& first, const ModelSpec& model) {
  const DataTokenizer& t = data.index().tokenizer;
  const std::string index = (data.folder() / kDataIndexFile).string();
  if (t.vocab_size > model.vocab_size)
    throw ConfigError(Problem{index, "tokenizer.vocab_size", std::to_string(t.vocab_size),
                              fmt::format("at most the {} of {}", model.vocab_size, model.name),
                              "the data was made with another model's tokenizer"});
  if (t.digest != first.index().tokenizer.digest)
    throw ConfigError(
        Problem{index, "tokenizer.digest", fmt::format("{} ({})", t.digest, t.source),
                fmt::format("{} as of {}", first.index().tokenizer.digest, first.folder().string()),
                "the sets of a mixture need one tokenizer"});
}

}  // namespace

void to_json(nlohmann::json& j, const DataFolder& f) { write_object(j, f, kFolderFields); }
void from_json(const nlohmann::json& j, DataFolder& f) { read_object(j, f, kFolderFields); }

void add_data_options(CLI::App& app, DataOptions& o) {
  add_list(
      app,
      {.flag = "--data",
       .metavar = "DIR[:WEIGHT]",
       .text =
           "train on a data set of 'sextant data'; several are mixed by weight (default: synthetic tokens)"},
      o.data);
  add_text(
      app,
      {.flag = "--packing",
       .metavar = "across|apart|within",
       .text = "across: documents share sequences, and attention crosses their ends; apart: they share "
               "sequences and do not see each other; within: a sequence holds one document and is filled "
               "up, without a loss"},
      o.packing);
  add_number(app,
             {.flag = "--eval-every",
              .metavar = "N",
              .text = "steps between two evaluations on held-out text, also after the last; 0 = never",
              .min = 0,
              .max = 1e9},
             o.eval_every);
  add_number(app,
             {.flag = "--eval-batches",
              .metavar = "N",
              .text = "global batches of held-out text of each evaluation and data set",
              .min = 1,
              .max = 1e9},
             o.eval_batches);
}

std::vector<DataFolder> data_folders(const std::vector<std::string>& data) {
  std::vector<DataFolder> folders;
  for (const std::string& text : data) {
    const auto [folder, weight] = folder_and_weight(text);
    folders.push_back({folder, absolute(folder), weight});
  }
  return folders;
}

std::vector<std::string> found_again(const std::vector<DataFolder>& folders) {
  std::vector<std::string> data;
  for (const DataFolder& f : folders) {
    std::error_code none;
    const bool here = !f.folder.empty() && std::filesystem::is_directory(f.folder, none);
    const bool there = !f.path.empty() && std::filesystem::is_directory(f.path, none);
    const bool same = here && there && std::filesystem::equivalent(f.folder, f.path, none);
    const bool by_path = !f.path.empty() && (there ? !same : !here);
    data.push_back(fmt::format("{}:{}", by_path ? f.path : f.folder, f.weight));
  }
  return data;
}

RunData::RunData(const DataOptions& o, const PlanFile& file, std::uint64_t seed)
    : eval_every_(o.eval_every), eval_batches_(o.eval_batches) {
  options_ = {.seq_len = file.training.seq_len,
              .global_batch = file.training.global_batch,
              .seed = seed,
              .packing = packing_of(o.packing)};
  if (o.data.empty()) {
    if (o.eval_every > 0)
      throw ConfigError(Problem{"--eval-every", "", std::to_string(o.eval_every), "--data with it",
                                "synthetic tokens have no held-out text"});
    if (options_.packing != Packing::across)
      throw ConfigError(
          Problem{"--packing", "", o.packing, "--data with it", "synthetic tokens have no documents"});
    return;
  }
  for (const std::string& text : o.data) {
    const auto [folder, weight] = folder_and_weight(text);
    if (!std::filesystem::is_directory(folder))
      throw ConfigError(Problem{folder, "", std::filesystem::exists(folder) ? "a file" : "no such folder",
                                "a data set: a folder made by 'sextant data'",
                                o.of_the_run
                                    ? "the run has read it there so far: --data gives its present path"
                                    : "--data names it"});
    sets_.push_back({std::make_shared<const DataSet>(folder), weight});
    names_.push_back(folder);
    paths_.push_back(absolute(folder));
    require_vocabulary(*sets_.back().data, *sets_.front().data, file.model);
    if (eval_every_ > 0) (void)validation_sequences(sets_.back().data, options_);  // says when there is none
  }
  (void)training_sequences(sets_, options_);
}

void RunData::attach(TrainingRun& run) const {
  if (sets_.empty()) return;
  run.sequences = training_sequences(sets_, options_);
  run.documents_apart = options_.packing == Packing::apart;
  run.evaluate_every = eval_every_;
  if (eval_every_ == 0) return;
  for (std::size_t i = 0; i < sets_.size(); ++i)
    run.evaluations.push_back({names_[i], validation_sequences(sets_[i].data, options_),
                               std::min(eval_batches_, validation_batches(*sets_[i].data, options_))});
}

void RunData::keep_tokenizer(const std::filesystem::path& to) const {
  if (sets_.empty()) return;
  const DataSet& data = *sets_.front().data;
  const DataTokenizer& t = data.index().tokenizer;
  const auto there = [&](std::string_view file) { return std::filesystem::exists(to / file); };
  if (!t.file.empty() && std::ranges::none_of(kTokenizerFiles, there))
    keep_hugging_face_files(data.folder(), to);
  constexpr const char* kIds = "generation_config.json";
  if (there("config.json") || there(kIds) || (!t.bos && !t.eos)) return;
  std::filesystem::create_directories(to);
  Json ids = {{"_from_model_config", true}};
  if (t.bos) ids["bos_token_id"] = *t.bos;
  if (t.eos) ids["eos_token_id"] = *t.eos;
  write_file_atomic(to / kIds, ids.dump(2) + "\n");
}

std::string RunData::heading(std::int64_t steps) const {
  std::string text;
  double weights = 0;
  for (const WeightedData& s : sets_) weights += s.weight;
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    const DataSet& data = *sets_[i].data;
    const double sequences = static_cast<double>(steps) * options_.global_batch * sets_[i].weight / weights;
    const Windows windows(data.row(DataSplit::train), options_.seq_len, options_.packing, false);
    const double epochs = sequences / static_cast<double>(windows.count());
    text += fmt::format("{}{} tokens of {}", text.empty() ? "" : "; ", data.index().tokens(DataSplit::train),
                        names_[i]);
    if (sets_.size() > 1) text += fmt::format(" ({:.3g} %)", 100 * sets_[i].weight / weights);
    text += fmt::format(", {:.3g} epochs in {} steps", epochs, steps);
    if (options_.packing == Packing::within)
      text += fmt::format(", {:.0f} % fill", 100 * (1 - windows.filled()));
    if (!data.verified())
      text += fmt::format(
          " (of an earlier version: its {:.1f} GiB have no digests by block to compare with: sextant data "
          "--check {})",
          gib(Bytes(data.bytes())), names_[i]);
  }
  return text;
}

Json RunData::identity() const {
  if (sets_.empty()) return Json::object();
  Json sets = Json::array();
  for (std::size_t i = 0; i < sets_.size(); ++i)
    sets.push_back({{"folder", names_[i]},
                    {"path", paths_[i]},
                    {"digest", sets_[i].data->index().digest()},
                    {"weight", sets_[i].weight}});
  return {{"sets", sets},
          {"tokenizer", sets_.front().data->index().tokenizer.digest},
          {"seed", options_.seed},
          {"seq_len", options_.seq_len},
          {"global_batch", options_.global_batch},
          {"packing", kPackingNames[static_cast<std::size_t>(options_.packing)]}};
}

std::string RunData::tokens() const { return without_folders(identity().dump()).dump(); }

bool RunData::same_as(const std::string& saved) const { return without_folders(saved).dump() == tokens(); }

void RunData::require_sets_of(const std::string& saved) const {
  const auto then = without_folders(saved);
  if (!then.is_object() || !then.contains("sets") || then.at("sets").size() != sets_.size()) return;
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    const std::string now = sets_[i].data->index().digest(),
                      before = then.at("sets").at(i).value("digest", now);
    if (now != before)
      throw ConfigError(
          Problem{(sets_[i].data->folder() / kDataIndexFile).string(), "digest", now,
                  before + ", of the set that the run was trained on",
                  fmt::format("another set is in its place: put that back, or go on with this one: "
                              "--data {}",
                              names_[i])});
  }
}

void RunData::require_tokenizer_of(const std::string& saved) const {
  const auto then = nlohmann::json::parse(saved, nullptr, false);
  if (sets_.empty() || !then.is_object() || !then.contains("tokenizer")) return;
  const DataTokenizer& t = sets_.front().data->index().tokenizer;
  if (then.at("tokenizer") == t.digest) return;
  throw ConfigError(Problem{
      (sets_.front().data->folder() / kDataIndexFile).string(), "tokenizer.digest",
      fmt::format("{} ({})", t.digest, t.source),
      fmt::format("{}, with whose tokens the run's model was trained", then.at("tokenizer").dump()),
      "make the data with the run's tokenizer; a new run may begin with its weights under another one: "
      "'sextant weights export RUN --out DIR', then 'run --init DIR'"});
}

double RunData::mean(const std::vector<double>& losses) const {
  double sum = 0, weights = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    sum += sets_[i].weight * losses[i];
    weights += sets_[i].weight;
  }
  return sum / weights;
}

Json RunData::evaluation_json(std::int64_t step, const std::vector<double>& losses, Seconds took) const {
  Json by_set = Json::array();
  for (std::size_t i = 0; i < losses.size(); ++i)
    by_set.push_back({{"data", names_[i]}, {"loss", losses[i]}});
  return {{"step", step},
          {"validation_loss", mean(losses)},
          {"validation", by_set},
          {"evaluation_time_s", took.v}};
}

std::string RunData::evaluation_text(const std::vector<double>& losses) const {
  std::string text = fmt::format("validation loss {:.4f}", mean(losses));
  if (losses.size() < 2) return text;
  for (std::size_t i = 0; i < losses.size(); ++i)
    text += fmt::format("{}{} {:.4f}", i == 0 ? ": " : ", ", names_[i], losses[i]);
  return text;
}

}  // namespace sextant
