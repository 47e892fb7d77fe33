#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/dtype.hpp"
#include "core/base/error.hpp"
#include "planner/calibration/log_batch.hpp"
#include "planner/calibration/log_model.hpp"
#include "planner/calibration/log_parameters.hpp"
#include "planner/calibration/log_settled.hpp"
#include "planner/calibration/log_stages.hpp"
#include "planner/calibration/run_log.hpp"

namespace sextant {

namespace {

class Filling {
 public:
  Filling(const RunLog& log, ModelSpec& model, TrainingSpec& training, ParallelPlan& plan,
          const LogContext& context)
      : log_(log), model_(model), training_(training), plan_(plan), context_(context) {}

  std::vector<std::string> fill() {
    compare("layers", model_.n_layers, "--model");
    compare("hidden", model_.hidden, "--model");
    compare("heads", model_.n_heads, "--model");
    compare("ffn_hidden", model_.ffn_hidden, "--model");
    fill_seq_len();
    set("tp", plan_.tp, known("tp"), kPlan);
    set("pp", plan_.pp, known("pp"), kPlan);
    set("cp", plan_.cp, known("cp"), kPlan);
    set("dp", plan_.dp, known("dp"), kPlan);
    set("micro_batch", plan_.micro_batch, known("mbs"), kPlan);
    refuse_unfit();
    fill_gpus();
    fill_batch();
    fill_stages();
    refuse_unfit();
    fill_state();
    fill_recompute();
    fill_overlap();
    fill_formats();
    compare_model();
    compare_settled();
    if (!problems_.empty()) throw ConfigError(std::move(problems_));
    return std::move(notes_);
  }

 private:
  std::optional<std::int64_t> says(const char* column) const { return log_.said(column); }

  static constexpr const char* kPlan = "the layout (--plan, or behind = of --log)";

  // Whether the caller states that part of a layout; a whole plan states all.
  bool known(std::string_view part) const {
    return context_.plan &&
           (!context_.parts || std::ranges::find(*context_.parts, part) != context_.parts->end());
  }

  void inconsistent(const char* column, std::string found, std::string expected, std::string hint = "") {
    problems_.push_back(
        {log_.place_of(column), column, std::move(found), std::move(expected),
         hint.empty() ? "one of the two is another run's: correct it, or leave it out and the log's is "
                        "used"
                      : std::move(hint)});
  }

  // `stated`: by the caller, at that place.
  void compare(const char* column, int stated, const char* where) {
    if (const auto value = says(column); value && *value != stated)
      inconsistent(column, fmt::format("{}", *value), fmt::format("{}, as {} states", stated, where));
  }

  void set(const char* column, int& target, bool known, const char* where) {
    if (known) return compare(column, target, where);
    if (const auto value = says(column)) target = static_cast<int>(*value);
  }

  // Of more ranks than there can be nothing else is compared: their number would not fit its type.
  void refuse_unfit() {
    if (degrees_fit(plan_)) return;
    problems_.push_back(
        {log_.place_of("tp"), "tp * cp * pp * dp",
         fmt::format("tp {}, cp {}, pp {} (vp {}), dp {}", plan_.tp, plan_.cp, plan_.pp, plan_.vp, plan_.dp),
         fmt::format("degrees of 1 or more, at most {} ranks and {} chunks (pp * vp)", kMaxWorld, kMaxChunks),
         ""});
    throw ConfigError(std::move(problems_));
  }

  void fill_seq_len() {
    set("seq_len", training_.seq_len, context_.seq_len, "--seq-len");
    const auto settled = settled_seq_len(log_);
    if (says("seq_len") || context_.seq_len || !settled) return;
    training_.seq_len = *settled;
    notes_.push_back(fmt::format("sequence length {}: {}", *settled, log_.settled.at("seq_len").by));
  }

  void compare_model() {
    if (auto problem = of_another_model(log_, model_, plan_)) problems_.push_back(std::move(*problem));
    for (Problem& problem : of_another_shape(log_, model_, plan_)) problems_.push_back(std::move(problem));
    for (std::string& note : take_forms(log_, model_)) notes_.push_back(std::move(note));
  }

  // What a line states and contradicts has been named already.
  void compare_settled() {
    for (Problem& problem : against_settled(log_, training_, plan_))
      if (std::ranges::find(problems_, problem.key, &Problem::key) == problems_.end())
        problems_.push_back(std::move(problem));
  }

  void fill_gpus() {
    const auto gpus = says("gpus");
    if (!known("dp") && !says("dp"))
      plan_.dp =
          std::max(1, static_cast<int>(gpus.value_or(context_.gpus)) / (plan_.tp * plan_.pp * plan_.cp));
    if (gpus && *gpus != plan_.world())
      inconsistent("gpus", fmt::format("{}", *gpus),
                   fmt::format("{} of the layout {}", plan_.world(), plan_key(plan_)));
    if (problems_.empty() && plan_.world() < context_.gpus)
      notes_.push_back(fmt::format("it ran on {} of the {} GPUs of --cluster", plan_.world(), context_.gpus));
  }

  void fill_batch() {
    auto printed = says("global_batch");
    if (log_.batch_tokens && training_.seq_len > 0) {
      printed = std::llround(*log_.batch_tokens / training_.seq_len);
      const std::int64_t stated = training_.global_batch;
      if (context_.global_batch && is_printed_so(log_, training_.seq_len, stated)) return;
    }
    const std::int64_t at_once = std::int64_t{plan_.micro_batch} * plan_.dp;
    const bool counted = log_.accumulation && (context_.plan || says("micro_batch"));
    const std::int64_t product = counted ? at_once * *log_.accumulation : 0;
    const bool rounded = printed && (log_.rounded_batch || log_.batch_tokens);
    if (rounded && product > 0 && !is_printed_so(log_, training_.seq_len, product)) {
      inconsistent("global_batch", batch_as_printed(log_, training_.seq_len, *printed),
                   fmt::format("micro-batch {} x {} x {} ranks = {}", plan_.micro_batch, *log_.accumulation,
                               plan_.dp, product));
      return;
    }
    std::optional<std::int64_t> batch = printed;
    if (rounded || !printed) batch = product > 0 ? std::optional(product) : std::nullopt;
    if (context_.global_batch) {
      const std::int64_t stated = training_.global_batch;
      const bool agrees =
          batch ? *batch == stated : !printed || is_printed_so(log_, training_.seq_len, stated);
      if (!agrees)
        inconsistent("global_batch",
                     batch ? fmt::format("{}", *batch) : batch_as_printed(log_, training_.seq_len, *printed),
                     fmt::format("{}, as --global-batch states", stated));
      return;
    }
    if (rounded && !batch) batch = only_multiple(*printed, at_once);
    if (batch) training_.global_batch = static_cast<int>(*batch);
  }

  // The one batch that these ranks can make and that is printed so; nothing when the layout leaves a choice.
  std::optional<std::int64_t> only_multiple(std::int64_t printed, std::int64_t at_once) {
    const auto fit = multiples_printed_so(log_, training_.seq_len, printed, at_once);
    if (fit.size() == 1) {
      notes_.push_back(
          fmt::format("global batch {}: the log prints about {}, and the ranks take {} at a time",
                      fit.front(), printed, at_once));
      return fit.front();
    }
    problems_.push_back(
        {log_.file, "global_batch", batch_as_printed(log_, training_.seq_len, printed),
         fit.empty() ? fmt::format("a batch that is a multiple of micro_batch * dp = {}", at_once)
                     : fmt::format("one multiple of micro_batch * dp = {}, not {}", at_once, fit.size()),
         fit.empty()
             ? "the layout, or the sequence length, is another run's; --global-batch states the batch"
             : fmt::format("state it, --global-batch {} or another", *std::ranges::min_element(fit))});
    return std::nullopt;
  }

  void fill_stages() {
    if (says("tp_pp_dp") == 1 && !known("ax")) plan_.axis_order = {Axis::tp, Axis::cp, Axis::pp, Axis::dp};
    if (!known("mbs"))
      if (const auto guess = guessed_micro_batch(log_, plan_)) {
        plan_.micro_batch = *guess;
        notes_.push_back(
            fmt::format("micro-batches of {}, torchtitan's usual: the log does not print into how "
                        "many its local batch is cut (write mbs in the key)",
                        *guess));
      }
    if (const auto stages = says("stages"); stages && plan_.pp > 0 && *stages % plan_.pp != 0)
      inconsistent("stages", fmt::format("{}", *stages), fmt::format("a multiple of pp {}", plan_.pp));
    fill_schedule(virtual_stages_of_log(log_, model_, plan_));
    if (!problems_.empty() || !degrees_fit(plan_)) return;
    const auto cut = chunks_of_log(log_, model_, plan_);
    if (!cut) return;
    ParallelPlan as_run = plan_;
    as_run.chunks = chunks_of(cut->layers);
    if (equal_chunks(as_run, model_.n_layers)) as_run.chunks.clear();
    if (known("L")) {
      const bool alike = layer_ranges(as_run, model_.n_layers) == layer_ranges(plan_, model_.n_layers);
      if (!alike && cut->assumed.empty())
        inconsistent("layers", fmt::format("chunks of {} layers", fmt::join(cut->layers, ", ")),
                     fmt::format("other chunks, as {} states", kPlan),
                     "leave L out of the key: the log states them");
      return;
    }
    plan_.chunks = std::move(as_run.chunks);
    if (!cut->assumed.empty())
      notes_.push_back(
          fmt::format("{}: the log does not print all of them (write L in the key)", cut->assumed));
  }

  void fill_schedule(std::optional<int> chunks) {
    if (chunks && known("vp") && *chunks != plan_.vp)
      inconsistent(says("layers_per_chunk") ? "layers_per_chunk"
                   : says("stages")         ? "stages"
                                            : "virtual_stages",
                   fmt::format("{} chunks a stage", *chunks),
                   fmt::format("vp {}, as {} states", plan_.vp, kPlan));
    std::string note;
    const auto schedule = plan_.pp > 1 ? schedule_of_log(log_, &note) : std::nullopt;
    if (!note.empty()) notes_.push_back(std::move(note));
    if (schedule && known("schedule") && *schedule != plan_.schedule)
      inconsistent("schedule", log_.schedule, fmt::format("{}, as {} states", name(plan_.schedule), kPlan));
    if (known("vp")) return;
    const bool usual = plan_.vp > 1 ? plan_.schedule == PipelineSchedule::interleaved
                                    : plan_.schedule == PipelineSchedule::one_f_one_b;
    if (chunks) plan_.vp = *chunks;
    if (!context_.plan || usual)
      plan_.schedule = plan_.vp > 1 ? PipelineSchedule::interleaved : PipelineSchedule::one_f_one_b;
    if (schedule == PipelineSchedule::gpipe && !known("schedule")) plan_.schedule = *schedule;
    if (schedule == PipelineSchedule::interleaved && !chunks)
      notes_.push_back(
          fmt::format("pipeline schedule {}: the log does not print how many stages it has; vp {} "
                      "is taken (write vp in the key)",
                      log_.schedule, plan_.vp));
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
      inconsistent(
          "zero_stage", fmt::format("{}", *zero), fmt::format("{}, as {} states", plan_.zero_stage, kPlan),
          log_.format == LogFormat::megatron_lm || log_.format == LogFormat::megatron_bridge
              ? "it is 1 with use_distributed_optimizer True: write z1 or z0 as the run was, or leave it out"
              : "");
    if (zero && !known("z")) plan_.zero_stage = static_cast<int>(*zero);
    if (const auto sequence = says("sequence_parallel"); plan_.tp > 1 && (sequence || !context_.plan)) {
      const bool on = sequence == 1;
      if (context_.plan && on != plan_.sequence_parallel)
        inconsistent(
            "sequence_parallel", on ? "on" : "off",
            fmt::format("{}, as {} states", plan_.sequence_parallel ? "on" : "off", kPlan),
            on ? "write sp in the key" : "write nosp in the key: without it a layout with TP has it on");
      plan_.sequence_parallel = on;
    } else if (!context_.plan) {
      plan_.sequence_parallel = false;
    }
    if (const auto shard = says("shard_degree"); shard && *shard > 1) {
      const int degree = *shard < plan_.dp ? static_cast<int>(*shard) : 0;
      const int stated = plan_.shard_degree == plan_.dp ? 0 : plan_.shard_degree;
      if (context_.plan && degree != stated && says("dp") == plan_.dp)
        inconsistent("shard_degree", fmt::format("{}", *shard),
                     fmt::format("{}, as {} states", stated == 0 ? plan_.dp : stated, kPlan),
                     fmt::format("write sd{} in the key", *shard));
      if (!context_.plan) plan_.shard_degree = degree;
    }
    fill_offload();
  }

  static std::string share_text(double share) {
    return share == 0 ? "off" : share == 1 ? "on" : fmt::format("{:.0f} %", 100 * share);
  }

  // What a key leaves out is off.
  void fill_offload() {
    if (const auto host = says("optimizer_offload")) {
      const double share = *host == 1 ? std::clamp(log_.offload_share.value_or(1), 0.0, 1.0) : 0;
      if (!context_.plan)
        plan_.optimizer_offload = share;
      else if (std::abs(share - plan_.optimizer_offload) > 0.005)
        inconsistent(
            "optimizer_offload", share_text(share),
            fmt::format("{}, as {} states", share_text(plan_.optimizer_offload), kPlan),
            share > 0 ? fmt::format("write oo{:.0f} in the key", 100 * share) : "leave oo out of the key");
    }
    if (const auto host = says("parameter_offload")) {
      if (context_.plan && (*host == 1) != plan_.parameter_offload)
        inconsistent("parameter_offload", *host == 1 ? "on" : "off",
                     fmt::format("{}, as {} states", plan_.parameter_offload ? "on" : "off", kPlan),
                     *host == 1 ? "write po in the key" : "leave po out of the key");
      plan_.parameter_offload = *host == 1;
    }
    if (const auto layers = says("activation_offload")) {
      if (context_.plan && *layers != plan_.activation_offload)
        inconsistent("activation_offload", fmt::format("{} layers", *layers),
                     fmt::format("{}, as {} states", plan_.activation_offload, kPlan),
                     *layers > 0 ? fmt::format("write ao{} in the key", *layers) : "leave ao out of the key");
      plan_.activation_offload = static_cast<int>(*layers);
    }
    if (says("nvme") == 1) notes_.emplace_back("what it keeps on NVMe is priced as in host memory");
    if (says("host_checkpoints") == 1 && plan_.activation_offload == 0)
      notes_.emplace_back(
          "activation_checkpointing.cpu_checkpointing is on, and not priced: write aoN in the key for N "
          "layers");
    if (says("weights_offload") == 1 && says("activation_offload").value_or(0) > 0)
      notes_.emplace_back("cpu_offloading_weights is on, and not priced");
  }

  void fill_formats() {
    if (says("fp4") == 1)
      inconsistent("compute", "GEMMs in 4 bits", "bf16, fp16, fp32 or fp8", "no 4-bit format is modelled");
    const auto use = [&](const char* key, std::optional<Dtype> said, bool stated, const char* option,
                         Dtype& to) {
      if (!said) return;
      if (stated && *said != to)
        inconsistent(key, std::string(name(*said)), fmt::format("{}, as {} states", name(to), option));
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
      inconsistent("recompute", std::string(name(recompute.kind)),
                   fmt::format("{}, as {} states", name(plan_.recompute.kind), kPlan),
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
