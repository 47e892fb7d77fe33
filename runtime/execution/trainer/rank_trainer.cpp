#include "runtime/execution/trainer/rank_trainer.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <numbers>
#include <random>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/graph/op_groups.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "runtime/execution/device_memory.hpp"

namespace sextant {
namespace {

// A processor's own NaN is negative, and would be printed so.
double without_sign(double x) { return std::isnan(x) ? std::abs(x) : x; }

ExecutorOptions for_rank(ExecutorOptions options, const Communicator& world, const RankCoord& at) {
  options.rank = world.rank();
  options.stage = at.pp;
  return options;
}

}  // namespace

double OptimizerSpec::rate_at(std::int64_t step) const {
  if (step < warmup_steps) return rate * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (total_steps <= warmup_steps) return rate;
  const double done = std::min(
      1.0, static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps));
  return rate * (final_ratio + (1 - final_ratio) * (1 + std::cos(std::numbers::pi * done)) / 2);
}

std::vector<Problem> runtime_refuses(const ModelSpec& m, const TrainingSpec& t, const ParallelPlan& p,
                                     const StackSpec& stack, const KernelTable& kernels) {
  std::vector<Problem> problems;
  const auto require = [&](bool holds, const char* key, std::string found, std::string expected,
                           const char* hint = "") {
    if (!holds) problems.push_back({"", key, std::move(found), std::move(expected), hint});
  };
  const char* llama = "the runtime trains LLaMA architectures";
  require(m.norm == NormKind::rms, "model.norm", std::string(kNormNames[static_cast<std::size_t>(m.norm)]),
          "rms", llama);
  require(m.position == PositionKind::rope || m.position == PositionKind::alibi, "model.position",
          std::string(kPositionNames[static_cast<std::size_t>(m.position)]), "rope or alibi", llama);
  const auto rope = m.rope_scaling ? rope_not_run(*m.rope_scaling) : std::nullopt;
  require(!rope, "model.rope_scaling", rope.value_or(""),
          fmt::format("{}, with their numbers, or none", fmt::join(kRopeTypes, ", ")),
          "it is planned, and not trained");
  require(m.gated_mlp, "model.gated_mlp", "false", "true", llama);
  require(!m.linear_bias && !m.embedding_norm, "model", "GPT's biases or an embedding norm", "neither",
          llama);
  require(!m.normalized_head || !m.tied_embeddings, "model.normalized_head", "true", "false",
          "a normalized head that is the embedding as well is not known");
  require(p.tp <= m.n_kv_heads, "plan.tp", std::to_string(p.tp),
          fmt::format("at most {} key/value heads", m.n_kv_heads),
          "the runtime does not copy key/value heads to several ranks");
  require(!p.overlap_tp, "plan.overlap_tp", "true", "false",
          "GEMMs tiled with their collective are for planning only");
  require(kernels.supports(t.compute), "training.compute", std::string(name(t.compute)),
          "fp64, fp32, bf16 or fp8");
  require(t.parameter == kept_as(t.compute), "training.parameter", std::string(name(t.parameter)),
          t.compute == Dtype::fp8 ? "bf16, which fp8 operands are made of"
                                  : fmt::format("{}, as the GEMMs", name(t.compute)));
  const Dtype accumulator = accumulator_of(t.compute);
  for (const auto& [key, dtype] : {std::pair{"training.gradient", t.gradient},
                                   {"training.reduction", t.reduction},
                                   {"training.optimizer_state", t.optimizer_state}})
    require(dtype == accumulator, key, std::string(name(dtype)), std::string(name(accumulator)));
  require(stack.memory.exact_tensors && stack.rules.clip_gradients, "stack", stack.name, "sextant",
          "plan with --stack sextant: other stacks describe other frameworks");
  require(!stack.rules.scatter_p2p || p.tp == 1 || p.sequence_parallel, "stack.rules.scatter_p2p", "true",
          "false");
  require(!stack.rules.cp_ring || p.cp == 1, "stack.rules.cp_ring", "true", "false",
          "the runtime gathers keys and values before attention");
  return problems;
}

RankTrainer::RankTrainer(const ExecutionGraph& graph, const StackSpec& stack, Device& device,
                         const KernelTable& kernels, Communicator& world, const OptimizerSpec& optimizer,
                         SequenceSource source, RankOptions options)
    : graph_(graph),
      device_(device),
      optimizer_(optimizer),
      source_(std::move(source)),
      rank_(world.rank()),
      watchdog_(options.executor.watchdog),
      at_(RankGrid(graph.plan).coord(world.rank())),
      apart_(options.documents_apart),
      report_(everyone(world)),
      groups_(graph, world),
      arena_(device, graph, plan_arena(graph, StageView(graph, at_.pp)),
             takes_scratch(kernels) ? scratch_of_stage(graph, at_.pp) : 0),
      state_(graph, arena_, stack.rules, at_),
      launcher_(graph, stack.rules, device, arena_, groups_, state_, kernels, at_, options.threads),
      executor_(
          graph, device,
          [this](OpId op, StreamId stream) {
            if (!rehearsed_ || !rehearsed_before(op)) launcher_.launch(op, stream);
          },
          [&] {
            ExecutorOptions own = for_rank(std::move(options.executor), world, at_);
            if (own.least_time)
              own.least_time = [this, least = own.least_time](OpId op) {
                return launcher_.runs(op) ? least(op) : Seconds(0);
              };
            if (own.replay != Replay::off) own.repeats = [this](OpId op) { return launcher_.repeats(op); };
            return own;
          }()),
      outlives_(options.outlives_ranks) {
  if (takes_scratch(kernels)) lend_scratch();
  launcher_.beta1 = optimizer.beta1;
  launcher_.beta2 = optimizer.beta2;
  launcher_.epsilon = optimizer.epsilon;
}

void RankTrainer::lend_scratch() {
  std::byte* at = arena_.scratch();
  for (const LaneId lane : executor_.view().lanes()) {
    const std::int64_t bytes = scratch_of_lane(graph_, lane);
    device_.launch(executor_.stream(lane), [at, bytes](NativeStream s) { lend_cuda_scratch(s, at, bytes); });
    at += bytes;
  }
}

StepBatch RankTrainer::batch(const SequenceSource& source, std::int64_t step) const {
  return make_batch(source, step, graph_.plan, graph_.training, at_, graph_.model.vocab_size, apart_);
}

std::exception_ptr RankTrainer::take_batch(const SequenceSource& source, std::int64_t step) {
  between(Watchdog::Between::reading_tokens);
  try {
    launcher_.batch = batch(source, step);
  } catch (...) {
    return std::current_exception();
  }
  return {};
}

namespace {

// bf16 numbers as weights have them; two of them are an ordinary fp32 number. Drawn once for all ranks of a process.
const std::vector<Bfloat16>& small_normals() {
  static const std::vector<Bfloat16> drawn = [] {
    std::vector<Bfloat16> values(std::size_t{1} << 20);
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.02F);
    for (Bfloat16& v : values)
      v.bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
    return values;
  }();
  return drawn;
}

}  // namespace

// What is computed alone is rehearsed twice, in the first micro-batch and in another, whose gradients are added to: enough
// for libraries to load and to choose, and a hundredth of a step of many micro-batches. Exchanges are made all, as other ranks do.
bool RankTrainer::rehearsed_before(OpId id) {
  const Op& op = graph_.ops[id];
  return computes_alone(op) && ++(*rehearsed_)[{op.work, op.microbatch == 0}] > 2;
}

// Of ordinary numbers: on zeros, which fresh memory is, GEMMs draw less power and run faster, some more than others.
void RankTrainer::rehearse() {
  arena_.fill(std::as_bytes(std::span(small_normals())));
  launcher_.batch = batch(source_, clock_.step);
  launcher_.batch.loss_scale = 1;
  launcher_.scalars = {.skip = true};  // roots of those numbers would be none
  launcher_.part = StepLauncher::Part::whole;
  rehearsed_.emplace();
  device_.rehearse(true);
  launcher_.begin_step();
  executor_.run_step();
  device_.rehearse(false);
  rehearsed_.reset();
}

void RankTrainer::initialise(const WeightSource& weights) {
  state_.initialise(weights, launcher_.kernels(), executor_.stream(executor_.view().lanes().front()));
}

void RankTrainer::between(Watchdog::Between what) {
  if (watchdog_) watchdog_->between(rank_, what);
}

void RankTrainer::sum(std::span<double> values) {
  between(Watchdog::Between::meeting);
  agree(values);
  between(Watchdog::Between::nothing);
}

void RankTrainer::agree(std::span<double> votes) {
  report_->all_reduce(votes.data(), votes.data(), static_cast<std::int64_t>(votes.size()), Dtype::fp64,
                      Reduction::sum, {});
}

// The second step is the first with an update: from then on every step uses the same memory.
Bytes RankTrainer::most_memory() {
  if (steps_here_ >= 2) return most_memory_;
  ++steps_here_;
  double peak = static_cast<double>(executor_.memory().peak(Space::device));
  between(Watchdog::Between::meeting);
  report_->all_reduce(&peak, &peak, 1, Dtype::fp64, Reduction::max, {});
  between(Watchdog::Between::nothing);
  return most_memory_ = Bytes(static_cast<std::int64_t>(peak));
}

std::optional<StepReport> RankTrainer::step(bool stop, SpanRecorder* recorder, std::span<double> votes) {
  StepReport report;
  report.step = clock_.step;
  const bool speaks = at_.tp == 0 && at_.pp == 0;
  const std::exception_ptr missing = take_batch(source_, clock_.step);
  std::vector<double> agreed = {speaks && !missing ? static_cast<double>(launcher_.batch.valid_targets) : 0.0,
                                stop ? 1.0 : 0.0, missing ? 1.0 : 0.0};
  agreed.insert(agreed.end(), votes.begin(), votes.end());
  sum(agreed);
  std::copy(agreed.begin() + 3, agreed.end(), votes.begin());
  if (agreed[1] > 0) return {};
  if (agreed[2] > 0) throw TokensMissing(missing);
  const double valid = agreed[0];
  if (valid == 0)
    throw ConfigError(Problem{"", fmt::format("step {}", clock_.step), "no token that carries a loss",
                              "at least one valid target in a global batch", ""});
  launcher_.batch.loss_scale = gradient_factor / valid;
  if (pending_ && before_update) before_update();
  launcher_.part = pending_ ? StepLauncher::Part::whole : StepLauncher::Part::first;
  const auto start = std::chrono::steady_clock::now();
  launcher_.begin_step();
  updating_ = std::exchange(pending_, false);
  executor_.run_step(recorder, true);
  updating_ = false;
  const StepExchange::Results results = launcher_.end_step();
  double loss = at_.tp == 0 && at_.pp == graph_.plan.pp - 1 ? results.loss : 0;
  sum({&loss, 1});
  report.duration = Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());

  report.loss = without_sign(loss / valid);
  report.tokens = std::int64_t{graph_.training.global_batch} * graph_.training.seq_len;
  report.gradient_norm = without_sign(std::sqrt(results.squared_norm));
  report.memory = most_memory();
  report.rate = optimizer_.rate_at(clock_.step);
  report.skipped = !std::isfinite(report.gradient_norm) || !std::isfinite(report.loss);
  before_ = clock_;
  AdamwScalars& s = launcher_.scalars;
  s = {};
  s.skip = report.skipped;
  if (report.skipped) {
    ++clock_.skipped;
    ++clock_.skipped_in_a_row;
  } else {
    ++clock_.updates;
    clock_.skipped_in_a_row = 0;
    const auto updates = static_cast<double>(clock_.updates);
    s = scalars_of({.rate = report.rate,
                    .weight_decay = optimizer_.weight_decay,
                    .gradient_scale = report.gradient_norm > optimizer_.clip_norm
                                          ? optimizer_.clip_norm / (report.gradient_norm + 1e-6)
                                          : 1.0,
                    .correction1 = 1 - std::pow(optimizer_.beta1, updates),
                    .correction2 = 1 - std::pow(optimizer_.beta2, updates)});
  }
  pending_ = true;
  ++clock_.step;
  return report;
}

void RankTrainer::finish() {
  if (!pending_) return;
  if (outlives_) barrier();
  if (before_update) before_update();
  launcher_.part = StepLauncher::Part::flush;
  launcher_.begin_step();
  updating_ = std::exchange(pending_, false);
  executor_.run_step();
  updating_ = false;
}

// Who has a step to its end has not begun its update before all have: the sum at the beginning of the next step, or the
// barrier of finish(), comes before. So ranks that are left differ by one step at most, and the later one can leave it out.
Recoverable RankTrainer::recoverable() const { return {pending_ ? before_.step : clock_.step, clock_.step}; }

void RankTrainer::settle(std::int64_t step) {
  SEXTANT_CHECK(step >= recoverable().first && step <= recoverable().last, "a state that this rank has");
  if (pending_ && step == before_.step) {
    clock_ = before_;
  } else if (pending_ || updating_) {
    if (pending_ && before_update) before_update();
    launcher_.complete_updates(updating_);
  }
  pending_ = updating_ = false;
}

}  // namespace sextant
