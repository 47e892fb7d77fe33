// `sextant run` on data sets: which tokens a run trains on, and which it is looked at with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include "core/plan/plan_file.hpp"
#include "runtime/data/sequences.hpp"
#include "runtime/training/training_run.hpp"

namespace sextant {

struct DataOptions {
  std::vector<std::string> data;  // DIR, or DIR:WEIGHT
  std::string packing = "across";
  int eval_every = 0, eval_batches = 8;
  bool of_the_run = false;  // --data was not given: the run that goes on has read it there
};
void add_data_options(CLI::App&, DataOptions&);

// A data set as a run remembers it: its folder as it was called there, where that is in any other folder, and its weight.
struct DataFolder {
  std::string folder, path;
  double weight = 1;
};
void to_json(nlohmann::json&, const DataFolder&);
void from_json(const nlohmann::json&, DataFolder&);
std::vector<DataFolder> data_folders(const std::vector<std::string>& data);  // of DataOptions::data
// And back: by the name that it had, where that is still the same folder, or the only one there is.
std::vector<std::string> found_again(const std::vector<DataFolder>&);

class RunData {
 public:
  // Without --data nothing is changed of a run. Throws ConfigError when a set does not suit the plan's model.
  RunData(const DataOptions&, const PlanFile&, std::uint64_t seed);

  // Gives the run its sequences and evaluations; on_evaluation is the caller's.
  void attach(TrainingRun&) const;
  bool given() const { return !sets_.empty(); }
  std::string heading(std::int64_t steps) const;  // "12 345 tokens of DIR, 0.8 epochs"
  // Into `to`, where nothing of --init is: what an export of the run says of the data's tokenizer.
  void keep_tokenizer(const std::filesystem::path& to) const;
  // What must be the same for a run to go on with the same data; an empty object when the tokens are synthetic.
  nlohmann::ordered_json identity() const;
  std::string tokens() const;  // the same without names of folders, which may have moved
  bool same_as(const std::string& saved) const;
  // For a run that goes on with the sets it had: throws ConfigError when one was exchanged since, naming it.
  void require_sets_of(const std::string& saved) const;
  // ... and, with any sets: when its tokens are not of the tokenizer that the run was trained with.
  void require_tokenizer_of(const std::string& saved) const;
  // The weighted mean and each set's own, as written to steps.jsonl.
  nlohmann::ordered_json evaluation_json(std::int64_t step, const std::vector<double>& losses,
                                         Seconds took) const;
  std::string evaluation_text(const std::vector<double>& losses) const;

 private:
  double mean(const std::vector<double>& losses) const;

  std::vector<WeightedData> sets_;
  std::vector<std::string> names_;
  std::vector<std::string> paths_;
  SequenceOptions options_;
  std::int64_t eval_every_ = 0, eval_batches_ = 0;
};

}  // namespace sextant
