#include "tools/inputs/inputs.hpp"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "core/base/json_io.hpp"
#include "core/cluster/cluster_files.hpp"
#include "core/cluster/device_formats.hpp"
#include "core/model/model_files.hpp"
#include "core/plan/plan_key.hpp"
#include "core/runs/framework_map.hpp"
#include "planner/answers/sub_cluster.hpp"
#include "planner/calibration/calibration_file.hpp"
#include "planner/calibration/profile_priors.hpp"
#include "tools/inputs/file_kind.hpp"
#include "tools/inputs/foreign_run.hpp"
#include "tools/inputs/key_of_assignments.hpp"
#include "tools/inputs/precision.hpp"

namespace sextant {

namespace {

namespace fs = std::filesystem;

constexpr int kDefaultSeqLen = 4096, kDefaultGlobalBatch = 1024;

// Settings of --set whose path begins with `prefix.`, without it.
std::vector<std::string> settings_from(const std::vector<std::string>& all, const std::string& prefix) {
  std::vector<std::string> own;
  for (const auto& setting : all)
    if (setting.starts_with(prefix + ".")) own.push_back(setting.substr(prefix.size() + 1));
  return own;
}

bool is_set(const std::vector<std::string>& settings, const std::string& field) {
  return std::ranges::any_of(settings, [&](const std::string& s) { return s.starts_with(field + "="); });
}

// What the last setting of that field says; nothing without one.
std::optional<std::string> set_value(const std::vector<std::string>& settings, const std::string& field) {
  const auto last = std::find_if(settings.rbegin(), settings.rend(),
                                 [&](const std::string& s) { return s.starts_with(field + "="); });
  if (last == settings.rend()) return std::nullopt;
  return last->substr(field.size() + 1);
}

bool is_cluster_setting(const std::string& setting) {
  return !setting.starts_with("model.") && !setting.starts_with("training.") &&
         !setting.starts_with("stack.");
}

// Any field of a value with a JSON form, by its path below `prefix`.
template <class T>
void apply_settings(T& value, const std::vector<std::string>& all, const std::string& prefix) {
  const auto settings = settings_from(all, prefix);
  if (settings.empty()) return;
  try {
    nlohmann::json j = value;
    for (const auto& setting : settings) {
      const std::size_t equals = setting.find('=');
      if (equals == std::string::npos)
        throw ConfigError(
            Problem{.file = "", .key = setting, .value = "no value", .expected = "KEY=VALUE", .hint = ""});
      set_json_path(j, setting.substr(0, equals), setting.substr(equals + 1));
    }
    from_json(j, value);
  } catch (const ConfigError& error) {
    auto problems = error.problems();
    for (auto& p : problems) p.file = "--set", p.key = prefix + "." + p.key;
    throw ConfigError(std::move(problems));
  }
}

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

// A value from a flag that the model or batch contradicts is a problem of the command line.
void check_input(std::vector<Problem> problems, const std::string& flag) {
  for (auto& p : problems) p.file = flag;
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

}  // namespace

void take_layout(const std::string& layout, QuestionOptions& o) {
  if (layout.empty()) return;
  if (!o.plan.empty()) throw UsageError("the layout is given twice: as an argument and with --plan");
  o.plan = layout;
}

namespace {

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

std::vector<Problem> plan_problems(const Question& q) {
  std::vector<Problem> problems = validate(*q.plan, q.model, q.training);
  hint_unequal_replicas(problems, q.stack, *q.plan, q.training.global_batch);
  return problems;
}

void fill_plan(const std::string& key, Question& q) {
  FilledPlan filled = fill_plan_key(key, q.stack, q.cluster.gpus(), q.training.parameter, &q.model);
  q.plan = std::move(filled.plan), q.key_parts = std::move(filled.stated);
  q.notes.insert(q.notes.end(), filled.notes.begin(), filled.notes.end());
  if (!filled.indivisible) return;
  auto problems = plan_problems(q);
  problems.insert(problems.begin(), *filled.indivisible);
  check_input(std::move(problems), "--plan");
}

// Ranks of a layout that needs fewer than all nodes sit on the best ones, as with `plan --scale`.
void use_best_nodes(Question& q) {
  const int gpus = q.plan->world();
  if (gpus >= q.cluster.gpus()) return;
  const std::vector<int> left_out = left_out_nodes(q.cluster, gpus);
  // Where the last nodes are left out, ranks sit there anyhow.
  if (left_out.empty() || left_out.front() + static_cast<int>(left_out.size()) == q.cluster.nodes) return;
  q.cluster = sub_cluster(q.cluster, gpus);
  q.notes.push_back(fmt::format("the ranks are on the best nodes: {} {} left out", nodes_text(left_out),
                                left_out.size() == 1 ? "is" : "are"));
}

void check_precision(const DeviceSpec& device, Dtype compute, const std::string& stated_by) {
  auto problem = unknown_format(device, compute);
  if (!problem) return;
  problem->key = "training.compute";
  check_input({*std::move(problem)}, stated_by);
}

// Eager or compiled blocks are presets of their own, with constants of their own.
StackSpec with_blocks(StackSpec stack, const std::string& blocks, const std::filesystem::path& presets,
                      std::string_view generation) {
  if (std::ranges::find(kBlocksNames, blocks) == kBlocksNames.end() ||
      blocks == kBlocksNames[static_cast<std::size_t>(stack.kernels.blocks)])
    return stack;  // whoever reads the settings refuses what is no such word
  const auto other = stack.with_blocks.find(blocks);
  if (other == stack.with_blocks.end())
    throw ConfigError(Problem{
        .file = "--set",
        .key = "stack.kernels.blocks",
        .value = blocks,
        .expected = fmt::format("{}, the only ones that {} has constants for",
                                kBlocksNames[static_cast<std::size_t>(stack.kernels.blocks)], stack.name),
        .hint = "a file with that base states its own constants: docs/contributing.md"});
  return load_stack(other->second, presets, generation);
}

// No plan depends on it: said once, and refused where it is trained.
void remark_on_rope(const ModelSpec& model, std::vector<std::string>& notes) {
  const auto why = model.rope_scaling ? rope_not_run(*model.rope_scaling) : std::nullopt;
  if (!why) return;
  const std::string near = closest(model.rope_scaling->type, {kRopeTypes.begin(), kRopeTypes.end()});
  notes.push_back(fmt::format(
      "{}: {}{}; it is planned all the same, since no scaling of rotary "
      "positions changes what a step costs; sextant run refuses it",
      model.rope_scaling->type == "default" ? "rope" : "rope_scaling", *why,
      near.empty() || near == model.rope_scaling->type ? "" : fmt::format(" (did you mean {}?)", near)));
}

void check_positions(const ModelSpec& model, int seq_len, std::vector<std::string>& notes) {
  if (model.max_positions <= 0 || seq_len <= model.max_positions) return;
  if (model.position == PositionKind::rope)
    notes.push_back(
        fmt::format("sequences of {} tokens go beyond the {} positions of {}; they cost the same, whether "
                    "its rope is stretched or not",
                    seq_len, model.max_positions, model.name));
  if (model.position != PositionKind::learned) return;
  throw ConfigError(Problem{.file = "--seq-len",
                            .key = "",
                            .value = fmt::format("{}", seq_len),
                            .expected = fmt::format("at most {}: so many rows has the table of learned "
                                                    "positions of {}",
                                                    model.max_positions, model.name),
                            .hint = fmt::format("--set model.max_positions={} gives it more", seq_len)});
}

}  // namespace

Question read_question(const QuestionOptions& as_typed, const std::filesystem::path& presets) {
  Question q;
  QuestionOptions options = as_typed;
  if (std::error_code error; !fs::exists(options.plan, error))
    if (const auto key = key_of_assignments(options.plan)) {
      q.notes.push_back(fmt::format("--plan {} is taken as {}", options.plan, *key));
      options.plan = *key;
    }
  q.limits = read_limits(options);  // cheapest first: a slip of the keyboard shows at once
  std::optional<ImportedRun> run;
  if (!options.from.empty()) {
    if (names_a_file(options.plan))
      throw UsageError("--from and a plan file are two questions; a plan key goes with --from");
    run = reading_as(FileUse::from, options.from, [&] {
      return read_foreign_run(options.from, presets, stated_layers(options, presets));
    });
    q.from = ForeignRun{options.from, {}, {}, {}};
  }
  if (names_a_file(options.plan)) {
    if (const auto kind = kind_of_file(options.plan); kind && kind->use == FileUse::from)
      refuse_foreign_plan(options.plan, *kind, options.cluster, presets);
    q.file = reading_as(FileUse::plan, options.plan, [&] { return load_plan_file(options.plan); });
    q.model = q.file->model, q.training = q.file->training, q.cluster = q.file->cluster;
    q.stack = q.file->stack, q.plan = q.file->plan;
    if (!q.file->former.empty()) q.former.push_back(q.file->former);
  } else {
    if (!options.plan.empty()) with_file("--plan", [&] { parse_plan_key(options.plan); });
    if (run) require_beside(*run, options);
    if (!run) require(!options.model.empty(), "--model", "llama-2-13b");
    if (!run) require(!options.cluster.empty(), "--cluster", "8x8xa100-80gb");
  }
  if (!options.model.empty())
    reading_as(FileUse::model, options.model, [&] {
      with_file("--model", [&] { q.model = load_model(options.model, presets, &q.notes); });
    });
  else if (run && run->model)
    q.model = *run->model;
  else if (run)
    with_file(options.from, [&] { q.model = load_model(run->model_name, presets, &q.notes); });
  apply_settings(q.model, options.set, "model");
  if (run) check_imported_model(*run, q.model);
  remark_on_rope(q.model, q.notes);
  if (!options.cluster.empty())
    q.cluster =
        reading_as(FileUse::cluster, options.cluster, [&] { return load_cluster(options.cluster, presets); });
  std::vector<std::string> cluster_settings;
  std::copy_if(options.set.begin(), options.set.end(), std::back_inserter(cluster_settings),
               is_cluster_setting);
  apply_overrides(q.cluster, cluster_settings);

  if (!q.file) q.training.seq_len = std::min(kDefaultSeqLen, q.model.max_positions);
  if (!q.file) q.training.global_batch = kDefaultGlobalBatch;
  if (!q.file) default_precision(q.cluster.device, q.training);
  if (run) use_run(*run, options.searches, q);
  if (options.seq_len > 0) q.training.seq_len = options.seq_len;
  if (options.global_batch > 0) q.training.global_batch = options.global_batch;
  if (!options.stack.empty() || !q.file) {
    const std::string name = !options.stack.empty() ? options.stack : run ? run->stack : q.training.stack;
    reading_as(FileUse::stack, name, [&] {
      with_file("--stack",
                [&] { q.stack = load_stack(name, presets, q.cluster.device.generation, &q.former); });
    });
  }
  const auto blocks = set_value(options.set, "stack.kernels.blocks");
  if (blocks) q.stack = with_blocks(std::move(q.stack), *blocks, presets, q.cluster.device.generation);
  if (!blocks && !q.file && !q.stack.assumes.empty()) q.notes.push_back(q.stack.assumes);
  q.training.stack = q.stack.name;
  if (!options.precision.empty()) use_precision(options.precision, q.stack, q.training);
  apply_settings(q.training, options.set, "training");
  const auto once = [](const char* key, const char* option, int stated, int set) {
    if (stated > 0 && stated != set)
      check_input(
          {Problem{"", key, fmt::format("{}", set), fmt::format("{}, as {} says", stated, option), ""}},
          "--set");
  };
  once("training.seq_len", "--seq-len", options.seq_len, q.training.seq_len);
  once("training.global_batch", "--global-batch", options.global_batch, q.training.global_batch);
  if (q.training.stack != q.stack.name)
    check_input(
        {Problem{"", "training.stack", q.training.stack, q.stack.name, "--stack NAME asks for another"}},
        "--set");
  if (run) suit_version(*run, q.stack);
  apply_settings(q.stack, options.set, "stack");
  // One figure that is stated holds for one rank too.
  if (is_set(options.set, "stack.memory.outside_GiB") &&
      !is_set(options.set, "stack.memory.outside_alone_GiB"))
    q.stack.memory.outside_alone.reset();
  q.training.stack = q.stack.name;
  if (!q.file && options.precision.empty()) {
    const Dtype own = own_gradient_format(q.stack, q.training.parameter);
    const ImportedFormats stated = run ? run->formats : ImportedFormats();
    if (!is_set(options.set, "training.gradient") && !stated.gradient) q.training.gradient = own;
    if (!is_set(options.set, "training.reduction") && !stated.reduction) q.training.reduction = own;
  }
  check_precision(q.cluster.device, q.training.compute,
                  is_set(options.set, "training.compute") ? "--set"
                  : !options.precision.empty()            ? "--precision"
                  : run && run->formats.compute           ? options.from
                                                          : "--set");
  const auto guesses_positions = [](const std::string& note) { return note.starts_with("max_positions:"); };
  if (std::ranges::none_of(q.notes, guesses_positions)) check_positions(q.model, q.training.seq_len, q.notes);
  if (options.precision == "bf16-pure")
    q.notes.push_back(
        fmt::format("bf16-pure counts an fp32 master copy: code that keeps none needs {} bytes less for each "
                    "parameter, over "
                    "the ranks that share the optimizer",
                    q.stack.rules.shards_are_master ? 2 : 4));
  if (!options.calibration.empty()) {
    const CalibrationFile calibration = reading_as(FileUse::calibration, options.calibration,
                                                   [&] { return load_calibration(options.calibration); });
    q.calibrated = calibration.settings(), q.learned = calibration.learned();
    DeviceSpec& d = q.cluster.device;
    if (const auto limit = calibration.memory_limit_GiB(q.stack.name, d.name);
        limit && *limit < gib(d.memory)) {
      q.notes.push_back(
          fmt::format("what was predicted to need {:.1f} GiB under {} ran out of memory on {}: less is "
                      "planned with, instead of {:.1f}",
                      *limit, q.stack.name, d.name, gib(d.memory)));
      d.memory = from_gib(*limit);
    }
    use_settings(q.calibrated, q.stack);
    use_settings(q.calibrated, q.cluster.fabric);
    use_settings(q.calibrated, q.cluster.device);
  }
  std::erase_if(q.notes, [&](const std::string& note) {
    return is_stated(options.set, note) || (options.seq_len > 0 && guesses_positions(note));
  });
  if (run) {
    for (auto* plan : {&q.plan, &q.from->layout})
      if (*plan) {
        suit_stack(*run, q.stack.can, **plan);
        take_ruled_cut(q.stack.can.uneven_stages, q.model, **plan);
      }
    add_import_notes(*run, q);
  }
  if (!q.file && !options.plan.empty()) fill_plan(options.plan, q);
  if (q.plan && run && options.plan.empty())
    check_imported_plan(*run, q);
  else if (q.plan)
    check_input(plan_problems(q), "--plan");
  if (q.plan && (q.file || (run && options.plan.empty())))
    if (auto idle = idle_gpus(*q.plan, q.cluster.gpus())) q.notes.push_back(std::move(*idle));
  if (q.plan) use_best_nodes(q);
  for (const std::string& setting : options.set) q.stated.push_back(setting.substr(0, setting.find('=')));
  if (!options.profile.empty()) {
    q.profile = reading_as(FileUse::profile, options.profile,
                           [&] { return load_profile_of(options.profile, q.cluster.device, presets); });
    if (q.stack.name != kProfiledStack)
      q.notes.push_back(fmt::format(
          "the operations of {} were measured under this project's own runtime (--stack {}); those of "
          "{} may take other times",
          options.profile, kProfiledStack, q.stack.name));
    const int ranks = q.plan ? q.plan->world() : q.cluster.gpus();
    if (const int beside = q.profile->table.ranks;
        q.cluster.device.generation == "cpu" && beside < ranks && !q.profile->table.works.empty())
      q.notes.push_back(fmt::format(
          "the operations of {} were measured with {} rank{} at work, here are {}: where these share "
          "cores, each takes longer",
          options.profile, beside, beside == 1 ? "" : "s", ranks));
  }
  if (q.cluster.jitter != JitterSpec{} && !options.samples_jitter) q.notes.emplace_back(kJitterUnread);
  if (const DeviceSpec& d = q.cluster.device; clock_share(d) < d.clock_factor)
    q.notes.push_back(fmt::format(
        "{:g} of {:g} W: GEMMs and attention at {:.2f} of their rates, the square root of the share of "
        "power",
        d.power_limit_W, d.power_W, clock_share(d)));
  const FrameworkMap map = load_framework_map(presets);
  if (const auto far = far_from_runs(map, q.model, q.training, q.cluster); !far.empty()) {
    q.interval = map.class_interval;
    q.notes.push_back(
        fmt::format("far from any measured run: {}; intervals are {:g} times as wide", far, q.interval));
  }
  return q;
}

}  // namespace sextant
