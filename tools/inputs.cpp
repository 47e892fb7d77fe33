#include "tools/inputs.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/cluster_files.hpp"
#include "core/json_io.hpp"
#include "core/model_files.hpp"

namespace sextant {

namespace {

constexpr int kDefaultSeqLen = 4096, kDefaultGlobalBatch = 1024;

// Settings of --set whose path begins with `prefix.`, without it.
std::vector<std::string> settings_of(const std::vector<std::string>& all, const std::string& prefix) {
  std::vector<std::string> own;
  for (const auto& setting : all)
    if (setting.starts_with(prefix + ".")) own.push_back(setting.substr(prefix.size() + 1));
  return own;
}

bool is_cluster_setting(const std::string& setting) {
  return !setting.starts_with("model.") && !setting.starts_with("training.") &&
         !setting.starts_with("stack.");
}

// Any field of a value with a JSON form, by its path.
template <class T>
void apply_settings(T& value, const std::vector<std::string>& settings, const std::string& prefix) {
  if (settings.empty()) return;
  nlohmann::json j = value;
  for (const auto& setting : settings) {
    const std::string flag = fmt::format("--set {}.{}", prefix, setting);
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos)
      throw ConfigError(
          Problem{.file = flag, .key = "", .value = setting, .expected = "KEY=VALUE", .hint = ""});
    with_file(flag, [&] { set_json_path(j, setting.substr(0, equals), setting.substr(equals + 1)); });
  }
  with_file("--set", [&] { from_json(j, value); });
}

bool names_a_file(const std::string& plan) {
  return plan.ends_with(".json") || plan.find('/') != std::string::npos;
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
void check(std::vector<Problem> problems, const std::string& flag) {
  for (auto& p : problems) p.file = flag;
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

}  // namespace

void add_question_options(CLI::App& app, QuestionOptions& o, QuestionKinds kinds) {
  if (kinds.plan)
    add_text(app,
             {.flag = "--plan",
              .metavar = "KEY|FILE",
              .text = "the layout: a plan key such as tp4.pp8.vp5.dp2.z1.mbs1.sel, or a plan file of "
                      "'sextant plan -o'"},
             o.plan);
  add_text(app,
           {.flag = "--model",
            .metavar = "MODEL",
            .text = "preset name, Hugging Face config.json or checkpoint folder, or Meta params.json"},
           o.model);
  add_text(
      app,
      {.flag = "--cluster",
       .metavar = "CLUSTER",
       .text =
           "preset name, nodes x GPUs x device (8x8xh100, with @FABRIC to name the network), or JSON file"},
      o.cluster);
  add_text(app,
           {.flag = "--stack",
            .metavar = "STACK",
            .text = "software stack: preset name or JSON file "
                    "(default: megatron-core)"},
           o.stack);
  add_number(app,
             {.flag = "--seq-len",
              .metavar = "N",
              .text = "tokens of one sequence (default: 4096, or the model's longest when that is less)",
              .unit = "tokens",
              .min = 1,
              .max = kMaxSeqLen},
             o.seq_len);
  add_number(app,
             {.flag = "--global-batch",
              .metavar = "N",
              .text = "sequences of one optimizer step (default: 1024)",
              .unit = "sequences",
              .min = 1,
              .max = kMaxGlobalBatch},
             o.global_batch);
  app.get_option("--seq-len")->default_str("");
  app.get_option("--global-batch")->default_str("");
  add_list(
      app,
      {.flag = "--set",
       .metavar = "KEY=VALUE",
       .text =
           "override a field of the cluster (fabric.bandwidth_GBps=100), or of model., training. or stack. "
           "(training.gradient=bf16); repeatable"},
      o.set);
  if (!kinds.limits) return;
  add_list(app,
           {.flag = "--fix", .metavar = "FIELD=VALUE,...", .text = "pin fields of the layout: tp=4,pp=2"},
           o.fix);
  add_list(app,
           {.flag = "--limit",
            .metavar = "LIMIT,...",
            .text = "narrow fields of the layout: 'tp<=8,mbs<=4,rec!=full'"},
           o.limit);
}

Question read_question(const QuestionOptions& options, const std::filesystem::path& presets) {
  Question q;
  q.limits = read_limits(options);  // cheapest first: a slip of the keyboard shows at once
  if (names_a_file(options.plan)) {
    q.file = load_plan_file(options.plan);
    q.model = q.file->model, q.training = q.file->training, q.cluster = q.file->cluster;
    q.stack = q.file->stack, q.plan = q.file->plan;
  } else {
    require(!options.model.empty(), "--model", "llama-2-13b");
    require(!options.cluster.empty(), "--cluster", "8x8xa100-80gb");
    if (!options.plan.empty()) with_file("--plan", [&] { q.plan = parse_plan_key(options.plan); });
  }
  if (!options.model.empty()) q.model = load_model(options.model, presets);
  apply_settings(q.model, settings_of(options.set, "model"), "model");
  if (!options.cluster.empty()) q.cluster = load_cluster(options.cluster, presets);
  std::vector<std::string> cluster_settings;
  std::copy_if(options.set.begin(), options.set.end(), std::back_inserter(cluster_settings),
               is_cluster_setting);
  apply_overrides(q.cluster, cluster_settings);

  if (!q.file) q.training.seq_len = std::min(kDefaultSeqLen, q.model.max_positions);
  if (!q.file) q.training.global_batch = kDefaultGlobalBatch;
  if (options.seq_len > 0) q.training.seq_len = options.seq_len;
  if (options.global_batch > 0) q.training.global_batch = options.global_batch;
  if (!options.stack.empty() || !q.file) {
    q.stack = load_stack(options.stack.empty() ? q.training.stack : options.stack, presets);
    q.training.stack = q.stack.name;
  }
  apply_settings(q.training, settings_of(options.set, "training"), "training");
  apply_settings(q.stack, settings_of(options.set, "stack"), "stack");
  if (q.plan) check(validate(*q.plan, q.model, q.training), "--plan");
  return q;
}

}  // namespace sextant
