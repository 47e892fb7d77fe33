// The ranks of a layout train, each a thread, on any device: what each step reported, and the state at the end in model
// space, to be held against another layout's, another device's or a reference.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/plan/parallel_plan.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "planner/lowering/lower.hpp"
#include "runtime/communicators/make_communicator.hpp"
#include "runtime/devices/make_device.hpp"
#include "runtime/execution/trainer/rank_trainer.hpp"
#include "tests/support/specs.hpp"

namespace sextant::testing {

// What the ranks of a run are: the CPU's, unless told otherwise.
struct Ranks {
  const KernelTable* kernels = &cpu_reference_kernels();
  bool apart = false;  // the CPU's memory is not the device's, as a GPU's
  // Wraps all ranks of the world; and what a rank, on its thread, works on in place of its world.
  std::function<void(std::span<std::unique_ptr<Communicator>>)> around = {};
  std::function<std::unique_ptr<Communicator>(Communicator&)> connect = {};
  std::function<std::unique_ptr<Device>(int rank)> device = {};
};

struct WholeRun {
  const ExecutionGraph& graph;
  const StackSpec& stack;
  OptimizerSpec optimizer = {};
  SequenceSource sequences;
  WeightSource weights;
  int steps = 1;
  Ranks ranks = {};
  RankOptions options = {};
  std::vector<StateField> read = {kStateFields.begin(), kStateFields.end()};
  bool read_first = false;  // also what is held after the first of several steps
};

// By tensor, whole and row-major.
using WholeTensors = std::map<std::string, std::vector<double>>;

struct WholeState {
  std::vector<StepReport> steps;
  Executor::Programs programs;  // of rank 0
  std::map<StateField, WholeTensors> state, first;
};

// Beside the source tree, or where a bundle of the tests has them.
inline std::string presets_folder() {
  const char* elsewhere = std::getenv("SEXTANT_PRESETS");
  return elsewhere ? elsewhere : SEXTANT_SOURCE_DIR "/tools/presets";
}

inline const StackSpec& own_stack() {
  static const StackSpec stack = load_stack("sextant", presets_folder());
  return stack;
}

// A layout lowered to be run; what the planner or the runtime has against it is a failure.
inline ExecutionGraph graph_to_run(const std::string& key, const ModelSpec& model,
                                   const TrainingSpec& training, const KernelTable& kernels) {
  const ParallelPlan plan = parse_plan_key(key);
  std::vector<Problem> problems = validate(plan, model, training);
  if (problems.empty()) problems = runtime_refuses(model, training, plan, own_stack(), kernels);
  for (const Problem& p : problems) ADD_FAILURE() << key << ": " << to_string(p);
  return lower(model, training, flat_links(plan), plan, own_stack());
}

// What a rank owns of a field, into its places of the whole.
inline void read_whole(const RankTrainer& trainer, StateField field, bool tied, WholeTensors& state) {
  trainer.state().read_owned(field, [&](const OwnedPiece& piece, std::span<const double> values) {
    const ModelSlice& s = piece.slice;
    // A tied head is another place of the embedding; the first stage's copy stands for both.
    if (s.name == "lm_head.weight" && tied) return;
    auto& whole = state[s.name];
    whole.resize(static_cast<std::size_t>(s.model_rows * s.model_cols));
    std::int64_t row = piece.begin / s.cols, col = piece.begin % s.cols;
    for (std::size_t i = 0; i < values.size() && row < s.real_rows(); ++row, col = 0) {
      const std::size_t n = std::min(values.size() - i, static_cast<std::size_t>(s.cols - col));
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(i), n,
                  whole.begin() + (s.first_row + row) * s.model_cols + s.first_col + col);
      i += n;
    }
  });
}

inline WholeState run_whole(const WholeRun& how) {
  const Ranks& ranks = how.ranks;
  WholeState result;
  std::mutex mutex;
  auto world = make_local_world(how.graph.plan.world());
  if (ranks.around) ranks.around(world);
  run_ranks(world, [&](Communicator& local) {
    const auto connected = ranks.connect ? ranks.connect(local) : nullptr;
    Communicator& c = connected ? *connected : local;
    const auto abort = [&c](const std::string& what) { c.abort(what); };
    CpuDeviceOptions cpu;
    cpu.unified = !ranks.apart;
    cpu.on_error = abort;
    const auto device = ranks.device ? ranks.device(c.rank()) : make_cpu_device(cpu);
    RankOptions options = how.options;
    options.executor.on_failure = abort;
    RankTrainer trainer(how.graph, how.stack, *device, *ranks.kernels, c, how.optimizer, how.sequences,
                        options);
    if (ranks.device) trainer.rehearse();
    trainer.initialise(how.weights);
    for (int s = 0; s < how.steps; ++s) {
      const auto report = trainer.step();
      if (c.rank() == 0) result.steps.push_back(*report);
      if (s > 0 || !how.read_first || how.steps == 1) continue;
      trainer.finish();
      const std::lock_guard lock(mutex);
      for (const StateField field : how.read)
        read_whole(trainer, field, how.graph.model.tied_embeddings, result.first[field]);
    }
    trainer.finish();
    const std::lock_guard lock(mutex);
    if (c.rank() == 0) result.programs = trainer.executor().programs();
    for (const StateField field : how.read)
      read_whole(trainer, field, how.graph.model.tied_embeddings, result.state[field]);
  });
  return result;
}

}  // namespace sextant::testing
