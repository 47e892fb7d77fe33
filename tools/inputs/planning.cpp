#include "tools/inputs/planning.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ostream>
#include <sstream>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "planner/answers/sub_cluster.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "tools/inputs/precision.hpp"
#include "tools/inputs/version.hpp"

namespace sextant {

std::string question_text(const Question& q) {
  const bool pure = precision_name(q.stack, q.training) == "bf16-pure";
  const std::string precision = pure ? " in bf16-pure"
                                : q.training.compute == Dtype::bf16
                                    ? ""
                                    : fmt::format(" in {}", name(q.training.compute));
  return fmt::format(
      "{} ({} parameters) on {} x {} ({} node{}, {}), {}{}; {} sequence{} of {} token{}", q.model.name,
      with_thousands(static_cast<std::uint64_t>(parameter_counts(q.model).total)), q.cluster.gpus(),
      q.cluster.device.name, q.cluster.nodes, q.cluster.nodes == 1 ? "" : "s", q.cluster.fabric.name,
      q.stack.name, precision, q.training.global_batch, q.training.global_batch == 1 ? "" : "s",
      q.training.seq_len, q.training.seq_len == 1 ? "" : "s");
}

void tell_former(const Session& session, const std::string& former) {
  if (!former.empty()) session.terminal.err << wrapped_message(session.terminal, "warning: " + former + '\n');
}

Question read_question(const Session& session, const QuestionOptions& options) {
  Question q = read_question(options, session.presets());
  for (const std::string& former : q.former) tell_former(session, former);
  return q;
}

void print_notes(Session& session, const Question& q) {
  for (const std::string& note : q.notes)
    print_wrapped(session.terminal.out, session.terminal, "note: " + note);
}

std::string question_arguments(const Session& session, const QuestionOptions& o) {
  // Quoted where a shell would read more into it.
  const auto word = [](const std::string& text) {
    return text.find_first_of(" '\"<>|&;()$`\\*?[]{}!#~") == text.npos ? text : "'" + text + "'";
  };
  std::string text;
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) text += fmt::format(" {} {}", flag, word(value));
  };
  add("--from", o.from);
  add("--model", o.model);
  add("--cluster", o.cluster);
  add("--stack", o.stack);
  if (o.seq_len > 0) add("--seq-len", fmt::format("{}", o.seq_len));
  if (o.global_batch > 0) add("--global-batch", fmt::format("{}", o.global_batch));
  add("--precision", o.precision);
  add("--calibration", o.calibration);
  add("--profile", o.profile);
  for (const auto& setting : o.set) add("--set", setting);
  add("--presets", session.common.presets);
  return text;
}

namespace {

// What differs from a sound part, and where it is.
nlohmann::json stated(const Defect& defect) {
  const nlohmann::json sound = Defect{}, all = defect;
  nlohmann::json out = nlohmann::json::object();
  for (const auto& [key, value] : all.items())
    if (value != sound.at(key)) out[key] = value;
  return out;
}

}  // namespace

std::string sized_arguments(const Session& session, const QuestionOptions& o, const ClusterSpec& whole,
                            int gpus) {
  QuestionOptions sized = o;
  std::erase_if(sized.set, [](const std::string& setting) {
    return setting.starts_with("nodes=") || setting.starts_with("defects");
  });
  const ClusterSpec cluster = sub_cluster(whole, gpus);
  sized.set.push_back(fmt::format("nodes={}", cluster.nodes));
  if (!whole.defects.empty()) {
    nlohmann::json defects = nlohmann::json::array();
    for (const Defect& defect : cluster.defects) defects.push_back(stated(defect));
    sized.set.push_back("defects=" + defects.dump());
  }
  return question_arguments(session, sized);
}

std::string limit_arguments(const Question& q) {
  return q.limits.limits.empty() ? "" : fmt::format(" --limit '{}'", to_string(q.limits));
}

PlanFile plan_file_of(const Session& session, const Question& q, const ParallelPlan& plan,
                      const Prediction& p, const TimeSplit& mean, RankBy rank_by) {
  PlanFile file;
  file.model = q.model;
  file.training = q.training;
  file.cluster = q.cluster;
  file.stack = q.stack;
  file.plan = plan;
  const double memory = gib(p.memory.peak);
  file.prediction = {.step_time_s = {p.step.v, p.step_lower.v, p.step_upper.v},
                     .peak_memory_GiB = {memory, gib(p.memory_lower), gib(p.memory_upper)},
                     .coverage = 0.9,
                     .tokens_per_s_per_gpu = p.tokens_per_s_gpu,
                     .model_tflops_per_gpu = p.model_tflops_gpu,
                     .mfu = p.mfu,
                     .breakdown_s = step_parts(mean, p),
                     .goodput = {},
                     .jitter = {}};
  if (p.jitter) file.prediction.jitter = PlanJitter{rank_by, p.jitter->undisturbed.v, p.jitter->p90.v};
  file.provenance = {.sextant = version_text(),
                     .created = fmt::format(
                         "{:%Y-%m-%dT%H:%M:%SZ}",
                         fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()))),
                     .command = session.arguments};
  return file;
}

std::optional<CalibratedUncertainty> use_covariance(const Session& session, const QuestionOptions& options,
                                                    const Question& q, const ParallelPlan& plan,
                                                    Prediction& p) {
  if (options.calibration.empty()) return std::nullopt;
  const CalibratedUncertainty uncertainty =
      calibrated_uncertainty({q.model, q.training, plan, q.cluster, q.stack},
                             load_calibration(options.calibration), session.presets(), p.step_half_width);
  set_step_interval(p, uncertainty.half_width);
  return uncertainty;
}

void use_covariance(const Session& session, const QuestionOptions& options, const Question& q,
                    std::vector<RankedPlan>& ranked) {
  for (RankedPlan& r : ranked) use_covariance(session, options, q, r.plan, r.prediction);
}

std::string ranked_anew_text(const Planning& planning, const RankedAnew& before) {
  return fmt::format(
      "Ranked by {}: the {} fastest layout families under the analytic model, simulated again. By that model "
      "{} is the fastest ({:.3f} s), and no layout of the space takes less than {:.3f} s: {}. That none "
      "beyond "
      "these {} is faster by the measured times is not proved.",
      planning.question().profile->file, before.layouts, plan_key(before.first.plan),
      before.first.prediction.step.v, before.best_bound.v,
      before.proved ? "proved" : "the search ended early (" + before.stopped + ")", before.layouts);
}

nlohmann::ordered_json ranked_anew_json(const RankedAnew& before) {
  return {{"layouts", before.layouts},
          {"analytic_key", plan_key(before.first.plan)},
          {"analytic_step_time_s", before.first.prediction.step.v},
          {"analytic_exact", before.proved},
          {"analytic_best_bound_s", before.best_bound.v}};
}

nlohmann::ordered_json time_split_json(const TimeSplit& split) {
  nlohmann::ordered_json j;
  for (int c = 0; c < kTimeCategories; ++c)
    j[std::string(name(static_cast<TimeCategory>(c)))] = split[static_cast<std::size_t>(c)];
  return j;
}

std::string host_memory_text(const PlanMemory& memory, const NodeSpec& node) {
  if (memory.host_of_node.v <= 0) return "";
  const double used = gib(memory.host_of_node), has = gib(node.host_memory);
  std::string text = fmt::format("host memory per node: {:.4g} of {:.4g} GiB", used, has);
  if (used > has)
    text += ", does not fit";
  else if (used > kHostShare * has)
    text += ": nearly full; the system and the data loaders need some of it too";
  return text;
}

std::string oom_risk_text(double chance) {
  if (chance < kWorthPrinting) return "below 1 %";
  // Cut, not rounded: what is below the limit of 5 % is not printed as 5.0 %.
  return chance < 0.095 ? fmt::format("{:.1f} %", std::floor(1000 * chance) / 10)
                        : fmt::format("{:.0f} %", 100 * chance);
}

std::string overflow_text(double chance) {
  return chance < kSurelyFits ? "" : "OOM risk " + oom_risk_text(chance);
}

std::string jitter_text(const Prediction& p) {
  if (!p.jitter) return "";
  return fmt::format(
      "expected under the stated jitter (the mean of {} sampled steps); {:.3f} s or more in one step of ten, "
      "{:.3f} s undisturbed",
      p.jitter->samples, p.jitter->p90.v, p.jitter->undisturbed.v);
}

nlohmann::ordered_json prediction_json(const ParallelPlan& plan, const Prediction& p) {
  nlohmann::ordered_json j = {{"key", plan_key(plan)},
                              {"plan", nlohmann::json(plan)},
                              {"step_time_s", p.step.v},
                              {"step_time_s_lower", p.step_lower.v},
                              {"step_time_s_upper", p.step_upper.v},
                              {"tokens_per_s", p.tokens_per_s},
                              {"tokens_per_s_per_gpu", p.tokens_per_s_gpu},
                              {"model_tflops_per_gpu", p.model_tflops_gpu},
                              {"mfu", p.mfu},
                              {"mfu_causal_halved", p.mfu_causal},
                              {"exposed_communication_share", p.exposed_share},
                              {"peak_memory_GiB", gib(p.memory.peak)},
                              {"peak_memory_GiB_lower", gib(p.memory_lower)},
                              {"peak_memory_GiB_upper", gib(p.memory_upper)},
                              {"chance_of_overflow", p.chance_of_overflow},
                              {"uncertainty", name(p.uncertainty)},
                              {"available_memory_GiB", gib(p.memory_available)},
                              {"host_memory_GiB", gib(p.memory.host)},
                              {"host_memory_per_node_GiB", gib(p.memory.host_of_node)},
                              {"heaviest_stage", p.memory.stage},
                              {"fits", p.fits},
                              {"usd_per_million_tokens", p.usd_per_million_tokens}};
  if (p.jitter) {
    j["undisturbed_step_time_s"] = p.jitter->undisturbed.v;
    j["expected_step_time_s"] = p.step.v;
    j["p90_step_time_s"] = p.jitter->p90.v;
  }
  if (p.predicted_from) j["predicted_from"] = shares_json(*p.predicted_from);
  return j;
}

nlohmann::ordered_json question_json(const Question& q) {
  return {{"model", q.model.name},
          {"parameters", parameter_counts(q.model).total},
          {"cluster", q.cluster.name},
          {"gpus", q.cluster.gpus()},
          {"stack", q.stack.name},
          {"seq_len", q.training.seq_len},
          {"global_batch", q.training.global_batch},
          {"precision", precision_name(q.stack, q.training)},
          {"notes", q.notes}};
}

nlohmann::ordered_json report_json(const SearchReport& report) {
  nlohmann::ordered_json outcomes = nlohmann::ordered_json::object(),
                         examples = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < kOutcomeNames.size(); ++i) {
    std::string key(kOutcomeNames[i]);
    std::replace(key.begin(), key.end(), ' ', '_');
    outcomes[key] = report.outcomes.by_outcome[i];
  }
  for (const auto& e : report.examples)
    examples.push_back({{"outcome", name(e.outcome)}, {"key", e.plan_key}, {"reason", e.text}});
  return {{"space", report.space},
          {"outcomes", outcomes},
          {"examples", examples},
          {"exact", report.exact},
          {"others_share", report.others_share},
          {"stopped", report.stopped},
          {"best_bound_s", report.best_bound.v},
          {"rebalanced_simulated", report.moved},
          {"refinements_simulated", report.refined},
          {"search_time_s", report.wall_s}};
}

void print_wrapped(std::ostream& out, const Terminal& terminal, const std::string& text, int indent) {
  const int width = std::clamp(terminal.columns, 40, 110);
  int blanks = indent;
  for (const auto& line : wrap(text, width - indent - (indent > 0 ? 2 : 0))) {
    out << std::string(static_cast<std::size_t>(blanks), ' ') << line << '\n';
    if (indent > 0) blanks = indent + 2;
  }
}

std::string with_thousands(std::uint64_t n) {
  std::string text = fmt::format("{}", n);
  for (int i = static_cast<int>(text.size()) - 3; i > 0; i -= 3)
    text.insert(static_cast<std::size_t>(i), ",");
  return text;
}

std::string count_text(std::uint64_t n) {
  if (n >= 1'000'000'000) {
    int exponent = 0;
    auto x = static_cast<double>(n);
    for (; x >= 1000; x /= 1000) exponent += 3;
    return fmt::format("{:.1f}e{}", x, exponent);
  }
  return with_thousands(n);
}

std::string outcomes_text(const OutcomeCounts& outcomes) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < kOutcomeNames.size(); ++i)
    if (outcomes.by_outcome[i] > 0)
      parts.push_back(fmt::format("{} {}", count_text(outcomes.by_outcome[i]), kOutcomeNames[i]));
  return fmt::format("{}", fmt::join(parts, ", "));
}

void print_reasons(std::ostream& out, const Terminal& terminal, const SearchReport& report) {
  std::vector<Outcome> seen;
  for (const auto& example : report.examples) {
    if (std::find(seen.begin(), seen.end(), example.outcome) != seen.end()) continue;
    if (seen.empty()) out << "why others lost, for example:\n";
    seen.push_back(example.outcome);
    print_wrapped(out, terminal,
                  fmt::format("{}: {} {}", name(example.outcome), example.plan_key, example.text), 2);
  }
}

std::string recompute_text(const Recompute& r) {
  if (r.kind == RecomputeKind::none) return "none";
  if (r.kind == RecomputeKind::selective) return "sel";
  return r.layers < 0 ? "full" : fmt::format("full{}", r.layers);
}

}  // namespace sextant
