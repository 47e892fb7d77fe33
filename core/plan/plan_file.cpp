#include "core/plan/plan_file.hpp"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/former_keys.hpp"
#include "core/base/json_digest.hpp"
#include "core/base/json_io.hpp"
#include "core/base/schema.hpp"
#include "core/plan/former_stack.hpp"
#include "core/plan/plan_digest.hpp"

namespace sextant {

namespace {

constexpr auto kEstimateFields = [](auto& io, auto& e) {
  io.required("value", e.value, at_least(0));
  io.required("lower", e.lower, at_least(0));
  io.required("upper", e.upper, at_least(0));
};

constexpr auto kGoodputFields = [](auto& io, auto& g) {
  io.required("checkpoint_GB", g.checkpoint_GB, at_least(0));
  io.required("save_s", g.save_s, at_least(0));
  io.required("pause_s", g.pause_s, at_least(0));
  io.required("job_mtbf_s", g.job_mtbf_s, above(0));
  io.required("interval_s", g.interval_s, at_least(0));
  io.required("interval_steps", g.interval_steps, at_least(1));
  io.required("goodput", g.goodput, between(0, 1));
  io.required("tokens_per_s", g.tokens_per_s, at_least(0));
};

constexpr auto kPlanJitterFields = [](auto& io, auto& j) {
  io.required("rank_by", j.rank_by, kRankByNames);
  io.required("undisturbed_step_time_s", j.undisturbed_step_time_s, at_least(0));
  io.required("p90_step_time_s", j.p90_step_time_s, at_least(0));
};

constexpr auto kPredictionFields = [](auto& io, auto& p) {
  io.required("step_time_s", p.step_time_s);
  io.required("peak_memory_GiB", p.peak_memory_GiB);
  io.optional("coverage", p.coverage, between(0, 1));
  io.required("tokens_per_s_per_gpu", p.tokens_per_s_per_gpu, at_least(0));
  io.required("model_tflops_per_gpu", p.model_tflops_per_gpu, at_least(0));
  io.required("mfu", p.mfu, at_least(0));
  io.optional("breakdown_s", p.breakdown_s);
  io.optional("goodput", p.goodput);
  io.optional("jitter", p.jitter);
};

constexpr auto kProvenanceFields = [](auto& io, auto& p) {
  io.optional("sextant", p.sextant);
  io.optional("created", p.created);
  io.optional("command", p.command);
};

// `key` says the plan in short, for people; one that says another plan was edited by hand (from_json). `digest` is of all
// that was planned for and predicted: a model or a memory changed by hand leaves predictions of another job.
constexpr auto kFileFields = [](auto& io, auto& f) {
  io.required("schema", f.schema);
  io.ignored("key");
  io.ignored("digest");
  io.required("plan", f.plan);
  io.required("model", f.model);
  io.required("training", f.training);
  io.required("cluster", f.cluster);
  io.required("stack", f.stack);
  io.required("prediction", f.prediction);
  io.optional("provenance", f.provenance);
};

std::string content_digest(const nlohmann::json& j) {
  return digest_without(j, {"digest", "key", "provenance"});
}

void check_estimate(std::vector<Problem>& problems, const std::string& key, const Estimate& e) {
  if (!(e.lower <= e.value && e.value <= e.upper))
    problems.push_back({.file = "",
                        .key = key,
                        .value = fmt::format("{} in {} .. {}", e.value, e.lower, e.upper),
                        .expected = "lower <= value <= upper",
                        .hint = ""});
}

void check_breakdown(std::vector<Problem>& problems, const PlanPrediction& p) {
  constexpr double kRounding = 1e-6;
  if (p.breakdown_s.empty()) return;
  double sum = 0;
  for (const auto& [part, seconds] : p.breakdown_s) sum += seconds;
  if (!(std::abs(sum - p.step_time_s.value) <= kRounding * p.step_time_s.value))
    problems.push_back({.file = "",
                        .key = "prediction.breakdown_s",
                        .value = fmt::format("parts that sum to {}", sum),
                        .expected = fmt::format("parts of the step, which is {}", p.step_time_s.value),
                        .hint = ""});
}

}  // namespace

void to_json(nlohmann::json& j, const Estimate& e) { write_object(j, e, kEstimateFields); }
void from_json(const nlohmann::json& j, Estimate& e) { read_object(j, e, kEstimateFields); }
void to_json(nlohmann::json& j, const PlanGoodput& g) { write_object(j, g, kGoodputFields); }
void from_json(const nlohmann::json& j, PlanGoodput& g) { read_object(j, g, kGoodputFields); }
void to_json(nlohmann::json& j, const PlanJitter& s) { write_object(j, s, kPlanJitterFields); }
void from_json(const nlohmann::json& j, PlanJitter& s) { read_object(j, s, kPlanJitterFields); }
void to_json(nlohmann::json& j, const PlanPrediction& p) { write_object(j, p, kPredictionFields); }
void from_json(const nlohmann::json& j, PlanPrediction& p) { read_object(j, p, kPredictionFields); }
void to_json(nlohmann::json& j, const Provenance& p) { write_object(j, p, kProvenanceFields); }
void from_json(const nlohmann::json& j, Provenance& p) { read_object(j, p, kProvenanceFields); }

std::vector<Problem> validate(const PlanFile& file) {
  std::vector<Problem> problems = validate(file.plan, file.model, file.training);
  for (auto& p : problems) p.key = p.key.empty() ? "plan" : "plan." + p.key;
  if (file.plan.world() > file.cluster.gpus())
    problems.push_back({.file = "",
                        .key = "plan",
                        .value = fmt::format("{} ranks", file.plan.world()),
                        .expected = fmt::format("at most the cluster's {} GPUs", file.cluster.gpus()),
                        .hint = ""});
  if (file.stack.name != file.training.stack)
    problems.push_back({.file = "",
                        .key = "stack.name",
                        .value = file.stack.name,
                        .expected = fmt::format("'{}', as training.stack states", file.training.stack),
                        .hint = ""});
  if (problems.empty())
    if (const auto refusal = refuses(file.stack, file.plan, file.model, file.training))
      problems.push_back({.file = "",
                          .key = "plan",
                          .value = plan_key(file.plan),
                          .expected = "what the stack can do",
                          .hint = refusal->text});
  check_estimate(problems, "prediction.step_time_s", file.prediction.step_time_s);
  check_estimate(problems, "prediction.peak_memory_GiB", file.prediction.peak_memory_GiB);
  check_breakdown(problems, file.prediction);
  return problems;
}

void to_json(nlohmann::json& j, const PlanFile& file) {
  write_object(j, file, kFileFields);
  j["key"] = plan_key(file.plan);
  j["digest"] = content_digest(j);
}

void from_json(const nlohmann::json& j, PlanFile& file) {
  require_schema(j, kPlanSchema, "a plan file is written by: sextant plan ... -o plan.json");
  read_object(j, file, kFileFields);
  const std::string key = plan_key(file.plan);
  if (const auto stated = j.find("key"); stated != j.end() && *stated != key)
    throw ConfigError(
        Problem{.file = "",
                .key = "key",
                .value = stated->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                .expected = fmt::format("\"{}\", which is the key of `plan`", key),
                .hint = "edited by hand? sextant simulate --plan KEY -o FILE writes another layout, with its "
                        "predictions"});
  const auto stated = j.find("digest");
  if (stated == j.end() || *stated != content_digest(j))
    throw ConfigError(Problem{
        .file = "",
        .key = "digest",
        .value = stated == j.end() ? "none" : "that of other contents",
        .expected = "that of this file's plan, model, training, cluster, stack and prediction",
        .hint = fmt::format(
            "edited by hand? its predictions are of another job; sextant simulate --plan {} --stack {} "
            "--model M --cluster C --seq-len N --global-batch N -o FILE writes a new one",
            key, file.stack.name)});
}

void add_missing_digest(nlohmann::json& plan) {
  if (plan.is_object() && !plan.contains("digest")) plan["digest"] = content_digest(plan);
}

PlanFile load_plan_file(const std::filesystem::path& path) {
  PlanFile file;
  with_json_file(path, [&](const nlohmann::json& j) {
    from_json(j, file);
    nlohmann::json stack = j.at("stack");
    file.former = former_text(path.string(), take_present_spelling(stack));
  });
  return file;
}

void save_plan_file(const std::filesystem::path& path, const PlanFile& file) {
  if (auto problems = validate(file); !problems.empty()) throw ConfigError(std::move(problems));
  write_json_file(path, nlohmann::json(file));
}

}  // namespace sextant
