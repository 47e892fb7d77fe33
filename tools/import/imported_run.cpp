#include "tools/import/imported_run.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/words.hpp"

namespace sextant {

namespace {

constexpr std::size_t kMostNamed = 12;  // of what was not understood, in one note

}  // namespace

SizedRun size_run(const ImportedRun& run, int gpus, int gpus_per_node) {
  SizedRun sized{run.plan, run.global_batch.value_or(0), {}};
  ParallelPlan& p = sized.plan;
  p.dp = 1;
  const int replica = p.tp * p.cp * p.pp;
  const auto wrong = [&](const std::string& key, const std::string& value, const std::string& expected,
                         const std::string& hint) {
    throw ConfigError(Problem{run.file, key, value, expected, hint});
  };
  const auto degrees = [&] { return fmt::format("tp {} * cp {} * pp {} = {}", p.tp, p.cp, p.pp, replica); };
  if (run.dp) {
    p.dp = *run.dp;
  } else if (replica <= gpus) {
    if (gpus % replica != 0)
      wrong("", degrees(), fmt::format("a divisor of the cluster's {} GPUs", gpus),
            "--cluster names the machine that it runs on; --plan another layout");
    p.dp = gpus / replica;
  }
  if (run.gpus && *run.gpus != p.world())
    sized.notes.push_back(run.dp
                              ? fmt::format("it starts {} ranks; its degrees make {}", *run.gpus, p.world())
                              : fmt::format("it starts {} ranks; the cluster has {} GPUs, and so dp is {}",
                                            *run.gpus, gpus, p.dp));
  if (p.zero_stage > 0 && run.state_copies > 1) {
    if (p.replicas() % run.state_copies != 0)
      wrong("", fmt::format("{} copies of the sharded state", run.state_copies),
            fmt::format("a divisor of dp * cp = {}", p.replicas()), "");
    p.shard_degree = p.replicas() / run.state_copies;
  }
  if (p.zero_stage > 0 && run.shard_ranks > 0 && run.shard_ranks != p.replicas()) {
    if (p.replicas() % run.shard_ranks != 0)
      wrong("", fmt::format("state sharded over {} ranks", run.shard_ranks),
            fmt::format("a divisor of dp * cp = {}", p.replicas()), "");
    p.shard_degree = run.shard_ranks;
  }
  if (p.zero_stage > 0 && run.shards_in_node && p.replicas() > gpus_per_node &&
      p.replicas() % gpus_per_node == 0)
    p.shard_degree = gpus_per_node;
  if (run.micro_is_rest) {
    const int steps = run.accumulation.value_or(1), ranks = p.dp * steps;
    if (sized.global_batch % ranks != 0)
      wrong("", fmt::format("a batch of {}", sized.global_batch),
            fmt::format("a multiple of {} replicas * {} micro-batches", p.dp, steps),
            "--plan states another layout");
    p.micro_batch = sized.global_batch / ranks;
  }
  if (run.accumulation && !run.global_batch)
    sized.global_batch = static_cast<int>(std::min<std::int64_t>(
        static_cast<std::int64_t>(*run.accumulation) * p.micro_batch * p.dp, kMaxGlobalBatch));
  return sized;
}

void suit_stack(const ImportedRun& run, const StackCapabilities& can, ParallelPlan& p) {
  if (run.overlap_stated) return;
  p.overlap_grad_reduce = p.overlap_grad_reduce && (can.overlap_grad_reduce || p.replicas() == 1);
  p.overlap_param_gather =
      p.overlap_param_gather && (can.overlap_param_gather || p.zero_stage == 0 || p.replicas() == 1);
  p.overlap_tp = p.overlap_tp && may_overlap_tp(can, p);
}

void suit_version(const ImportedRun& run, StackSpec& stack) {
  if (run.whole_logits_bytes > 0) hold_whole_logits(stack.memory, run.whole_logits_bytes);
}

void use_formats(const ImportedFormats& stated, TrainingSpec& training) {
  const auto use = [](const std::optional<Dtype>& from, Dtype& to) {
    if (from) to = *from;
  };
  use(stated.compute, training.compute);
  use(stated.parameter, training.parameter);
  use(stated.gradient, training.gradient);
  use(stated.reduction, training.reduction);
  use(stated.optimizer_state, training.optimizer_state);
}

std::vector<std::string> import_notes(const ImportedRun& run, const StackSpec& stack) {
  std::vector<std::string> notes = {fmt::format("{} is {}; predicted as {} ({}, {})", run.file, run.what,
                                                stack.name, stack.title, stack.version)};
  if (!run.assumed.empty()) notes.push_back("assumed: " + first_words(run.assumed, kMostNamed, "; "));
  if (!run.unread.empty())
    notes.push_back("not understood, and so not used here: " + first_words(run.unread, kMostNamed, "; "));
  return notes;
}

}  // namespace sextant
