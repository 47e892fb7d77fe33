#include "tools/inputs/inputs.hpp"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "core/base/file_io.hpp"
#include "core/cluster/cluster_files.hpp"
#include "core/model/model_files.hpp"
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
    check_input({Problem{"", key, fmt::format("{}", set), fmt::format("{}, as {} says", stated, option), ""}},
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
  void note(std::string text) { q_.notes.push_back(std::move(text)); }

  QuestionOptions options_;
  const fs::path& presets_;
  std::optional<ImportedRun> run_;  // of --from
  Question q_;
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
    q_.from = ForeignRun{options_.from, {}, {}, {}};
  }
  if (names_a_file(options_.plan)) {
    if (const auto kind = kind_of_file(options_.plan); kind && kind->use == FileUse::from)
      refuse_foreign_plan(options_.plan, *kind, options_.cluster, presets_);
    q_.file = reading_as(FileUse::plan, options_.plan, [&] { return load_plan_file(options_.plan); });
    q_.model = q_.file->model;
    q_.training = q_.file->training;
    q_.cluster = q_.file->cluster;
    q_.stack = q_.file->stack;
    q_.plan = q_.file->plan;
    if (!q_.file->former.empty()) q_.former.push_back(q_.file->former);
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
      with_file("--model", [&] { q_.model = load_model(options_.model, presets_, &q_.notes); });
    });
  else if (run_ && run_->model)
    q_.model = *run_->model;
  else if (run_)
    with_file(options_.from, [&] { q_.model = load_model(run_->model_name, presets_, &q_.notes); });
  apply_settings(q_.model, options_.set, "model");
  if (run_) check_imported_model(*run_, q_.model);
  remark_on_rope(q_.model, q_.notes);
}

void QuestionReader::read_cluster() {
  if (!options_.cluster.empty())
    q_.cluster = reading_as(FileUse::cluster, options_.cluster,
                            [&] { return load_cluster(options_.cluster, presets_); });
  std::vector<std::string> settings;
  std::copy_if(options_.set.begin(), options_.set.end(), std::back_inserter(settings), is_cluster_setting);
  apply_overrides(q_.cluster, settings);
}

// As --stack, the file of --from or the usual one says; a plan file has it already.
void QuestionReader::read_stack() {
  if (!options_.stack.empty() || !q_.file) {
    const std::string name = !options_.stack.empty() ? options_.stack
                             : run_                  ? run_->stack
                                                     : q_.training.stack;
    reading_as(FileUse::stack, name, [&] {
      with_file("--stack",
                [&] { q_.stack = load_stack(name, presets_, q_.cluster.device.generation, &q_.former); });
    });
  }
  const auto blocks = set_value(options_.set, "stack.kernels.blocks");
  if (blocks) q_.stack = with_blocks(std::move(q_.stack), *blocks, presets_, q_.cluster.device.generation);
  if (!blocks && !q_.file && !q_.stack.assumes.empty()) note(q_.stack.assumes);
  q_.training.stack = q_.stack.name;
}

void QuestionReader::read_training() {
  if (!q_.file) {
    q_.training.seq_len = std::min(kDefaultSeqLen, q_.model.max_positions);
    q_.training.global_batch = kDefaultGlobalBatch;
    default_precision(q_.cluster.device, q_.training);
  }
  if (run_) use_run(*run_, options_.searches, q_);
  if (options_.seq_len > 0) q_.training.seq_len = options_.seq_len;
  if (options_.global_batch > 0) q_.training.global_batch = options_.global_batch;
}

// What options and --set say of training and stack beside the files of both.
void QuestionReader::take_settings() {
  if (!options_.precision.empty()) use_precision(options_.precision, q_.stack, q_.training);
  apply_settings(q_.training, options_.set, "training");
  check_stated_once("training.seq_len", "--seq-len", options_.seq_len, q_.training.seq_len);
  check_stated_once("training.global_batch", "--global-batch", options_.global_batch,
                    q_.training.global_batch);
  if (q_.training.stack != q_.stack.name)
    check_input(
        {Problem{"", "training.stack", q_.training.stack, q_.stack.name, "--stack NAME asks for another"}},
        "--set");
  if (run_) suit_version(*run_, q_.stack);
  apply_settings(q_.stack, options_.set, "stack");
  // One figure that is stated holds for one rank too.
  if (is_set("stack.memory.outside_GiB") && !is_set("stack.memory.outside_alone_GiB"))
    q_.stack.memory.outside_alone.reset();
  q_.training.stack = q_.stack.name;
}

void QuestionReader::settle_formats() {
  if (!q_.file && options_.precision.empty()) {
    const Dtype own = own_gradient_format(q_.stack, q_.training.parameter);
    const ImportedFormats stated = run_ ? run_->formats : ImportedFormats();
    if (!is_set("training.gradient") && !stated.gradient) q_.training.gradient = own;
    if (!is_set("training.reduction") && !stated.reduction) q_.training.reduction = own;
  }
  check_precision(q_.cluster.device, q_.training.compute,
                  is_set("training.compute")      ? "--set"
                  : !options_.precision.empty()   ? "--precision"
                  : run_ && run_->formats.compute ? options_.from
                                                  : "--set");
  if (std::ranges::none_of(q_.notes, guesses_positions))
    check_positions(q_.model, q_.training.seq_len, q_.notes);
  if (options_.precision == "bf16-pure")
    note(
        fmt::format("bf16-pure counts an fp32 master copy: code that keeps none needs {} bytes less for each "
                    "parameter, over "
                    "the ranks that share the optimizer",
                    q_.stack.rules.shards_are_master ? 2 : 4));
}

void QuestionReader::use_calibration() {
  if (options_.calibration.empty()) return;
  const CalibrationFile calibration = reading_as(FileUse::calibration, options_.calibration,
                                                 [&] { return load_calibration(options_.calibration); });
  q_.calibrated = calibration.settings();
  q_.learned = calibration.learned();
  DeviceSpec& d = q_.cluster.device;
  if (const auto limit = calibration.memory_limit_GiB(q_.stack.name, d.name);
      limit && *limit < gib(d.memory)) {
    note(
        fmt::format("what was predicted to need {:.1f} GiB under {} ran out of memory on {}: less is "
                    "planned with, instead of {:.1f}",
                    *limit, q_.stack.name, d.name, gib(d.memory)));
    d.memory = from_gib(*limit);
  }
  use_settings(q_.calibrated, q_.stack);
  use_settings(q_.calibrated, q_.cluster.fabric);
  use_settings(q_.calibrated, q_.cluster.device);
}

void QuestionReader::drop_stated_notes() {
  std::erase_if(q_.notes, [&](const std::string& text) {
    return is_stated(options_.set, text) || (options_.seq_len > 0 && guesses_positions(text));
  });
}

void QuestionReader::read_layout() {
  if (run_) {
    for (auto* plan : {&q_.plan, &q_.from->layout})
      if (*plan) {
        suit_stack(*run_, q_.stack.can, **plan);
        take_ruled_cut(q_.stack.can.uneven_stages, q_.model, **plan);
      }
    add_import_notes(*run_, q_);
  }
  if (!q_.file && !options_.plan.empty()) fill_plan(options_.plan, q_);
  if (!q_.plan) return;
  const bool of_run = run_ && options_.plan.empty();
  if (of_run)
    check_imported_plan(*run_, q_);
  else
    check_input(plan_problems(q_), "--plan");
  if (q_.file || of_run)
    if (auto idle = idle_gpus(*q_.plan, q_.cluster.gpus())) note(*std::move(idle));
  use_best_nodes(q_);
}

void QuestionReader::read_profile() {
  if (options_.profile.empty()) return;
  q_.profile = reading_as(FileUse::profile, options_.profile,
                          [&] { return load_profile_of(options_.profile, q_.cluster.device, presets_); });
  if (q_.stack.name != kProfiledStack)
    note(fmt::format(
        "the operations of {} were measured under this project's own runtime (--stack {}); those of "
        "{} may take other times",
        options_.profile, kProfiledStack, q_.stack.name));
  const int ranks = q_.plan ? q_.plan->world() : q_.cluster.gpus();
  if (const int beside = q_.profile->table.ranks;
      q_.cluster.device.generation == "cpu" && beside < ranks && !q_.profile->table.works.empty())
    note(fmt::format(
        "the operations of {} were measured with {} rank{} at work, here are {}: where these share "
        "cores, each takes longer",
        options_.profile, beside, beside == 1 ? "" : "s", ranks));
}

// What a step there has that others have not.
void QuestionReader::remark_on_machine() {
  if (q_.cluster.jitter != JitterSpec{} && !options_.samples_jitter) note(kJitterUnread);
  if (const DeviceSpec& d = q_.cluster.device; clock_share(d) < d.clock_factor)
    note(fmt::format(
        "{:g} of {:g} W: GEMMs and attention at {:.2f} of their rates, the square root of the share of "
        "power",
        d.power_limit_W, d.power_W, clock_share(d)));
  const FrameworkMap map = load_framework_map(presets_);
  if (const auto far = far_from_runs(map, q_.model, q_.training, q_.cluster); !far.empty()) {
    q_.interval = map.class_interval;
    note(fmt::format("far from any measured run: {}; intervals are {:g} times as wide", far, q_.interval));
  }
}

Question QuestionReader::read() {
  take_assignments();
  q_.limits = read_limits(options_);  // before files: a slip of the keyboard shows at once
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
  for (const std::string& setting : options_.set) q_.stated.push_back(setting.substr(0, setting.find('=')));
  read_profile();
  remark_on_machine();
  return std::move(q_);
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
