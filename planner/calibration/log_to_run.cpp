#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/dtype.hpp"
#include "core/base/error.hpp"
#include "planner/calibration/log_parameters.hpp"
#include "planner/calibration/run_log.hpp"

namespace sextant {

namespace {

class Filling {
 public:
  Filling(const RunLog& log, ModelSpec& model, TrainingSpec& training, ParallelPlan& plan,
          const LogContext& context)
      : log_(log), model_(model), training_(training), plan_(plan), context_(context) {}

  std::vector<std::string> fill() {
    set("layers", model_.n_layers, true, "--model");
    set("hidden", model_.hidden, true, "--model");
    set("heads", model_.n_heads, true, "--model");
    set("ffn_hidden", model_.ffn_hidden, true, "--model");
    set("seq_len", training_.seq_len, context_.seq_len, "--seq-len");
    set("tp", plan_.tp, known("tp"), kPlan);
    set("pp", plan_.pp, known("pp"), kPlan);
    set("cp", plan_.cp, known("cp"), kPlan);
    set("dp", plan_.dp, known("dp"), kPlan);
    set("micro_batch", plan_.micro_batch, known("mbs"), kPlan);
    fill_gpus();
    fill_batch();
    fill_stages();
    fill_state();
    fill_recompute();
    fill_overlap();
    fill_formats();
    if (auto problem = of_another_model(log_, model_, plan_)) problems_.push_back(std::move(*problem));
    if (!problems_.empty()) throw ConfigError(std::move(problems_));
    return std::move(notes_);
  }

 private:
  std::optional<std::int64_t> says(const char* column) const {
    const auto it = log_.says.find(column);
    if (it == log_.says.end()) return std::nullopt;
    return it->second;
  }

  static constexpr const char* kPlan = "the layout (--plan, or behind = of --log)";

  // Whether the caller states that part of a layout; a whole plan states all.
  bool known(std::string_view part) const {
    return context_.plan &&
           (!context_.parts || std::ranges::find(*context_.parts, part) != context_.parts->end());
  }

  void contradiction(const char* column, std::string found, std::string expected, std::string hint = "") {
    const auto line = log_.lines.find(column);
    problems_.push_back(
        {line == log_.lines.end() ? log_.file : fmt::format("{}:{}", log_.file, line->second), column,
         std::move(found), std::move(expected),
         hint.empty() ? "one of the two is another run's: correct it, or leave it out and the log's is "
                        "used"
                      : std::move(hint)});
  }

  void set(const char* column, int& target, bool known, const char* where) {
    const auto value = says(column);
    if (!value) return;
    if (known && *value != target)
      contradiction(column, fmt::format("{}", *value), fmt::format("{}, as {} says", target, where));
    else
      target = static_cast<int>(*value);
  }

  void fill_gpus() {
    const auto gpus = says("gpus");
    if (!degrees_fit(plan_)) return;
    if (!known("dp") && !says("dp"))
      plan_.dp =
          std::max(1, static_cast<int>(gpus.value_or(context_.gpus)) / (plan_.tp * plan_.pp * plan_.cp));
    if (gpus && *gpus != plan_.world())
      contradiction("gpus", fmt::format("{}", *gpus),
                    fmt::format("{} of the layout {}", plan_.world(), plan_key(plan_)));
    if (problems_.empty() && plan_.world() < context_.gpus)
      notes_.push_back(fmt::format("it ran on {} of the {} GPUs of --cluster", plan_.world(), context_.gpus));
  }

  // Equal when printed with three digits.
  static bool alike(std::int64_t a, std::int64_t b) {
    return fmt::format("{:.2e}", static_cast<double>(a)) == fmt::format("{:.2e}", static_cast<double>(b));
  }

  void fill_batch() {
    auto printed = says("global_batch");
    if (log_.batch_tokens && training_.seq_len > 0) {
      printed = std::llround(*log_.batch_tokens / training_.seq_len);
      const std::int64_t stated = training_.global_batch;
      if (context_.global_batch &&
          std::abs(*log_.batch_tokens / training_.seq_len / static_cast<double>(stated) - 1) < 0.006)
        return;  // printed with three digits
    }
    const std::int64_t at_once = std::int64_t{plan_.micro_batch} * plan_.dp;
    const bool counted = log_.accumulation && (context_.plan || says("micro_batch"));
    const std::optional<std::int64_t> product =
        counted ? std::optional(at_once * *log_.accumulation) : std::nullopt;
    const bool rounded = printed && (log_.rounded_batch || log_.batch_tokens);
    if (rounded && product && !alike(*printed, *product)) {
      contradiction("global_batch", fmt::format("about {}", *printed),
                    fmt::format("micro-batch {} x {} x {} ranks = {}", plan_.micro_batch, *log_.accumulation,
                                plan_.dp, *product));
      return;
    }
    std::optional<std::int64_t> batch = rounded || !printed ? product : printed;
    if (context_.global_batch) {
      const std::int64_t stated = training_.global_batch;
      const bool agrees = batch ? *batch == stated : !printed || alike(*printed, stated);
      if (!agrees)
        contradiction("global_batch", fmt::format("{}", batch ? *batch : *printed),
                      fmt::format("{}, as --global-batch says", stated));
      return;
    }
    if (rounded && !batch) batch = only_multiple(*printed, at_once);
    if (batch) training_.global_batch = static_cast<int>(*batch);
  }

  // The one batch that these ranks can make and that is printed so; nothing when the layout leaves a choice.
  std::optional<std::int64_t> only_multiple(std::int64_t printed, std::int64_t at_once) {
    const std::int64_t below = printed / at_once * at_once;
    std::vector<std::int64_t> fit;
    for (std::int64_t n = below; n > 0 && alike(n, printed); n -= at_once) fit.push_back(n);
    for (std::int64_t n = below + at_once; alike(n, printed); n += at_once) fit.push_back(n);
    if (fit.size() == 1) {
      notes_.push_back(fmt::format("global batch {}: the log says about {}, and {} go at once", fit.front(),
                                   printed, at_once));
      return fit.front();
    }
    problems_.push_back({log_.file, "global_batch",
                         fmt::format("about {} (printed with three digits)", printed),
                         fmt::format("a batch that is a multiple of micro_batch * dp = {}", at_once),
                         "state it: --global-batch"});
    return std::nullopt;
  }

  void fill_stages() {
    auto chunks = says("virtual_stages");
    if (const auto per_chunk = says("layers_per_chunk"); per_chunk && *per_chunk > 0 && plan_.pp > 0)
      chunks = std::max<std::int64_t>(1, model_.n_layers / (plan_.pp * *per_chunk));
    if (plan_.pp == 1) chunks.reset();  // no stages to cut
    if (chunks && known("vp") && *chunks != plan_.vp)
      contradiction(says("layers_per_chunk") ? "layers_per_chunk" : "virtual_stages",
                    fmt::format("{} chunks a stage", *chunks),
                    fmt::format("vp {}, as {} says", plan_.vp, kPlan));
    if (known("vp")) return;
    const bool usual = plan_.vp > 1 ? plan_.schedule == PipelineSchedule::interleaved
                                    : plan_.schedule == PipelineSchedule::one_f_one_b;
    if (chunks) plan_.vp = static_cast<int>(*chunks);
    if (!context_.plan || usual)
      plan_.schedule = plan_.vp > 1 ? PipelineSchedule::interleaved : PipelineSchedule::one_f_one_b;
  }

  // ZeRO stage by what shards: Megatron-LM's optimizer or its FSDP, PyTorch's FSDP, DeepSpeed.
  std::optional<std::int64_t> stage() const {
    if (says("torch_fsdp2") == 1) return 3;
    if (says("megatron_fsdp") == 1) return says("fsdp_stage").value_or(0);
    return says("zero_stage");
  }

  void fill_state() {
    const auto zero = stage();
    // torchtitan does not print whether it keeps gathered parameters, which is ZeRO 2 of ours.
    const bool alike = log_.format == LogFormat::torchtitan && zero && *zero >= 2 && plan_.zero_stage >= 2;
    if (zero && known("z") && *zero != plan_.zero_stage && !alike)
      contradiction(
          "zero_stage", fmt::format("{}", *zero), fmt::format("{}, as {} says", plan_.zero_stage, kPlan),
          log_.format == LogFormat::megatron_lm || log_.format == LogFormat::megatron_bridge
              ? "it is 1 with use_distributed_optimizer True: write z1 or z0 as the run was, or leave it out"
              : "");
    if (zero && !known("z")) plan_.zero_stage = static_cast<int>(*zero);
    if (const auto sequence = says("sequence_parallel"); plan_.tp > 1 && (sequence || !context_.plan)) {
      const bool on = sequence == 1;
      if (context_.plan && on != plan_.sequence_parallel)
        contradiction(
            "sequence_parallel", on ? "on" : "off",
            fmt::format("{}, as {} says", plan_.sequence_parallel ? "on" : "off", kPlan),
            on ? "write sp in the key" : "write nosp in the key: without it a layout with TP has it on");
      plan_.sequence_parallel = on;
    } else if (!context_.plan) {
      plan_.sequence_parallel = false;
    }
    if (const auto shard = says("shard_degree"); shard && *shard > 1) {
      const int degree = *shard < plan_.dp ? static_cast<int>(*shard) : 0;
      const int stated = plan_.shard_degree == plan_.dp ? 0 : plan_.shard_degree;
      if (context_.plan && degree != stated && says("dp") == plan_.dp)
        contradiction("shard_degree", fmt::format("{}", *shard),
                      fmt::format("{}, as {} says", stated == 0 ? plan_.dp : stated, kPlan),
                      fmt::format("write sd{} in the key", *shard));
      if (!context_.plan) plan_.shard_degree = degree;
    }
    fill_offload();
  }

  void fill_offload() {
    if (const auto host = says("optimizer_offload")) {
      if (context_.plan && (*host == 1) != (plan_.optimizer_offload > 0))
        contradiction("optimizer_offload", *host == 1 ? "on" : "off",
                      fmt::format("{}, as {} says", plan_.optimizer_offload > 0 ? "on" : "off", kPlan),
                      *host == 1 ? "write oo100 in the key, or the share in percent" : "");
      else if (!context_.plan && *host == 1)
        plan_.optimizer_offload = 1;
    }
    if (says("parameter_offload") == 1) {
      if (context_.plan && !plan_.parameter_offload)
        contradiction("parameter_offload", "on", fmt::format("off, as {} says", kPlan),
                      "write po in the key");
      plan_.parameter_offload = true;
    }
  }

  void fill_formats() {
    const auto use = [&](const char* key, std::optional<Dtype> said, bool stated, const char* option,
                         Dtype& to) {
      if (!said) return;
      if (stated && *said != to)
        contradiction(key, std::string(name(*said)), fmt::format("{}, as {} says", name(to), option));
      to = *said;
    };
    use("compute", log_.compute, context_.compute, "--precision, --set training.compute or the plan file",
        training_.compute);
    use("gradient", log_.gradient, context_.gradient, "--set training.gradient or the plan file",
        training_.gradient);
    use("reduction", log_.reduction, context_.reduction, "--set training.reduction or the plan file",
        training_.reduction);
    if (log_.compute && !context_.compute)
      training_.parameter = *log_.compute == Dtype::fp8 ? Dtype::bf16 : *log_.compute;
  }

  void fill_recompute() {
    const auto kind = says("recompute");
    if (!kind) return;
    const int chunk = std::max(1, model_.n_layers / std::max(1, plan_.pp * plan_.vp));
    Recompute recompute;
    if (*kind == 2) {
      recompute.kind = RecomputeKind::full;
      const auto layers = says("recompute_layers");
      if (says("recompute_block") == 1 && layers && *layers < chunk)
        recompute.layers = static_cast<int>(*layers);
    } else if (*kind == 1 && log_.format == LogFormat::torchtitan) {
      // Every n-th layer in full, or PyTorch's policy by operation: as in the schema of runs (core/runs/run_row.cpp).
      const auto every = says("recompute_every");
      if (every && *every > 0)
        recompute = {RecomputeKind::full, std::max(1, chunk / static_cast<int>(*every))};
      else if (context_.selective_by_operation)
        recompute.kind = RecomputeKind::selective;
      if (!every)
        notes_.push_back(
            fmt::format("selective activation checkpointing is taken as 'op', {}: the log does not print "
                        "selective_ac_option",
                        context_.selective_by_operation ? "by operation" : "cheap operations only"));
    } else if (*kind == 1) {
      recompute.kind = RecomputeKind::selective;
    }
    if (recompute.layers >= chunk) recompute.layers = -1;
    if (context_.plan && recompute.kind != plan_.recompute.kind)
      contradiction("recompute", std::string(name(recompute.kind)),
                    fmt::format("{}, as {} says", name(plan_.recompute.kind), kPlan),
                    recompute.kind == RecomputeKind::full        ? "write full in the key"
                    : recompute.kind == RecomputeKind::selective ? "write sel in the key"
                                                                 : "leave it out of the key");
    else if (!context_.plan)
      plan_.recompute = recompute;
  }

  // A key leaves these out where they are as usual: what the log says is more exact.
  void fill_overlap() {
    if (const auto x = says("overlap_grad_reduce")) plan_.overlap_grad_reduce = *x == 1;
    if (const auto x = says("overlap_param_gather")) plan_.overlap_param_gather = *x == 1;
    if (const auto x = says("overlap_tp")) plan_.overlap_tp = *x == 1 && plan_.tp > 1;
  }

  const RunLog& log_;
  ModelSpec& model_;
  TrainingSpec& training_;
  ParallelPlan& plan_;
  const LogContext& context_;
  std::vector<Problem> problems_;
  std::vector<std::string> notes_;
};

}  // namespace

std::vector<std::string> apply_log(const RunLog& log, ModelSpec& model, TrainingSpec& training,
                                   ParallelPlan& plan, const LogContext& context) {
  return Filling(log, model, training, plan, context).fill();
}

}  // namespace sextant
