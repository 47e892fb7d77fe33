#include "core/runs/framework_map.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/annotated.hpp"
#include "core/base/json_io.hpp"
#include "core/base/named_words.hpp"
#include "core/base/words.hpp"
#include "core/runs/row_cluster.hpp"

namespace sextant {

namespace {

constexpr std::array<std::string_view, 2> kSplitNames = {"even", "by_cost"};

constexpr auto kStackRule = [](auto& io, auto& r) {
  io.optional("framework", r.framework);
  io.optional("from", r.from);
  io.optional("precision", r.precision);
  io.optional("notes", r.notes);
  io.optional("overlap", r.overlap);
  io.optional("overlaps_unless_stated", r.overlaps_unless_stated);
  io.optional("min_zero", r.min_zero, between(0, 3));
  io.optional("max_tp", r.max_tp, at_least(1));
  io.optional("max_pp", r.max_pp, at_least(1));
  io.optional("attention", r.attention);
  io.optional("norm", r.norm);
  io.optional("tp_hidden", r.tp_hidden);
  io.required("stack", r.stack);
  io.optional("split", r.split, kSplitNames);
  io.optional("zero_stage", r.zero_stage, between(-1, 3));
  io.optional("memory_kind", r.memory_kind);
  io.optional("whole_logits_bytes", r.whole_logits_bytes, at_least(0));
  io.optional("kin", r.kin);
  io.ignored("note");
};

constexpr auto kClusterRule = [](auto& io, auto& r) {
  io.required("fabric", r.fabric);
  io.optional("framework", r.framework);
  io.optional("gpu", r.gpu);
  io.optional("cluster", r.cluster);
  io.optional("preset", r.preset);
  io.optional("family", r.family);
  io.optional("port_Gbps", r.port_Gbps, above(0));
  io.ignored("note");
};

constexpr auto kRange = [](auto& io, auto& r) {
  io.required("generation", r.generation);
  io.required("runs", r.runs, at_least(1));
  io.required("gpus", r.gpus, at_least(1));
  io.required("seq_len", r.seq_len, at_least(1));
  io.required("parameters", r.parameters, at_least(1));
  io.optional("least_seq_len", r.least_seq_len, at_least(1));
  io.optional("least_parameters", r.least_parameters, at_least(1));
  io.optional("least_GBps", r.least_GBps, above(0));
  io.optional("most_GBps", r.most_GBps, above(0));
  io.optional("devices", r.devices);
};

constexpr auto kMap = [](auto& io, auto& m) {
  io.ignored("about");
  io.required("frameworks", m.frameworks);
  io.required("classes", m.classes);
  io.required("clusters", m.clusters);
  io.optional("class_interval", m.class_interval, at_least(1));
  io.optional("measured", m.measured);
  io.optional("measured_stacks", m.measured_stacks);
};

void add_note(ResolvedRun& r, const std::string& text) { r.note += (r.note.empty() ? "" : "; ") + text; }

// Whether software of that date is younger than a rule asks for. Without a year it is taken as the latest.
// From its year on ("2024-05", "03/2021" is "2021"); nothing without one.
std::string dated(const std::string& date) {
  const auto digit = [&](std::size_t i) { return i < date.size() && date[i] >= '0' && date[i] <= '9'; };
  for (std::size_t at = 0; at + 4 <= date.size(); ++at) {
    const std::string_view century = std::string_view(date).substr(at, 2);
    if ((century == "19" || century == "20") && digit(at + 2) && digit(at + 3) && !digit(at + 4) &&
        (at == 0 || !digit(at - 1)))
      return date.substr(at);
  }
  return "";
}
bool is_from(const std::string& date, const std::string& from) {
  const std::string known = dated(date);
  return known.empty() || known >= from;
}

bool fits(const StackRule& rule, const RunRow& row) {
  if (!rule.framework.empty() && !names(row.framework, rule.framework, Ends::with_word)) return false;
  if (!rule.notes.empty() && !names(row.notes, rule.notes, Ends::with_word)) return false;
  if (!rule.from.empty() && !is_from(row.date, rule.from)) return false;
  if (!rule.precision.empty() && rule.precision != name(row.training.compute)) return false;
  if (!rule.overlap.empty() &&
      (rule.overlap == "yes") != (row.overlap_stated && row.plan.overlap_param_gather))
    return false;
  // What whoever made the table assumed is no fact of the framework.
  const auto stated = [&](const char* column) {
    return std::ranges::find(row.assumed, column) == row.assumed.end();
  };
  if (!rule.attention.empty() && (!row.attention || rule.attention != name(*row.attention))) return false;
  if (!rule.norm.empty() &&
      (!row.norm_fused || !stated("norm_kernel") || (rule.norm == "fused") != *row.norm_fused))
    return false;
  if (!rule.tp_hidden.empty() && (!row.overlap_stated || !stated("overlap") || row.plan.tp < 2 ||
                                  (rule.tp_hidden == "yes") != row.plan.overlap_tp))
    return false;
  return row.plan.zero_stage >= rule.min_zero && row.plan.tp <= rule.max_tp && row.plan.pp <= rule.max_pp;
}

// ", for what it states: tensor parallelism overlapped, norm unfused"; nothing where a class asks for no such thing.
std::string reason_of(const StackRule& rule) {
  std::vector<std::string> facts;
  if (!rule.attention.empty()) facts.push_back(rule.attention + " attention");
  if (!rule.precision.empty()) facts.push_back(rule.precision);
  if (rule.min_zero > 0) facts.push_back(fmt::format("ZeRO {} or more", rule.min_zero));
  if (!rule.norm.empty()) facts.push_back("norm " + rule.norm);
  if (!rule.tp_hidden.empty())
    facts.push_back(rule.tp_hidden == "yes" ? "TP communication overlapped"
                                            : "TP communication not overlapped");
  if (!rule.overlap.empty())
    facts.push_back(rule.overlap == "yes" ? "gathers overlapped" : "gathers not overlapped");
  return facts.empty() ? "" : fmt::format(" for what it states ({})", fmt::join(facts, ", "));
}

// How the row names stages, as the rule's stack calls them.
ParallelPlan plan_under(const StackRule& rule, const RunRow& row) {
  ParallelPlan plan = row.plan;
  if (rule.zero_stage >= 0) plan.zero_stage = rule.zero_stage;
  if (plan.zero_stage == 0) plan.shard_degree = 0;  // nothing is sharded
  return plan;
}

// A policy by operation where the stack has none of its own: taken as one that repeats cheap operations only.
bool by_no_policy(const RunRow& row, const StackSpec& stack) {
  return row.recompute_by_operation && !stack.rules.selective_by_operation;
}

// Why the stack cannot do what the row did, or nothing. Overlap is a matter of degree, how layers are dealt the stack's own.
std::optional<Rejection> cannot(StackSpec stack, ParallelPlan plan, const RunRow& row) {
  if (by_no_policy(row, stack)) plan.recompute = {};
  plan.overlap_grad_reduce = plan.overlap_param_gather = plan.overlap_tp = false;
  stack.can.uneven_stages = UnevenStages::any;
  // Whether the update is sharded is not what tells classes apart.
  if (plan.zero_stage <= 1) {
    plan.zero_stage = lowest_zero_stage(stack.can, plan, row.training.parameter);
    plan.shard_degree = 0;
  }
  return refuses(stack, plan, row.model, row.training);
}

bool can_do(const StackRule& rule, const RunRow& row, const PresetsRead& read,
            const std::filesystem::path& presets) {
  return !cannot(read.stack(rule.stack, presets), plan_under(rule, row), row);
}

// The first that fits. A class, or a rule by a date that the row does not state, is taken only where its stack can do what the
// row did; of those that cannot, the first.
const StackRule* first_fit(const std::vector<StackRule>& rules, const RunRow& row, const PresetsRead& read,
                           const std::filesystem::path& presets) {
  const StackRule* first = nullptr;
  for (const StackRule& rule : rules) {
    if (!fits(rule, row)) continue;
    // Below a rule by date that an undated row was not given, the older ones are guesses as well.
    const bool guessed =
        rule.framework.empty() || (dated(row.date).empty() && (first != nullptr || !rule.from.empty()));
    if (!guessed || can_do(rule, row, read, presets)) return &rule;
    if (!first) first = &rule;
  }
  return first;
}

// What the row states replaces what the stack's preset says.
void apply_facts(const RunRow& row, const StackRule& rule, StackSpec& stack, TrainingSpec& training,
                 ParallelPlan& plan) {
  // A column that was assumed by whoever made the table is not a fact: there the preset knows better.
  const auto stated = [&](const char* column) {
    return std::find(row.assumed.begin(), row.assumed.end(), column) == row.assumed.end();
  };
  if (row.attention && stated("attention")) stack.kernels.attention = *row.attention;
  if (row.norm_fused && stated("norm_kernel")) stack.kernels.norm_fused = *row.norm_fused;
  if (!row.data_overlap_stated) {
    plan.overlap_grad_reduce = rule.overlaps_unless_stated && stack.can.overlap_grad_reduce;
    plan.overlap_param_gather = rule.overlaps_unless_stated && stack.can.overlap_param_gather;
  }
  if (!row.overlap_stated) plan.overlap_tp = false;
  plan.overlap_tp = plan.overlap_tp && plan.tp > 1 && may_overlap_tp(stack.can, plan);
  const Dtype own = own_gradient_format(stack, training.parameter);
  if (!row.gradient) training.reduction = own;
  if (!row.gradient || stack.memory.runs_state_reduction) training.gradient = own;
}

}  // namespace

void to_json(nlohmann::json& j, const MeasuredRange& r) { write_object(j, r, kRange); }
void from_json(const nlohmann::json& j, MeasuredRange& r) { read_object(j, r, kRange); }
void to_json(nlohmann::json& j, const StackRule& r) { write_object(j, r, kStackRule); }
void from_json(const nlohmann::json& j, StackRule& r) { read_object(j, r, kStackRule); }
void to_json(nlohmann::json& j, const ClusterRule& r) { write_object(j, r, kClusterRule); }
void from_json(const nlohmann::json& j, ClusterRule& r) { read_object(j, r, kClusterRule); }
void from_json(const nlohmann::json& j, FrameworkMap& m) { read_object(j, m, kMap); }

FrameworkMap load_framework_map(const std::filesystem::path& preset_dir) {
  const auto path = preset_dir / "framework_map.json";
  FrameworkMap map;
  with_file(path.string(), [&] { from_json(read_plain_values(path), map); });
  return map;
}

std::string far_from_runs(const FrameworkMap& map, const ModelSpec& model, const TrainingSpec& training,
                          const ClusterSpec& cluster) {
  std::string far = far_from_measured(map.measured, model, training, cluster);
  const bool own_machine = cluster.device.generation == "cpu";
  if (own_machine || map.measured_stacks.empty() ||
      std::ranges::find(map.measured_stacks, training.stack) != map.measured_stacks.end())
    return far;
  return (far.empty() ? "" : far + "; ") + "constants assumed, not fitted to " + training.stack + " runs";
}

LayerSplit split_of(const FrameworkMap& map, std::string_view stack) {
  const auto rule = std::ranges::find(map.frameworks, stack, &StackRule::stack);
  return rule == map.frameworks.end() ? LayerSplit::even : rule->split;
}

std::vector<LayerRange> split_layers(const ModelSpec& m, int chunks, LayerSplit split) {
  if (chunks <= 1) return {};
  std::vector<LayerRange> out;
  if (split != LayerSplit::by_cost && m.n_layers % chunks != 0 && (m.n_layers + 2) % chunks == 0) {
    const int each = (m.n_layers + 2) / chunks;
    for (int c = 0, first = 0; c < chunks; ++c) {
      const int ends = (c == 0 ? 1 : 0) + (c == chunks - 1 ? 1 : 0);
      out.push_back({first, each - ends});
      first += each - ends;
    }
    return out;
  }
  if (split == LayerSplit::by_cost) {
    if (chunks > m.n_layers) return {};  // no plan: whoever judges it says so
    // Weights: a layer 4 h^2 + 3 h f, the head V h, everything else nothing (nanotron,
    // get_block_compute_costs); the block that crosses a stage's share is still its own.
    const double h = m.hidden, layer = 4 * h * h + 3 * h * m.ffn_hidden,
                 head = static_cast<double>(m.vocab_size) * h;
    const double share = (m.n_layers * layer + head) / chunks;
    double sum = 0;
    LayerRange range{0, 0};
    for (int l = 0; l < m.n_layers; ++l) {
      sum += layer;
      ++range.count;
      // A share that is met exactly is full: seen in peaks of runs whose head weighs four layers.
      if (sum > share * (static_cast<double>(out.size()) + 1) * (1 - 1e-9) &&
          static_cast<int>(out.size()) < chunks - 1) {
        out.push_back(range);
        range = {l + 1, 0};
      }
    }
    out.push_back(range);
    while (static_cast<int>(out.size()) < chunks) out.push_back({m.n_layers, 0});
    // A stage that would hold the head alone gets one layer: plans have no empty chunk.
    for (std::size_t c = out.size() - 1; c > 0 && out[c].count < 1; --c) {
      const int missing = 1 - out[c].count;
      out[c] = {out[c].first - missing, 1};
      out[c - 1].count -= missing;
    }
    return out;
  }
  return {};
}

namespace {

// The rule of the row's framework, or of its class, of which the run then says so.
const StackRule& rule_for(const RunRow& row, const FrameworkMap& map, const std::filesystem::path& preset_dir,
                          ResolvedRun& r) {
  const StackRule* rule = first_fit(map.frameworks, row, map.presets, preset_dir);
  if (rule == nullptr) {
    rule = first_fit(map.classes, row, map.presets, preset_dir);
    r.by_class = true;
    r.interval = map.class_interval;
  }
  if (rule == nullptr)
    throw ConfigError(Problem{fmt::format("{}:{}", row.file, row.line), "framework", row.framework,
                              "a framework of framework_map.json, or a class that fits", ""});
  return *rule;
}

// What is guessed of the stack.
void note_stack(const RunRow& row, const StackRule& rule, const FrameworkMap& map, ResolvedRun& r) {
  if (r.by_class)
    r.note = fmt::format("framework '{}' is not known; taken as {}{}", row.framework, r.stack.name,
                         reason_of(rule));
  if (rule.kin) {
    add_note(r, fmt::format("framework '{}' has no constants of its own; taken as {}", row.framework,
                            r.stack.name));
    r.interval = map.class_interval;
  }
  const auto by_date = [&](const StackRule& other) { return !other.from.empty() && fits(other, row); };
  if (dated(row.date).empty() && !r.by_class && std::ranges::any_of(map.frameworks, by_date)) {
    add_note(r, fmt::format(
                    "{}; taken as the latest that can do it, {}",
                    row.date.empty() ? "no date is stated" : fmt::format("date '{}' has no year", row.date),
                    r.stack.name));
    r.interval = std::max(r.interval, map.class_interval);
  }
}

// What the stack does otherwise than the row states, or cannot do.
void settle_plan(const RunRow& row, const StackRule& rule, const FrameworkMap& map, ResolvedRun& r) {
  if (rule.zero_stage >= 0 && rule.zero_stage != row.plan.zero_stage) {
    add_note(r, fmt::format("ZeRO {} instead of the stated {}: how {} works", rule.zero_stage,
                            row.plan.zero_stage, r.stack.name));
  }
  if (const int most = r.stack.can.max_zero_with_pp; r.plan.pp > 1 && r.plan.zero_stage > most) {
    add_note(r, fmt::format("ZeRO {} is taken as {}, the most that {} does beside pipeline stages",
                            r.plan.zero_stage, most, r.stack.name));
    r.plan.zero_stage = most;
    if (most == 0) r.plan.shard_degree = 0;
    r.interval = std::max(r.interval, map.class_interval);
  }
  if (by_no_policy(row, r.stack)) {
    r.plan.recompute = {};
    add_note(r, fmt::format("its recomputation by operation is taken as none, which {} does not know",
                            r.stack.name));
  }
  if (const auto why = cannot(r.stack, r.plan, row)) {
    add_note(r, fmt::format("not what {} can do: {}", r.stack.name, why->text));
    r.interval = std::max(r.interval, map.class_interval);
  }
}

// Scales of blocks (mxfp8): casts and GEMMs may cost more than those that were measured.
void settle_precision(const RunRow& row, const FrameworkMap& map, ResolvedRun& r) {
  if (lower(row.precision) == "fp8_rowwise") {
    r.stack.kernels.fp8_scales = Fp8Scales::row;
  } else if (!row.precision.empty() && r.training.compute == Dtype::fp8 &&
             lower(row.precision) != name(Dtype::fp8)) {
    add_note(r, fmt::format("{} is taken as {}", row.precision, name(Dtype::fp8)));
    r.interval = std::max(r.interval, map.class_interval);
  }
}

// What is wrong with the machine that a row states is said of the row: no option names it.
ClusterOfRow stated_cluster(const RunRow& row, const FrameworkMap& map,
                            const std::filesystem::path& preset_dir) {
  try {
    return cluster_of(row, map, preset_dir);
  } catch (const ConfigError& e) {
    std::vector<Problem> problems = e.problems();
    for (Problem& p : problems) {
      p.file = fmt::format("{}:{}: {}", row.file, row.line, row.run_id);
      if (p.key.empty()) p.key = "gpu";
    }
    throw ConfigError(std::move(problems));
  }
}

}  // namespace

ResolvedRun resolve(const RunRow& row, const FrameworkMap& map, const std::filesystem::path& preset_dir) {
  ResolvedRun r;
  const StackRule& rule = rule_for(row, map, preset_dir, r);
  r.model = row.model;
  r.training = row.training;
  r.plan = plan_under(rule, row);
  ClusterOfRow cluster = stated_cluster(row, map, preset_dir);
  r.stack = map.presets.stack(rule.stack, preset_dir, cluster.spec.device.generation);
  r.training.stack = r.stack.name;
  note_stack(row, rule, map, r);
  settle_plan(row, rule, map, r);
  apply_facts(row, rule, r.stack, r.training, r.plan);
  if (rule.whole_logits_bytes > 0) hold_whole_logits(r.stack.memory, rule.whole_logits_bytes);
  r.memory_kind = row.memory_kind == "unknown" ? rule.memory_kind : row.memory_kind;
  r.plan.chunks = split_layers(row.model, row.plan.pp * row.plan.vp, rule.split);
  if (row.memory_kind == "unknown" && row.peak_memory_GiB && !rule.memory_kind.empty())
    add_note(r, fmt::format("its peak is taken as {}", rule.memory_kind));
  r.cluster = std::move(cluster.spec);
  if (!cluster.note.empty()) add_note(r, cluster.note);
  if (cluster.guessed) r.interval = std::max(r.interval, map.class_interval);
  settle_precision(row, map, r);
  const auto far = r.by_class ? far_from_measured(map.measured, r.model, r.training, r.cluster)
                              : far_from_runs(map, r.model, r.training, r.cluster);
  if (!far.empty()) {
    r.interval *= map.class_interval;
    add_note(r, "far from any measured run: " + far);
  }
  return r;
}

}  // namespace sextant
