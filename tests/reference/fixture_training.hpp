// The runtime on the cases of the independent reference: twenty steps of training, and the gradients of one batch.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tests/reference/fixtures.hpp"
#include "tests/support/runnable.hpp"
#include "tests/support/whole_run.hpp"

namespace sextant::testing {

// Twenty steps: what each reports, and the weights at the end.
struct TrainingCase {
  ModelSpec model;
  NamedTensors start;
  std::vector<std::int32_t> tokens;
  int batch = 0, seq = 0;
  std::vector<double> loss, norm, rate;
  NamedTensors final_weights;
  TrainingCase() = default;
  explicit TrainingCase(const std::string& name) {
    const std::filesystem::path folder = *reference_folder() / name;
    model = read_hugging_face_config(folder / "config.json");
    start = read_all(SafetensorsFile(folder / "model.safetensors"));
    const SafetensorsFile expected(folder / "training.safetensors");
    tokens = read_tokens(expected, "tokens");
    const auto& shape = expected.require("tokens").shape;
    batch = static_cast<int>(shape[1]);
    seq = static_cast<int>(shape[2]) - 1;
    loss = read_doubles(expected, "loss");
    norm = read_doubles(expected, "grad_norm");
    rate = read_doubles(expected, "lr");
    final_weights = read_all(expected, "final.");
  }
};

// Of tensors that outlive it.
inline WeightSource weights_of(const NamedTensors& tensors) {
  return [&tensors](const ModelSlice& s, std::span<double> values) {
    const std::vector<double>& all = tensors.at(s.name);
    for (std::int64_t r = 0; r < s.real_rows(); ++r)
      for (std::int64_t c = 0; c < s.cols; ++c)
        values[static_cast<std::size_t>(r * s.cols + c)] =
            all[static_cast<std::size_t>((s.first_row + r) * s.model_cols + s.first_col + c)];
  };
}

// Its weights in the end.
inline WholeState train_case(const TrainingCase& c, const std::string& key, Dtype dtype, int steps,
                             const Ranks& ranks = {}, const RankOptions& options = {}) {
  const ExecutionGraph graph =
      graph_to_run(key, c.model, runnable_training(c.batch, dtype, c.seq), *ranks.kernels);
  OptimizerSpec optimizer;
  optimizer.rate = 5e-3;
  optimizer.warmup_steps = 4;
  optimizer.total_steps = 20;
  const SequenceSource sequences = [&](std::int64_t step, int sequence, std::span<std::int32_t> out) {
    const auto first = static_cast<std::ptrdiff_t>((step * c.batch + sequence) * (c.seq + 1));
    std::copy_n(c.tokens.begin() + first, out.size(), out.begin());
  };
  return run_whole({graph,
                    own_stack(),
                    optimizer,
                    sequences,
                    weights_of(c.start),
                    steps,
                    ranks,
                    options,
                    {StateField::master}});
}

// Loss and gradients of one step. What the first update leaves of a gradient is (1 - beta1) of it, in a moment that was zero:
// exact to a rounding where nothing is clipped.
inline StepResult gradients_of(const GradientCase& c, const std::string& key, Dtype dtype,
                               const Ranks& ranks = {}) {
  const ExecutionGraph graph =
      graph_to_run(key, c.model, runnable_training(c.batch, dtype, c.seq), *ranks.kernels);
  OptimizerSpec optimizer;
  optimizer.clip_norm = 1e9;
  const SequenceSource sequences = [&](std::int64_t, int sequence, std::span<std::int32_t> out) {
    const auto first = static_cast<std::size_t>(sequence * c.seq);
    out[0] = c.ids[first];
    for (std::size_t i = 1; i < out.size(); ++i) {
      const std::int32_t target = c.targets[first + i - 1];
      const bool last = i + 1 == out.size();
      // A token that is no target is the negative of what is read there.
      out[i] = target != kIgnoreTarget ? target : last ? ~0 : ~c.ids[first + i];
    }
  };
  WholeState ended = run_whole(
      {graph, own_stack(), optimizer, sequences, weights_of(c.weights), 1, ranks, {}, {StateField::moment1}});
  StepResult result{.loss = ended.steps.front().loss};
  result.gradients = std::move(ended.state.at(StateField::moment1));
  for (auto& [name, values] : result.gradients)
    for (double& x : values) x /= 1 - optimizer.beta1;
  return result;
}

}  // namespace sextant::testing
