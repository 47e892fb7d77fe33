// A few steps of a small model under any layout, every rank a thread: what each step reported, and the state at the end in
// model space, so that runs of different layouts can be held against each other.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/runnable.hpp"
#include "tests/support/whole_run.hpp"

namespace sextant::testing {

struct SmallRun {
  ModelSpec model = tiny_model(4);
  StackSpec stack = own_stack();
  Dtype dtype = Dtype::fp32;
  int global_batch = 8, steps = 3;
  double clip_norm = 1e9;  // the norm's partial sums depend on the layout; a factor of one does not
  std::optional<std::uint64_t> order = {};  // adversarial
  SequenceSource sequences = {};            // of tokens; none: synthetic ones
  bool documents_apart = false;
  bool apart = false;           // the device does not share the host's memory
  Replay replay = Replay::off;  // of what is the same in every step
  // Wraps all ranks of the world.
  std::function<void(std::span<std::unique_ptr<Communicator>>)> around = {};
};

struct SmallResult {
  std::vector<double> loss, norm;
  Executor::Programs programs;                       // of rank 0
  std::map<std::string, std::vector<double>> state;  // "model.norm.weight/0": master, 1 and 2: moments
};

inline TrainingSpec small_training(const SmallRun& how) {
  return runnable_training(how.global_batch, how.dtype);
}

// Why a plan cannot be run on the small model; empty when it can.
inline std::vector<Problem> small_refuses(const ParallelPlan& plan, const SmallRun& how) {
  auto problems = validate(plan, how.model, small_training(how));
  if (problems.empty())
    problems = runtime_refuses(how.model, small_training(how), plan, own_stack(), cpu_reference_kernels());
  return problems;
}

inline ExecutionGraph small_graph(const ParallelPlan& plan, const SmallRun& how) {
  return lower(how.model, small_training(how), flat_links(plan), plan, how.stack);
}

inline SmallResult small_run(const ParallelPlan& plan, const SmallRun& how = {}) {
  const ExecutionGraph graph = small_graph(plan, how);
  WholeRun whole{.graph = graph,
                 .stack = how.stack,
                 .sequences = how.sequences ? how.sequences
                                            : synthetic_sequences(how.model.vocab_size, how.global_batch, 1),
                 .weights = random_weights(how.model, 1),
                 .steps = how.steps,
                 .ranks = {.apart = how.apart, .around = how.around}};
  whole.optimizer.rate = 1e-2;
  whole.optimizer.clip_norm = how.clip_norm;
  whole.options.executor.replay = how.replay;
  whole.options.documents_apart = how.documents_apart;
  whole.options.executor.adversarial_seed = how.order;
  whole.options.executor.time_ops = false;
  WholeState ended = run_whole(whole);
  SmallResult result;
  result.programs = ended.programs;
  for (const StepReport& step : ended.steps) {
    result.loss.push_back(step.loss);
    result.norm.push_back(step.gradient_norm);
  }
  for (auto& [field, tensors] : ended.state)
    for (auto& [name, values] : tensors)
      result.state[name + "/" + std::to_string(static_cast<int>(field))] = std::move(values);
  return result;
}

}  // namespace sextant::testing
