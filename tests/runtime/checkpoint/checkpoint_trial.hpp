// A small run to save and to resume: everything it needs kept alive, what came of it, and its state in model space, so that
// runs of different layouts can be compared to the bit.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/cluster/cluster_files.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "runtime/training/training_run.hpp"
#include "tests/support/runnable.hpp"

namespace sextant::testing {

// By tensor and field, whole and row-major.
using ModelState = std::map<std::pair<std::string, StateField>, std::vector<double>>;

class CheckpointTrial {
 public:
  static constexpr int kBatch = 8, kSteps = 12;

  ModelSpec model = tiny_model(4);
  TrainingSpec training;
  StackSpec stack = load_stack("sextant", SEXTANT_SOURCE_DIR "/tools/presets");
  ExecutionGraph graph;
  TrainingRun run;
  CheckpointOptions save;
  std::optional<Checkpoint> resumed;

  std::vector<StepReport> steps;
  std::vector<SaveEvent> saves;
  std::vector<std::string> problems;
  ModelState at_start, at_end;
  std::string error;  // empty when it ended well
  bool config_error = false;

  explicit CheckpointTrial(const std::string& key, std::filesystem::path folder = {})
      : CheckpointTrial(key, std::move(folder), [](CheckpointTrial&) {}) {}
  template <class Change>
  CheckpointTrial(const std::string& key, std::filesystem::path folder, Change change)
      : run{.graph = graph, .stack = stack, .kernels = cpu_reference_kernels()} {
    training = runnable_training(kBatch);
    change(*this);
    const ParallelPlan plan = parse_plan_key(key);
    graph = lower(model, training, flat_links(plan), plan, stack);
    run.optimizer.rate = 1e-2;
    run.optimizer.warmup_steps = 2;
    run.optimizer.total_steps = kSteps;
    run.sequences = synthetic_sequences(model.vocab_size, training.global_batch, 1);
    run.weights = random_weights(model, 1);
    run.on_step = [this](const StepReport& r) { steps.push_back(r); };
    run.on_start = [this](RankTrainer& t, int) { add(t, at_start); };
    run.on_end = [this](RankTrainer& t, int) { add(t, at_end); };
    save.run = std::move(folder);
    save.keep.last = 100;
    save.seed = 1;
    save.plan.model = model;
    save.plan.training = training;
    save.plan.stack = stack;
    save.plan.plan = plan;
    save.plan.cluster = load_cluster("dgx-a100", SEXTANT_SOURCE_DIR "/tools/presets");
    save.on_event = [this](const SaveEvent& e) { saves.push_back(e); };
    save.on_problem = [this](const std::string& what) {
      const std::lock_guard lock(mutex_);
      problems.push_back(what);
    };
    if (!save.run.empty()) run.save = &save;
  }
  CheckpointTrial(const CheckpointTrial&) = delete;

  CheckpointTrial& from(const std::filesystem::path& folder, std::optional<std::int64_t> step = {}) {
    resumed = Checkpoint::open(folder, step);
    run.resume = &*resumed;
    return *this;
  }

  CheckpointTrial& go(std::int64_t n) {
    run.steps = n;
    try {
      train(run);
    } catch (const ConfigError& e) {
      error = e.what();
      config_error = true;
    } catch (const BackendError& e) {
      error = e.what();
    }
    return *this;
  }

  std::vector<double> losses(std::size_t first = 0) const {
    std::vector<double> all;
    for (const StepReport& s : steps)
      if (s.step >= static_cast<std::int64_t>(first)) all.push_back(s.loss);
    return all;
  }

 private:
  void add(const RankTrainer& trainer, ModelState& state) {
    const std::lock_guard lock(mutex_);
    for (const StateField field : kStateFields)
      trainer.state().read_owned(field, [&](const OwnedPiece& piece, std::span<const double> values) {
        const ModelSlice& s = piece.slice;
        auto& whole = state[{s.name, field}];
        whole.resize(static_cast<std::size_t>(s.model_rows * s.model_cols));
        for (std::size_t i = 0; i < values.size(); ++i) {
          const std::int64_t at = piece.begin + static_cast<std::int64_t>(i), row = at / s.cols;
          if (row >= s.real_rows()) continue;
          whole[static_cast<std::size_t>((s.first_row + row) * s.model_cols + s.first_col + at % s.cols)] =
              values[i];
        }
      });
  }

  std::mutex mutex_;
};

}  // namespace sextant::testing
