#include "tools/inputs/calibrate_material.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>

#include <fmt/format.h>

#include "core/base/packed_text.hpp"
#include "core/base/words.hpp"
#include "core/cluster/cluster_files.hpp"
#include "core/cluster/device_formats.hpp"
#include "planner/answers/shortlist.hpp"
#include "planner/calibration/log_stages.hpp"
#include "planner/calibration/nccl_table.hpp"
#include "planner/calibration/run_log.hpp"
#include "planner/validation/plausible.hpp"
#include "tools/inputs/file_kind.hpp"
#include "tools/inputs/key_of_assignments.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/inputs/run_tables.hpp"
#include "tools/inputs/unknown_names.hpp"
#include "tools/inputs/whose_machine.hpp"

namespace sextant {

namespace {

// FILE or FILE=WHAT; a file of that whole name wins.
struct Stated {
  std::string file, what;
};
Stated split_stated(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos || std::filesystem::exists(text)) return {text, ""};
  return {text.substr(0, equals), text.substr(equals + 1)};
}

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
    material.notes.push_back(fmt::format("{}: {} ({}, as --stack says) refuses the layout {}: {}", log.file,
                                         q.stack.name, q.stack.version, plan_key(plan), refused->text));
  if (same || !stack_stated || std::ranges::find(known, q.stack.name) == known.end()) return;
  const std::string hint =
      fmt::format("--stack {} is the log's own; without --stack it is taken", kStackOfLog.at(format));
  if (refused)
    throw ConfigError(Problem{log.file, "framework", said,
                              fmt::format("one of {}, as --stack says, which refuses the layout {} ({})",
                                          q.stack.name, plan_key(plan), refused->text),
                              hint});
  material.warnings.push_back(
      fmt::format("{} is {}, and --stack says {}: its kernels and what it does at which time are "
                  "fitted as if {} had done it; {}\n",
                  log.file, said, q.stack.name, q.stack.name, hint));
}

bool sets_field(const std::vector<std::string>& settings, std::string_view field) {
  return std::ranges::any_of(settings, [&](const std::string& s) {
    return s.starts_with(field) && s.substr(field.size()).starts_with('=');
  });
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

MeasuredRun run_of_log(const std::string& text, const MaterialOptions& options,
                       const std::filesystem::path& presets, Material& material) {
  std::vector<std::string>& notes = material.notes;
  const auto [file, own_plan] = split_stated(text);
  QuestionOptions asked = options.question;
  if (!own_plan.empty()) asked.plan = own_plan;
  const RunLog log = reading_as(FileUse::log, file, [&, &log_file = file] { return read_run_log(log_file); });
  if (const auto experts = log.said("experts"); experts && *experts > 1)
    throw ConfigError(
        Problem{file, "num_experts", fmt::format("{}", *experts), "none, or 1",
                "mixtures of experts are not modelled: as a dense model's its times would mislead"});
  warn_of_unread(log, material.warnings);
  const bool stack_stated = !asked.stack.empty();
  if (asked.stack.empty()) asked.stack = kStackOfLog[static_cast<std::size_t>(log.format)];
  const bool plan_known = !asked.plan.empty();
  std::vector<std::string> added;
  if (std::error_code error; plan_known && !std::filesystem::exists(asked.plan, error) &&
                             asked.plan.find_first_of("/\\") == std::string::npos &&
                             !asked.plan.ends_with(".json")) {
    if (const auto key = key_of_assignments(asked.plan)) {
      notes.push_back(fmt::format("{}: {} is taken as {}", file, asked.plan, *key));
      asked.plan = *key;
    }
    asked.plan = with_parts_of_log(asked.plan, log, added);
    const auto say = [&](const char* column, int& option) {
      if (const auto said = log.said(column); option == 0 && said && *said < kMaxGlobalBatch)
        option = static_cast<int>(*said);
    };
    if (!sets_field(asked.set, "training.seq_len")) say("seq_len", asked.seq_len);
    if (!sets_field(asked.set, "training.global_batch") && !log.rounded_batch)
      say("global_batch", asked.global_batch);
  }
  Question q = read_question(asked, presets);
  // What the log shows wins over the preset; what --set says over both.
  const auto blocks = log.kernels.blocks();
  const bool says_blocks =
      blocks && (*blocks == q.stack.kernels.blocks ||
                 q.stack.with_blocks.contains(std::string(kBlocksNames[static_cast<std::size_t>(*blocks)])));
  const bool stated = std::ranges::any_of(
      asked.set, [](const std::string& s) { return s.starts_with("stack.kernels.blocks="); });
  if (says_blocks && !stated) {
    if (*blocks != q.stack.kernels.blocks)
      notes.push_back(
          fmt::format("{}: the log shows {} blocks", file, kBlocksNames[static_cast<std::size_t>(*blocks)]));
    asked.set.push_back(
        fmt::format("stack.kernels.blocks={}", kBlocksNames[static_cast<std::size_t>(*blocks)]));
    q = read_question(asked, presets);
  }
  for (const std::string& note : q.notes) notes.push_back(fmt::format("{}: {}", file, note));
  ParallelPlan plan = q.plan.value_or(ParallelPlan{});
  if (!plan_known) {
    // DeepSpeed's pipeline engine prints times where the other prints rates.
    const bool of_stages = log.format == LogFormat::deepspeed && log.value == StepValue::seconds;
    if (of_stages && !log.says.contains("pp"))
      throw UsageError(
          fmt::format("{} is of DeepSpeed's pipeline engine, and does not say how many stages it ran\n  for "
                      "example: --log "
                      "{}=tp2.pp2.z1.mbs1",
                      file, file));
    if (!log.says.contains("tp") && !log.says.contains("dp"))
      throw UsageError(fmt::format(
          "{} does not say which layout it ran\n  for example: --log {}=tp2.pp2.dp16.z1.mbs1", file, file));
    plan.overlap_grad_reduce = q.stack.can.overlap_grad_reduce;
    plan.overlap_param_gather = q.stack.can.overlap_param_gather;
  }
  const bool in_file = q.file.has_value();
  LogContext context{
      .plan = plan_known,
      .seq_len = options.question.seq_len > 0 || in_file || sets_field(asked.set, "training.seq_len"),
      .global_batch =
          options.question.global_batch > 0 || in_file || sets_field(asked.set, "training.global_batch"),
      .compute = !asked.precision.empty() || in_file || sets_field(asked.set, "training.compute"),
      .gradient = sets_field(asked.set, "training.gradient"),
      .reduction = sets_field(asked.set, "training.reduction"),
      .gpus = q.cluster.gpus(),
      .selective_by_operation = q.stack.rules.selective_by_operation};
  if (!in_file && plan_known) {
    context.parts = q.key_parts;
    std::erase_if(*context.parts,
                  [&](const std::string& p) { return std::ranges::find(added, p) != added.end(); });
  }
  for (const std::string& note : apply_log(log, q.model, q.training, plan, context))
    notes.push_back(fmt::format("{}: {}", file, note));
  for (const std::string& note : apply_kernels(log.kernels, q.training, q.stack))
    notes.push_back(fmt::format("{}: {}", file, note));
  if (auto problem = unknown_format(q.cluster.device, q.training.compute)) {
    problem->file = file, problem->key = "compute";
    problem->hint = "its device is another: give the cluster that it was measured on";
    throw ConfigError(*std::move(problem));
  }
  const bool cut = !plan.chunks.empty();  // by the caller or by the log
  if (!cut && (!plan_known || plan.vp != q.plan->vp || plan.pp != q.plan->pp))
    plan.chunks =
        split_layers(q.model, plan.pp * plan.vp, split_of(load_framework_map(presets), q.stack.name));
  if (auto problems = validate(plan, q.model, q.training); !problems.empty()) {
    for (Problem& p : problems) p.file = file;
    throw ConfigError(std::move(problems));
  }
  if (plan.world() > q.cluster.gpus())
    throw ConfigError(Problem{file, "layout", plan_key(plan),
                              fmt::format("at most the {} GPUs of --cluster", q.cluster.gpus()), ""});
  check_framework(log, q, plan, stack_stated, presets, material);
  const int node = std::max(1, q.cluster.node.gpus);
  require_machine(
      {file, log.device, log.machine, plan.world(), (plan.world() + node - 1) / node, 0, log.device_GiB},
      q.cluster, options.allow_other_device, notes);
  if (const auto said = log.said("gpus_of_node"); said && *said != node &&
                                                  plan.world() > std::min<std::int64_t>(node, *said) &&
                                                  !options.allow_other_device)
    throw ConfigError(Problem{
        file, "devices", fmt::format("{} GPUs of a node", *said), fmt::format("{}, as --cluster says", node),
        "give the cluster that it was measured on; --allow-other-device takes it all the same"});
  constexpr double kUnsteady = 0.2;
  if (const auto spread = spread_of_steps(log); spread && *spread > kUnsteady)
    material.warnings.push_back(
        fmt::format("{}: steps are not steady, the slower ones take {:.0f} % longer than the faster: the "
                    "median is used; a run that "
                    "slows down, or shares its machine, says little about a layout\n",
                    file, 100 * *spread));
  MeasuredRun m;
  m.id = file, m.source = "log", m.at = file;
  m.step = steady_step(log, q.training, plan);
  m.run = {q.model, q.training, plan, q.cluster, q.stack, false, 1.0, ""};
  m.run.memory_kind = log.memory_kind;
  m.peak_memory_GiB = log.peak_memory_GiB;
  m.peak_stages = stages_of_peak(log, plan, static_cast<int>(log.said("gpus_of_node").value_or(node)));
  if (!m.peak_stages.empty())
    notes.push_back(
        fmt::format("{}: its memory is that of pipeline stage {} alone, and compared with that; the "
                    "other stages' is not in the log",
                    file, fmt::join(m.peak_stages, ", ")));
  return m;
}

void read_tried(const std::string& file, const std::filesystem::path& presets, Material& m) {
  const Shortlist shortlist = reading_as(FileUse::tried, file, [&] { return load_shortlist(file); });
  for (const Tried& t : shortlist.plans) {
    const PlanFile& f = t.plan;
    if (!t.measured_step_s && !t.out_of_memory) continue;
    const std::string key = plan_key(f.plan);
    ResolvedRun run{f.model, f.training, f.plan, f.cluster, f.stack, false, 1.0, ""};
    if (t.measured_step_s) {
      m.runs.push_back({key, file, std::move(run), Seconds(*t.measured_step_s)});
      continue;
    }
    const RunPrediction p = predict_resolved(std::move(run), {presets});
    m.in_vain.push_back(
        {{key, f.stack.name, f.cluster.device.name, p.memory_GiB.value_or(0), gib(f.cluster.device.memory)},
         p.chance_of_overflow.value_or(0)});
  }
}

NetworkFit read_nccl(const std::string& text, const MaterialOptions& options,
                     const std::filesystem::path& presets, const CalibrationRules& rules,
                     Material& material) {
  std::vector<std::string>& notes = material.notes;
  if (options.question.cluster.empty())
    throw UsageError("--nccl needs --cluster\n  for example: --cluster 8x8xa100-80gb");
  const auto [file, what] = split_stated(text);
  std::optional<CollectiveKind> kind;
  if (!what.empty()) {
    const auto it = std::find(kCollectiveNames.begin(), kCollectiveNames.end(), what);
    if (it == kCollectiveNames.end())
      throw UsageError(fmt::format("--nccl {}: '{}' is none of {}\n  for example: --nccl {}=all_gather", text,
                                   what, fmt::join(kCollectiveNames, ", "), file));
    kind = static_cast<CollectiveKind>(it - kCollectiveNames.begin());
  }
  const ClusterSpec cluster = load_cluster(options.question.cluster, presets);
  const auto constants = load_cost_preset(cluster.device.generation, presets / "cost").constants;
  const NcclTable table = reading_as(FileUse::nccl, file, [&, &name = file] {
    return parse_nccl_table(read_packed_text(name), name, kind);
  });
  std::vector<int> of_node(static_cast<std::size_t>(table.nodes), 0);
  for (const int n : table.node_of) ++of_node[static_cast<std::size_t>(n)];
  require_machine({file, table.device, table.machine, table.ranks, table.nodes,
                   of_node.empty() ? 0 : *std::ranges::max_element(of_node)},
                  cluster, options.allow_other_device, notes);
  const std::vector<NcclBaseline> idle = load_nccl_baselines(presets);
  NetworkFit fit =
      calibrate_network(table, cluster, constants, rules, nccl_baseline_of(cluster.fabric.name, idle));
  if (fit.samples == 0) {
    const auto largest = std::max_element(table.samples.begin(), table.samples.end(),
                                          [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    throw ConfigError(Problem{file, "size", fmt::format("{} bytes at most", largest->bytes),
                              "sizes of at least 16 MiB: smaller ones inside a node show start-up, not rate",
                              "run it with -b 16M -e 8G -f 2"});
  }
  if (auto warning = odd_rate(table, fit, cluster)) material.warnings.push_back(*std::move(warning) + '\n');
  return fit;
}

// Whose machine was it? --cluster, or the first of the runs on such a device.
ProfileFit read_profile(const std::string& file, const MaterialOptions& options,
                        const std::vector<MeasuredRun>& runs, const std::filesystem::path& presets,
                        const CalibrationRules& rules) {
  const WorkProfile profile = reading_as(FileUse::profile, file, [&] { return load_profile(file, presets); });
  std::vector<ClusterSpec> clusters;
  if (!options.question.cluster.empty()) clusters.push_back(load_cluster(options.question.cluster, presets));
  for (const MeasuredRun& m : runs) clusters.push_back(m.run.cluster);
  if (clusters.empty())
    throw UsageError(
        "--profile needs --cluster, or runs on its device\n  for example: --cluster 8x8xa100-80gb");
  std::set<std::string> devices;
  for (const ClusterSpec& cluster : clusters) {
    if (taken_on(profile, cluster.device)) return profile_priors(profile, file, cluster, presets, rules);
    devices.insert(cluster.device.name);
  }
  throw ConfigError(
      Problem{file, "machine", profile.machine.empty() ? "(not stated)" : profile.machine,
              fmt::format("a profile of {}", fmt::join(devices, " or ")),
              "what one device reaches says nothing about another: profile the one of the runs"});
}

// A row that was given twice counts once; other runs of one name are different runs, which the answer cannot tell apart.
void tell_names(Material& m) {
  const std::vector<std::size_t> twice = given_twice(m.runs);
  for (auto i = twice.rbegin(); i != twice.rend(); ++i) {
    m.notes.push_back(fmt::format("{}: {} was given before with the same time; it counts once", m.runs[*i].at,
                                  m.runs[*i].id));
    m.runs.erase(m.runs.begin() + static_cast<std::ptrdiff_t>(*i));
  }
  std::map<std::string, std::vector<std::string>> where;
  for (const MeasuredRun& r : m.runs) where[r.id].push_back(r.at);
  for (const auto& [id, at] : where)
    if (at.size() > 1)
      m.notes.push_back(fmt::format("{} runs have the run_id {}, at {}: all count; name them apart",
                                    at.size(), id, fmt::join(at, ", ")));
}

}  // namespace

std::vector<std::string> MaterialOptions::files() const {
  std::vector<std::string> out = files_read(question);
  for (const auto* list : {&runs, &logs, &nccl, &tried, &profiles})
    out.insert(out.end(), list->begin(), list->end());
  return out;
}

std::vector<ConstantFit> Material::measured_alone() const {
  std::vector<ConstantFit> out;
  const auto add = [&](const ConstantFit& fit) {
    const auto same = [&](const ConstantFit& k) {
      return k.constant.of == fit.constant.of && k.constant.owner == fit.constant.owner &&
             k.constant.key == fit.constant.key;
    };
    if (std::none_of(out.begin(), out.end(), same)) out.push_back(fit);
  };
  for (const NetworkFit& network : networks)
    std::for_each(network.constants.begin(), network.constants.end(), add);
  for (const ProfileFit& profile : profiles)
    std::for_each(profile.constants.begin(), profile.constants.end(), add);
  return out;
}

Material read_material(const MaterialOptions& options, const std::filesystem::path& presets,
                       const CalibrationRules& rules) {
  Material m;
  const FrameworkMap map = load_framework_map(presets);
  for (const auto& file : options.runs) {
    std::vector<RunRow> rows = runs_of(read_run_table(file, BadRows::refuse));
    std::erase_if(rows, [](const RunRow& r) { return r.quality == 'c'; });
    auto more = measured_runs(rows, map, presets);
    std::move(more.begin(), more.end(), std::back_inserter(m.runs));
  }
  tell_names(m);
  std::vector<std::string> of_runs;
  for (const MeasuredRun& run : m.runs) of_runs.push_back(run.run.note);
  for (std::string& unknown : unknown_names(of_runs)) m.notes.push_back(std::move(unknown));
  for (const auto& log : options.logs) m.runs.push_back(run_of_log(log, options, presets, m));
  for (const auto& file : options.tried) read_tried(file, presets, m);
  for (const auto& file : options.nccl) m.networks.push_back(read_nccl(file, options, presets, rules, m));
  for (const auto& file : options.profiles)
    m.profiles.push_back(read_profile(file, options, m.runs, presets, rules));
  return m;
}

}  // namespace sextant
