// A few steps of a small model under any layout, every rank a thread: what each step reported, and the state at the end in
// model space, so that runs of different layouts can be held against each other.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_kernels.hpp"
#include "planner/lower.hpp"
#include "runtime/backends.hpp"
#include "runtime/rank_trainer.hpp"
#include "tests/support/runnable.hpp"

namespace sextant::testing {

struct SmallRun {
  ModelSpec model = tiny_model(4);
  Dtype dtype = Dtype::fp32;
  int global_batch = 8, steps = 3;
  double clip_norm = 1e9;  // the norm's partial sums depend on the layout; a factor of one does not
  std::optional<std::uint64_t> order = {};  // adversarial
  SequenceSource sequences = {};            // of tokens; none: synthetic ones
  bool documents_apart = false;
  bool apart = false;     // the device does not share the host's memory
  bool programs = false;  // what is the same in every step is replayed
  // Put around the world of each rank.
  std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)> around = {};
};

struct SmallResult {
  std::vector<double> loss, norm;
  Executor::Programs programs;                       // of rank 0
  std::map<std::string, std::vector<double>> state;  // "model.norm.weight/0": master, 1 and 2: moments
};

inline TrainingSpec small_training(const SmallRun& how) {
  return runnable_training(how.global_batch, how.dtype);
}

inline const StackSpec& small_stack() {
  static const StackSpec stack = load_stack("sextant", SEXTANT_SOURCE_DIR "/tools/presets");
  return stack;
}

// Why a plan cannot be run on the small model; empty when it can.
inline std::vector<Problem> small_refuses(const ParallelPlan& plan, const SmallRun& how) {
  auto problems = validate(plan, how.model, small_training(how));
  if (problems.empty())
    problems = runtime_refuses(how.model, small_training(how), plan, small_stack(), cpu_reference_kernels());
  return problems;
}

inline ExecutionGraph small_graph(const ParallelPlan& plan, const SmallRun& how) {
  return lower(how.model, small_training(how), flat_links(plan), plan, small_stack());
}

inline SmallResult small_run(const ParallelPlan& plan, const SmallRun& how = {}) {
  const ExecutionGraph graph = small_graph(plan, how);
  OptimizerSpec optimizer;
  optimizer.rate = 1e-2, optimizer.clip_norm = how.clip_norm;
  SmallResult result;
  std::mutex mutex;
  auto world = make_local_world(plan.world());
  if (how.around)
    for (auto& rank : world) rank = how.around(std::move(rank));
  run_ranks(world, [&](Communicator& communicator) {
    CpuDeviceOptions options;
    options.on_error = [&](const std::string& what) { communicator.abort(what); };
    options.unified = !how.apart;
    const auto device = make_cpu_device(options);
    RankOptions rank;
    rank.programs = how.programs;
    rank.executor.adversarial_seed = how.order;
    rank.executor.time_ops = false;
    rank.documents_apart = how.documents_apart;
    rank.executor.on_failure = [&](const std::string& what) { communicator.abort(what); };
    RankTrainer trainer(
        graph, small_stack(), *device, cpu_reference_kernels(), communicator, optimizer,
        how.sequences ? how.sequences : synthetic_sequences(how.model.vocab_size, how.global_batch, 1), rank);
    trainer.initialise(random_weights(how.model, 1));
    for (int s = 0; s < how.steps; ++s) {
      const auto report = trainer.step();
      if (communicator.rank() == 0)
        result.loss.push_back(report->loss), result.norm.push_back(report->gradient_norm);
    }
    trainer.finish();
    const std::lock_guard lock(mutex);
    if (communicator.rank() == 0) result.programs = trainer.executor().programs();
    for (const StateField field : kStateFields)
      trainer.state().read_owned(field, [&](const OwnedPiece& piece, std::span<const double> values) {
        const ModelSlice& s = piece.slice;
        // A tied head is another place of the embedding; the first stage's copy stands for both.
        if (s.name == "lm_head.weight" && how.model.tied_embeddings) return;
        auto& whole = result.state[s.name + "/" + std::to_string(static_cast<int>(field))];
        whole.resize(static_cast<std::size_t>(s.model_rows * s.model_cols));
        for (std::size_t i = 0; i < values.size(); ++i) {
          const std::int64_t at = piece.begin + static_cast<std::int64_t>(i), row = at / s.cols;
          if (row < s.real_rows())
            whole[static_cast<std::size_t>((s.first_row + row) * s.model_cols + s.first_col + at % s.cols)] =
                values[i];
        }
      });
  });
  return result;
}

}  // namespace sextant::testing
