#include "runtime/execution/step_batch.hpp"

#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/positions.hpp"

namespace sextant {

StepBatch make_batch(const SequenceSource& source, std::int64_t step, const ParallelPlan& plan,
                     const TrainingSpec& training, const RankCoord& at, int vocab_size, bool apart) {
  StepBatch batch;
  const std::vector<std::int32_t> positions = context_positions(training.seq_len, plan.cp, at.cp);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(training.seq_len) + 1), begins(tokens.size());
  batch.microbatches.resize(static_cast<std::size_t>(microbatches_of(plan, training, at.dp)));
  const auto before = [&](int m) {  // micro-batches of the step that come before this replica's m-th
    if (plan.replica_microbatches.empty()) return m * plan.dp + at.dp;
    int count = 0;
    for (int d = 0; d < plan.dp; ++d)
      count += std::min(plan.replica_microbatches[static_cast<std::size_t>(d)], d < at.dp ? m + 1 : m);
    return count;
  };
  for (std::size_t m = 0; m < batch.microbatches.size(); ++m) {
    MicrobatchTokens& out = batch.microbatches[m];
    for (int i = 0; i < plan.micro_batch; ++i) {
      const int sequence = before(static_cast<int>(m)) * plan.micro_batch + i;
      source(step, sequence, tokens);
      const auto id = [](std::int32_t t) { return t < 0 ? ~t : t; };
      const auto wrong = std::ranges::find_if(tokens, [&](std::int32_t t) { return id(t) >= vocab_size; });
      if (wrong != tokens.end())
        throw ConfigError(Problem{
            "", fmt::format("step {}, sequence {}, position {}", step, sequence, wrong - tokens.begin()),
            fmt::format("token {}", id(*wrong)),
            fmt::format("a token below the vocabulary of {}", vocab_size),
            "was the data made with another tokenizer?"});
      for (std::size_t p = 1; apart && p < tokens.size(); ++p)
        begins[p] = tokens[p] < 0 ? static_cast<std::int32_t>(p) : begins[p - 1];
      for (const std::int32_t p : positions) {
        const auto at_p = static_cast<std::size_t>(p);
        const std::int32_t target = tokens[at_p + 1] < 0 ? kIgnoreTarget : tokens[at_p + 1];
        out.ids.push_back(id(tokens[at_p]));
        out.targets.push_back(target);
        if (apart) out.documents.push_back(begins[at_p]);
        batch.valid_targets += target != kIgnoreTarget;
      }
    }
  }
  return batch;
}

SequenceSource synthetic_sequences(int vocab_size, int global_batch, std::uint64_t seed) {
  return [=](std::int64_t step, int sequence, std::span<std::int32_t> tokens) {
    std::mt19937_64 random(seed + static_cast<std::uint64_t>(step * global_batch + sequence));
    // mt19937_64 is the same everywhere; distributions are not, so only remainders are used.
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
    const int strides = std::min(vocab_size, 8);
    const int stride = 1 + below(strides);
    int token = below(vocab_size);
    for (std::int32_t& t : tokens) {
      t = token;
      token = below(32) == 0 ? below(vocab_size) : (token + stride) % vocab_size;
    }
  };
}

}  // namespace sextant
