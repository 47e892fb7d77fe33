#include "tools/inputs/inputs.hpp"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "core/base/file_io.hpp"
#include "core/base/former_keys.hpp"
#include "core/cluster/cluster_files.hpp"
#include "core/model/model_files.hpp"
#include "core/plan/former_stack.hpp"
#include "core/plan/plan_key.hpp"
#include "core/runs/framework_map.hpp"
#include "planner/calibration/calibration_file.hpp"
#include "planner/calibration/profile_priors.hpp"
#include "tools/inputs/file_kind.hpp"
#include "tools/inputs/foreign_run.hpp"
#include "tools/inputs/key_of_assignments.hpp"
#include "tools/inputs/precision.hpp"
#include "tools/inputs/question_checks.hpp"
#include "tools/inputs/question_settings.hpp"

namespace sextant {

namespace {

namespace fs = std::filesystem;

constexpr int kDefaultSeqLen = 4096, kDefaultGlobalBatch = 1024;

bool names_a_file(const std::string& plan) {
  if (plan.ends_with(".json") || plan.find('/') != std::string::npos) return true;
  std::error_code error;
  if (!fs::is_regular_file(plan, error)) return false;
  try {
    parse_plan_key(plan);
  } catch (const ConfigError&) {
    return true;
  }
  return false;
}

PlanLimits read_limits(const QuestionOptions& options) {
  PlanLimits limits;
  for (const auto& text : options.fix)
    limits = combine(std::move(limits), parse_plan_limits(text, "--fix", true));
  for (const auto& text : options.limit)
    limits = combine(std::move(limits), parse_plan_limits(text, "--limit"));
  return limits;
}

void require(bool given, const char* flag, const char* example) {
  if (!given) throw UsageError(fmt::format("{} is missing\n  for example: {} {}", flag, flag, example));
}

// A note "vocab_size: ..." of the model is moot when --set states that field.
bool is_stated(const std::vector<std::string>& settings, const std::string& note) {
  return is_set(settings, "model." + note.substr(0, note.find(':')));
}

// Of the model that --model names, which wins over a file's; 0: it names none.
int stated_layers(const QuestionOptions& options, const fs::path& presets) {
  if (options.model.empty()) return 0;
  ModelSpec model;
  reading_as(FileUse::model, options.model,
             [&] { with_file("--model", [&] { model = load_model(options.model, presets); }); });
  apply_settings(model, options.set, "model");
  return model.n_layers;
}

void fill_plan(const std::string& key, Question& q) {
  FilledPlan filled = fill_plan_key(key, q.stack, q.cluster.gpus(), q.training.parameter, &q.model);
  q.plan = std::move(filled.plan);
  q.key_parts = std::move(filled.stated);
  q.notes.insert(q.notes.end(), filled.notes.begin(), filled.notes.end());
  if (!filled.indivisible) return;
  auto problems = plan_problems(q);
  problems.insert(problems.begin(), *filled.indivisible);
  check_input(std::move(problems), "--plan");
}

bool guesses_positions(const std::string& note) { return note.starts_with("max_positions:"); }

// A value that an option and --set state both must be one.
void check_stated_once(const char* key, const char* option, int stated, int set) {
  if (stated > 0 && stated != set)
    check_input(
        {Problem{"", key, fmt::format("{}", set), fmt::format("{}, as {} states", stated, option), ""}},
        "--set");
}

// Puts a question together, part by part; each rests on those before it.
class QuestionReader {
 public:
  QuestionReader(const QuestionOptions& options, const fs::path& presets)
      : options_(options), presets_(presets) {}
  Question read();

 private:
  void take_assignments();
  void open_source();
  void read_model();
  void read_cluster();
  void read_stack();
  void read_training();
  void take_settings();
  void settle_formats();
  void use_calibration();
  void drop_stated_notes();
  void read_layout();
  void read_profile();
  void remark_on_machine();
  bool is_set(const std::string& field) const { return sextant::is_set(options_.set, field); }
  void note(std::string text) { question_.notes.push_back(std::move(text)); }

  QuestionOptions options_;
  const fs::path& presets_;
  std::optional<ImportedRun> run_;  // of --from
  Question question_;
};

// tp=8,pp=2 in the place of a key.
void QuestionReader::take_assignments() {
  if (std::error_code error; fs::exists(options_.plan, error)) return;
  const auto key = key_of_assignments(options_.plan);
  if (!key) return;
  note(fmt::format("--plan {} is taken as {}", options_.plan, *key));
  options_.plan = *key;
}

// A file of another framework, a plan file, or options alone.
void QuestionReader::open_source() {
  if (!options_.from.empty()) {
    if (names_a_file(options_.plan))
      throw UsageError("--from and a plan file are two questions; a plan key goes with --from");
    run_ = reading_as(FileUse::from, options_.from, [&] {
      return read_foreign_run(options_.from, presets_, stated_layers(options_, presets_));
    });
    question_.from = ForeignRun{options_.from, {}, {}, {}};
  }
  if (names_a_file(options_.plan)) {
    if (const auto kind = kind_of_file(options_.plan); kind && kind->use == FileUse::from)
      refuse_foreign_plan(options_.plan, *kind, options_.cluster, presets_);
    question_.file = reading_as(FileUse::plan, options_.plan, [&] { return load_plan_file(options_.plan); });
    question_.model = question_.file->model;
    question_.training = question_.file->training;
    question_.cluster = question_.file->cluster;
    question_.stack = question_.file->stack;
    question_.plan = question_.file->plan;
    if (!question_.file->former.empty()) question_.former.push_back(question_.file->former);
    return;
  }
  if (!options_.plan.empty()) with_file("--plan", [&] { parse_plan_key(options_.plan); });
  if (run_) return require_beside(*run_, options_);
  require(!options_.model.empty(), "--model", "llama-2-13b");
  require(!options_.cluster.empty(), "--cluster", "8x8xa100-80gb");
}

void QuestionReader::read_model() {
  if (!options_.model.empty())
    reading_as(FileUse::model, options_.model, [&] {
      with_file("--model", [&] { question_.model = load_model(options_.model, presets_, &question_.notes); });
    });
  else if (run_ && run_->model)
    question_.model = *run_->model;
  else if (run_)
    with_file(options_.from,
              [&] { question_.model = load_model(run_->model_name, presets_, &question_.notes); });
  apply_settings(question_.model, options_.set, "model");
  if (run_) check_imported_model(*run_, question_.model);
  remark_on_rope(question_.model, question_.notes);
}

void QuestionReader::read_cluster() {
  if (!options_.cluster.empty())
    question_.cluster = reading_as(FileUse::cluster, options_.cluster,
                                   [&] { return load_cluster(options_.cluster, presets_); });
  std::vector<std::string> settings;
  std::copy_if(options_.set.begin(), options_.set.end(), std::back_inserter(settings), is_cluster_setting);
  apply_overrides(question_.cluster, settings);
}

// As --stack, the file of --from or the usual one says; a plan file has it already.
void QuestionReader::read_stack() {
  if (!options_.stack.empty() || !question_.file) {
    const std::string name = !options_.stack.empty() ? options_.stack
                             : run_                  ? run_->stack
                                                     : question_.training.stack;
    reading_as(FileUse::stack, name, [&] {
      with_file("--stack", [&] {
        question_.stack = load_stack(name, presets_, question_.cluster.device.generation, &question_.former);
      });
    });
  }
  const auto blocks = set_value(options_.set, "stack.kernels.blocks");
  if (blocks)
    question_.stack =
        with_blocks(std::move(question_.stack), *blocks, presets_, question_.cluster.device.generation);
  if (!blocks && !question_.file && !question_.stack.assumes.empty()) note(question_.stack.assumes);
  question_.training.stack = question_.stack.name;
}

void QuestionReader::read_training() {
  if (!question_.file) {
    question_.training.seq_len = std::min(kDefaultSeqLen, question_.model.max_positions);
    question_.training.global_batch = kDefaultGlobalBatch;
    default_precision(question_.cluster.device, question_.training);
  }
  if (run_) use_run(*run_, options_.searches, question_);
  if (options_.seq_len > 0) question_.training.seq_len = options_.seq_len;
  if (options_.global_batch > 0) question_.training.global_batch = options_.global_batch;
}

// What options and --set say of training and stack beside the files of both.
void QuestionReader::take_settings() {
  if (!options_.precision.empty()) use_precision(options_.precision, question_.stack, question_.training);
  apply_settings(question_.training, options_.set, "training");
  check_stated_once("training.seq_len", "--seq-len", options_.seq_len, question_.training.seq_len);
  check_stated_once("training.global_batch", "--global-batch", options_.global_batch,
                    question_.training.global_batch);
  if (question_.training.stack != question_.stack.name)
    check_input({Problem{"", "training.stack", question_.training.stack, question_.stack.name,
                         "--stack NAME asks for another"}},
                "--set");
  if (run_) suit_version(*run_, question_.stack);
  for (std::string& setting : options_.set)
    if (const std::string change = take_present_name(setting); !change.empty())
      question_.former.push_back(former_text("--set", {change}));
  apply_settings(question_.stack, options_.set, "stack");
  // One figure that is stated holds for one rank too.
  if (is_set("stack.memory.outside_GiB") && !is_set("stack.memory.outside_alone_GiB"))
    question_.stack.memory.outside_alone.reset();
  question_.training.stack = question_.stack.name;
}

void QuestionReader::settle_formats() {
  if (!question_.file && options_.precision.empty()) {
    const Dtype own = own_gradient_format(question_.stack, question_.training.parameter);
    const ImportedFormats stated = run_ ? run_->formats : ImportedFormats();
    if (!is_set("training.gradient") && !stated.gradient) question_.training.gradient = own;
    if (!is_set("training.reduction") && !stated.reduction) question_.training.reduction = own;
  }
  check_precision(question_.cluster.device, question_.training.compute,
                  is_set("training.compute")      ? "--set"
                  : !options_.precision.empty()   ? "--precision"
                  : run_ && run_->formats.compute ? options_.from
                                                  : "--set");
  if (std::ranges::none_of(question_.notes, guesses_positions))
    check_positions(question_.model, question_.training.seq_len, question_.notes);
  if (options_.precision == "bf16-pure")
    note(
        fmt::format("bf16-pure counts an fp32 master copy: code that keeps none needs {} bytes less for each "
                    "parameter, over "
                    "the ranks that share the optimizer",
                    question_.stack.rules.shards_are_master ? 2 : 4));
}

void QuestionReader::use_calibration() {
  if (options_.calibration.empty()) return;
  const CalibrationFile calibration = reading_as(FileUse::calibration, options_.calibration,
                                                 [&] { return load_calibration(options_.calibration); });
  question_.calibrated = calibration.settings();
  question_.learned = calibration.learned();
  DeviceSpec& d = question_.cluster.device;
  if (const auto limit = calibration.memory_limit_GiB(question_.stack.name, d.name);
      limit && *limit < gib(d.memory)) {
    note(
        fmt::format("what was predicted to need {:.1f} GiB under {} ran out of memory on {}: less is "
                    "planned with, instead of {:.1f}",
                    *limit, question_.stack.name, d.name, gib(d.memory)));
    d.memory = from_gib(*limit);
  }
  use_settings(question_.calibrated, question_.stack);
  use_settings(question_.calibrated, question_.cluster.fabric);
  use_settings(question_.calibrated, question_.cluster.device);
}

void QuestionReader::drop_stated_notes() {
  std::erase_if(question_.notes, [&](const std::string& text) {
    return is_stated(options_.set, text) || (options_.seq_len > 0 && guesses_positions(text));
  });
}

void QuestionReader::read_layout() {
  if (run_) {
    for (auto* plan : {&question_.plan, &question_.from->layout})
      if (*plan) {
        suit_stack(*run_, question_.stack.can, **plan);
        take_ruled_cut(question_.stack.can.uneven_stages, question_.model, **plan);
      }
    add_import_notes(*run_, question_);
  }
  if (!question_.file && !options_.plan.empty()) fill_plan(options_.plan, question_);
  if (!question_.plan) return;
  const bool of_run = run_ && options_.plan.empty();
  if (of_run)
    check_imported_plan(*run_, question_);
  else
    check_input(plan_problems(question_), "--plan");
  if (question_.file || of_run)
    if (auto idle = idle_gpus(*question_.plan, question_.cluster.gpus())) note(*std::move(idle));
  use_best_nodes(question_);
}

void QuestionReader::read_profile() {
  if (options_.profile.empty()) return;
  question_.profile = reading_as(FileUse::profile, options_.profile, [&] {
    return load_profile_of(options_.profile, question_.cluster.device, presets_);
  });
  if (const std::string& former = question_.profile->table.former; !former.empty())
    question_.former.push_back(former);
  if (question_.stack.name != kProfiledStack)
    note(fmt::format(
        "the operations of {} were measured under this project's own runtime (--stack {}); those of "
        "{} may take other times",
        options_.profile, kProfiledStack, question_.stack.name));
  const int ranks = question_.plan ? question_.plan->world() : question_.cluster.gpus();
  if (const int beside = question_.profile->table.ranks; question_.cluster.device.generation == "cpu" &&
                                                         beside < ranks &&
                                                         !question_.profile->table.works.empty())
    note(fmt::format(
        "the operations of {} were measured with {} rank{} at work, here are {}: where these share "
        "cores, each takes longer",
        options_.profile, beside, beside == 1 ? "" : "s", ranks));
}

// What a step there has that others have not.
void QuestionReader::remark_on_machine() {
  if (question_.cluster.jitter != JitterSpec{} && !options_.samples_jitter) note(kJitterUnread);
  if (const DeviceSpec& d = question_.cluster.device; clock_share(d) < d.clock_factor)
    note(fmt::format(
        "{:g} of {:g} W: GEMMs and attention at {:.2f} of their rates, the square root of the share of "
        "power",
        d.power_limit_W, d.power_W, clock_share(d)));
  const FrameworkMap map = load_framework_map(presets_);
  if (const auto far = far_from_runs(map, question_.model, question_.training, question_.cluster);
      !far.empty()) {
    question_.interval = map.class_interval;
    note(fmt::format("far from any measured run: {}; intervals are {:g} times as wide", far,
                     question_.interval));
  }
}

Question QuestionReader::read() {
  take_assignments();
  question_.limits = read_limits(options_);  // before files: a slip of the keyboard shows at once
  open_source();
  read_model();
  read_cluster();
  read_training();
  read_stack();
  take_settings();
  settle_formats();
  use_calibration();
  drop_stated_notes();
  read_layout();
  for (const std::string& setting : options_.set)
    question_.stated.push_back(setting.substr(0, setting.find('=')));
  read_profile();
  remark_on_machine();
  return std::move(question_);
}

}  // namespace

void take_layout(const std::string& layout, QuestionOptions& o) {
  if (layout.empty()) return;
  if (!o.plan.empty()) throw UsageError("the layout is given twice: as an argument and with --plan");
  o.plan = layout;
}

Question read_question(const QuestionOptions& as_typed, const std::filesystem::path& presets) {
  return QuestionReader(as_typed, presets).read();
}

}  // namespace sextant
