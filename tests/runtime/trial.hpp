// A whole run of a tiny model, every rank a thread: everything it needs kept alive, and what came of it.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "planner/lowering/lower.hpp"
#include "runtime/training/training_run.hpp"
#include "tests/support/runnable.hpp"

namespace sextant::testing {

struct Trial {
  static constexpr int kBatch = 8;

  ModelSpec model = tiny_model(4);
  TrainingSpec training = runnable_training(kBatch);
  StackSpec stack = load_stack("sextant", SEXTANT_SOURCE_DIR "/tools/presets");
  ExecutionGraph graph;
  TrainingRun run;
  std::vector<StepReport> steps;
  std::map<std::pair<int, StateField>, std::vector<double>> state;  // by rank, at the end
  std::string error;                                                // of go(), empty when it ended well
  bool config_error = false;
  double seconds = 0;

  explicit Trial(const std::string& key) : Trial(key, [](Trial&) {}) {}
  // `change` sees model, training and stack before they are lowered.
  template <class Change>
  Trial(const std::string& key, Change change)
      : run{.graph = graph, .stack = stack, .kernels = cpu_reference_kernels()} {
    const ParallelPlan plan = parse_plan_key(key);
    change(*this);
    graph = lower(model, training, flat_links(plan), plan, stack);
    run.optimizer.rate = 1e-2;
    run.sequences = synthetic_sequences(model.vocab_size, kBatch, 1);
    run.weights = random_weights(model, 1);
    run.on_step = [this](const StepReport& r) { steps.push_back(r); };
    run.on_end = [this](RankTrainer& trainer, int rank) {
      const std::lock_guard lock(mutex_);
      for (const StateField field : kStateFields)
        trainer.state().read_owned(field, [&](const OwnedPiece&, std::span<const double> values) {
          auto& all = state[{rank, field}];
          all.insert(all.end(), values.begin(), values.end());
        });
    };
  }
  Trial(const Trial&) = delete;

  Trial& go(std::int64_t n) {
    run.steps = n;
    const auto began = std::chrono::steady_clock::now();
    try {
      train(run);
    } catch (const ConfigError& e) {
      error = e.what();
      config_error = true;
    } catch (const BackendError& e) {
      error = e.what();
    }
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    return *this;
  }

 private:
  std::mutex mutex_;
};

}  // namespace sextant::testing
