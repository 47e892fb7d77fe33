#include "tools/inputs/measured_log.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/words.hpp"
#include "core/cluster/device_formats.hpp"
#include "planner/calibration/log_stages.hpp"
#include "planner/calibration/run_log.hpp"
#include "tools/inputs/file_kind.hpp"
#include "tools/inputs/key_of_assignments.hpp"
#include "tools/inputs/question_settings.hpp"
#include "tools/inputs/whose_machine.hpp"

namespace sextant {

namespace {

// The first steps that cannot be read one by one, the others by their number.
void warn_of_unread(const RunLog& log, std::vector<std::string>& warnings) {
  constexpr std::size_t kShown = 3;
  for (std::size_t i = 0; i < log.unread.size() && i < kShown; ++i)
    warnings.push_back(to_string(log.unread[i]));
  if (log.unread.size() > kShown)
    warnings.push_back(fmt::format("{}: {} more steps cannot be read and are left out", log.file,
                                   log.unread.size() - kShown));
}

// Of kLogFormatNames.
constexpr std::array kStackOfLog = {"megatron-core", "torchtitan",     "nanotron",
                                    "nemo-dgxc",     "deepspeed-zero", "nemo-dgxc"};
static_assert(kStackOfLog.size() == kLogFormatNames.size());

// Stacks whose frameworks print such logs, by how their names begin; of kLogFormatNames.
constexpr std::array<std::array<std::string_view, 2>, kLogFormatNames.size()> kPrintedBy = {{
    {"megatron", "nemo"},          // Megatron-LM, and Megatron-DeepSpeed, which adds to it
    {"torchtitan", "torchtitan"},  //
    {"nanotron", "nanotron"},      //
    {"nemo", "megatron-core"},     // Megatron-Bridge
    {"deepspeed", "megatron-deepspeed"},
    {"nemo", "megatron-core"},
}};

// A log whose framework is not that of --stack is said; one whose layout that stack refuses is refused. A stack of one's own is not
// judged by its name.
void check_framework(const RunLog& log, const Question& q, const ParallelPlan& plan, bool stack_stated,
                     const std::filesystem::path& presets, Material& material) {
  const auto format = static_cast<std::size_t>(log.format);
  const std::vector<std::string> known = stack_names(presets);
  const bool same = std::ranges::any_of(
      kPrintedBy.at(format), [&](std::string_view word) { return q.stack.name.starts_with(word); });
  const std::string said = fmt::format("a log of {}", kLogFormatNames.at(format));
  const auto refused = refuses(q.stack, plan, q.model, q.training);
  if (same && refused)
    material.notes.push_back(fmt::format("{}: {} ({}, as --stack states) refuses the layout {}: {}", log.file,
                                         q.stack.name, q.stack.version, plan_key(plan), refused->text));
  if (same || !stack_stated || std::ranges::find(known, q.stack.name) == known.end()) return;
  const std::string hint =
      fmt::format("--stack {} is the log's own; without --stack it is taken", kStackOfLog.at(format));
  if (refused)
    throw ConfigError(Problem{log.file, "framework", said,
                              fmt::format("one of {}, as --stack states, which refuses the layout {} ({})",
                                          q.stack.name, plan_key(plan), refused->text),
                              hint});
  material.warnings.push_back(
      fmt::format("{} is {}, and --stack states {}: its kernels and what it does at which time are "
                  "fitted as if {} had done it; {}\n",
                  log.file, said, q.stack.name, q.stack.name, hint));
}

// What a key leaves out and the log states, so that both make one layout; `added` is not the key's own.
std::string with_parts_of_log(std::string key, const RunLog& log, std::vector<std::string>& added) {
  const std::string stated = lower(key);
  for (const auto& [part, column] : {std::pair<std::string_view, const char*>{"tp", "tp"},
                                     {"pp", "pp"},
                                     {"cp", "cp"},
                                     {"dp", "dp"},
                                     {"mbs", "micro_batch"}}) {
    const auto said = log.said(column);
    const bool has = std::ranges::any_of(split(stated, '.'), [&, name = part](std::string_view one) {
      return one.substr(0, one.find_first_of("0123456789")) == name;
    });
    if (has || !said || *said < 1) continue;
    key += fmt::format(".{}{}", part, *said);
    added.emplace_back(part);
  }
  return key;
}

// Puts log and question together, part by part.
class LogReader {
 public:
  LogReader(const std::string& file, const std::string& own_plan, const MaterialOptions& options,
            const std::filesystem::path& presets, Material& material)
      : file_(file), options_(options), presets_(presets), material_(material), asked_(options.question) {
    if (!own_plan.empty()) asked_.plan = own_plan;
  }
  MeasuredRun read();

 private:
  void open();
  void complete_key();
  void ask();
  void begin_layout();
  LogContext context() const;
  void apply();
  void cut_stages();
  void check_layout() const;
  void check_machine();
  void warn_of_unsteady_steps();
  MeasuredRun measured();
  int gpus_of_node() const { return std::max(1, question_.cluster.node.gpus); }
  void note(const std::string& text) { material_.notes.push_back(fmt::format("{}: {}", file_, text)); }

  const std::string& file_;
  const MaterialOptions& options_;
  const std::filesystem::path& presets_;
  Material& material_;
  QuestionOptions asked_;
  RunLog log_;
  bool stack_stated_ = false;
  bool plan_known_ = false;         // otherwise the log alone says it
  std::vector<std::string> added_;  // parts of the key that are the log's
  Question question_;
  ParallelPlan plan_;
};

void LogReader::open() {
  log_ = reading_as(FileUse::log, file_, [&] { return read_run_log(file_); });
  if (const auto experts = log_.said("experts"); experts && *experts > 1)
    throw ConfigError(
        Problem{file_, "num_experts", fmt::format("{}", *experts), "none, or 1",
                "mixtures of experts are not modelled: as a dense model's its times would mislead"});
  warn_of_unread(log_, material_.warnings);
  stack_stated_ = !asked_.stack.empty();
  if (asked_.stack.empty()) asked_.stack = kStackOfLog[static_cast<std::size_t>(log_.format)];
  plan_known_ = !asked_.plan.empty();
}

// What key and options leave out and the log states.
void LogReader::complete_key() {
  if (!plan_known_ || asked_.plan.find_first_of("/\\") != std::string::npos || asked_.plan.ends_with(".json"))
    return;
  if (std::error_code error; std::filesystem::exists(asked_.plan, error)) return;
  if (const auto key = key_of_assignments(asked_.plan)) {
    note(fmt::format("{} is taken as {}", asked_.plan, *key));
    asked_.plan = *key;
  }
  asked_.plan = with_parts_of_log(asked_.plan, log_, added_);
  const auto say = [&](const char* column, int& option) {
    if (const auto said = log_.said(column); option == 0 && said && *said < kMaxGlobalBatch)
      option = static_cast<int>(*said);
  };
  if (!is_set(asked_.set, "training.seq_len")) say("seq_len", asked_.seq_len);
  if (!is_set(asked_.set, "training.global_batch") && !log_.rounded_batch)
    say("global_batch", asked_.global_batch);
}

// What the log shows of blocks wins over the preset; what --set says over both.
void LogReader::ask() {
  question_ = read_question(asked_, presets_);
  const auto shown = log_.kernels.blocks();
  if (shown && !is_set(asked_.set, "stack.kernels.blocks")) {
    const std::string blocks(kBlocksNames[static_cast<std::size_t>(*shown)]);
    const bool as_preset = *shown == question_.stack.kernels.blocks;
    if (as_preset || question_.stack.with_blocks.contains(blocks)) {
      if (!as_preset) note(fmt::format("the log shows {} blocks", blocks));
      asked_.set.push_back("stack.kernels.blocks=" + blocks);
      question_ = read_question(asked_, presets_);
    }
  }
  for (const std::string& text : question_.notes) note(text);
}

void LogReader::begin_layout() {
  plan_ = question_.plan.value_or(ParallelPlan{});
  if (plan_known_) return;
  // DeepSpeed's pipeline engine prints times where the other prints rates.
  const bool of_stages = log_.format == LogFormat::deepspeed && log_.value == StepValue::seconds;
  if (of_stages && !log_.says.contains("pp"))
    throw UsageError(
        fmt::format("{} is of DeepSpeed's pipeline engine, and does not state how many stages it ran\n  for "
                    "example: --log "
                    "{}=tp2.pp2.z1.mbs1",
                    file_, file_));
  if (!log_.says.contains("tp") && !log_.says.contains("dp"))
    throw UsageError(fmt::format(
        "{} does not state which layout it ran\n  for example: --log {}=tp2.pp2.dp16.z1.mbs1", file_, file_));
  plan_.overlap_grad_reduce = question_.stack.can.overlap_grad_reduce;
  plan_.overlap_param_gather = question_.stack.can.overlap_param_gather;
}

LogContext LogReader::context() const {
  const bool in_file = question_.file.has_value();
  const auto set = [&](const char* field) { return is_set(asked_.set, field); };
  LogContext context{
      .plan = plan_known_,
      .seq_len = options_.question.seq_len > 0 || in_file || set("training.seq_len"),
      .global_batch = options_.question.global_batch > 0 || in_file || set("training.global_batch"),
      .compute = !asked_.precision.empty() || in_file || set("training.compute"),
      .gradient = set("training.gradient"),
      .reduction = set("training.reduction"),
      .gpus = question_.cluster.gpus(),
      .selective_by_operation = question_.stack.rules.selective_by_operation};
  if (!in_file && plan_known_) {
    context.parts = question_.key_parts;
    std::erase_if(*context.parts,
                  [&](const std::string& p) { return std::ranges::find(added_, p) != added_.end(); });
  }
  return context;
}

// What the log says of model, training and layout, and shows of kernels.
void LogReader::apply() {
  for (const std::string& text : apply_log(log_, question_.model, question_.training, plan_, context()))
    note(text);
  for (const std::string& text : apply_kernels(log_.kernels, question_.training, question_.stack)) note(text);
  if (auto problem = unknown_format(question_.cluster.device, question_.training.compute)) {
    problem->file = file_;
    problem->key = "compute";
    problem->hint = "its device is another: give the cluster that it was measured on";
    throw ConfigError(*std::move(problem));
  }
}

// As its stack does it, unless the caller or the log says how.
void LogReader::cut_stages() {
  if (!plan_.chunks.empty()) return;
  if (plan_known_ && plan_.vp == question_.plan->vp && plan_.pp == question_.plan->pp) return;
  plan_.chunks = split_layers(question_.model, plan_.pp * plan_.vp,
                              split_of(load_framework_map(presets_), question_.stack.name));
}

void LogReader::check_layout() const {
  if (auto problems = validate(plan_, question_.model, question_.training); !problems.empty()) {
    for (Problem& p : problems) p.file = file_;
    throw ConfigError(std::move(problems));
  }
  if (plan_.world() > question_.cluster.gpus())
    throw ConfigError(Problem{file_, "layout", plan_key(plan_),
                              fmt::format("at most the {} GPUs of --cluster", question_.cluster.gpus()), ""});
}

void LogReader::check_machine() {
  const int node = gpus_of_node();
  require_machine({file_, log_.device, log_.machine, plan_.world(), (plan_.world() + node - 1) / node, 0,
                   log_.device_GiB},
                  question_.cluster, options_.allow_other_device, material_.notes);
  const auto said = log_.said("gpus_of_node");
  if (said && *said != node && plan_.world() > std::min<std::int64_t>(node, *said) &&
      !options_.allow_other_device)
    throw ConfigError(
        Problem{file_, "devices", fmt::format("{} GPUs of a node", *said),
                fmt::format("{}, as --cluster states", node),
                "give the cluster that it was measured on; --allow-other-device takes it all the same"});
}

void LogReader::warn_of_unsteady_steps() {
  constexpr double kUnsteady = 0.2;
  const auto spread = spread_of_steps(log_);
  if (!spread || *spread <= kUnsteady) return;
  material_.warnings.push_back(
      fmt::format("{}: steps are not steady, the slower ones take {:.0f} % longer than the faster: the "
                  "median is used; a run that "
                  "slows down, or shares its machine, is weak evidence about a layout\n",
                  file_, 100 * *spread));
}

MeasuredRun LogReader::measured() {
  MeasuredRun m;
  m.id = file_;
  m.source = "log";
  m.at = file_;
  m.step = steady_step(log_, question_.training, plan_);
  m.run = {question_.model, question_.training, plan_, question_.cluster, question_.stack, false, 1.0, ""};
  m.run.memory_kind = log_.memory_kind;
  m.peak_memory_GiB = log_.peak_memory_GiB;
  m.peak_stages =
      stages_of_peak(log_, plan_, static_cast<int>(log_.said("gpus_of_node").value_or(gpus_of_node())));
  if (!m.peak_stages.empty())
    note(
        fmt::format("its memory is that of pipeline stage {} alone, and compared with that; the "
                    "other stages' is not in the log",
                    fmt::join(m.peak_stages, ", ")));
  return m;
}

MeasuredRun LogReader::read() {
  open();
  complete_key();
  ask();
  begin_layout();
  apply();
  cut_stages();
  check_layout();
  check_framework(log_, question_, plan_, stack_stated_, presets_, material_);
  check_machine();
  warn_of_unsteady_steps();
  return measured();
}

}  // namespace

MeasuredRun run_of_log(const std::string& file, const std::string& own_plan, const MaterialOptions& options,
                       const std::filesystem::path& presets, Material& material) {
  return LogReader(file, own_plan, options, presets, material).read();
}

}  // namespace sextant
