// What makes a plan lawful for a model and a batch. Rules of one framework stand in its stack preset.
#include "core/plan/plan_rules.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sextant {
namespace {

// One entry of a list field.
struct Entry {
  std::string_view list;
  std::size_t index;
};

enum class Report : std::uint8_t { every_problem, first_key };

class Rules {
 public:
  explicit Rules(Report report) : texts_(report == Report::every_problem) {}
  // Texts are made only when they are needed: plans are checked by the hundred thousand.
  template <class Key, class Value, class Expected>
  void require(bool holds, const Key& key, const Value& value, const Expected& expected,
               const char* hint = "") {
    if (holds) return;
    clean_ = false;
    if (texts_)
      problems_.push_back({"", full_name(key), fmt::format("{}", made(value)), made(expected), hint});
    else if (first_key_.empty())
      first_key_ = name(key);
  }
  void divides(int divisor, std::string_view divisor_key, int number, std::string_view what) {
    require(divisor > 0 && number % divisor == 0, divisor_key, divisor,
            [&] { return fmt::format("a divisor of {} {}", what, number); });
  }
  template <class Text>
  static auto made(const Text& text) {
    if constexpr (std::is_invocable_v<Text>)
      return text();
    else if constexpr (std::is_convertible_v<Text, std::string>)
      return std::string(text);
    else
      return text;
  }
  std::vector<Problem> take() { return std::move(problems_); }
  bool clean() const { return clean_; }
  bool done() const {
    return !clean_ && !texts_;
  }  // the first broken rule is known, and is all that is asked for
  std::string_view first_key() const { return first_key_; }

 private:
  static std::string_view name(std::string_view key) { return key; }
  static std::string_view name(const Entry& entry) { return entry.list; }
  static std::string full_name(std::string_view key) { return std::string(key); }
  static std::string full_name(const Entry& entry) { return fmt::format("{}[{}]", entry.list, entry.index); }
  bool texts_ = true, clean_ = true;
  std::string_view first_key_;  // of a literal
  std::vector<Problem> problems_;
};

void ranges(Rules& r, const ParallelPlan& p) {
  for (const auto& [key, value] : {std::pair{"tp", p.tp},
                                   {"cp", p.cp},
                                   {"pp", p.pp},
                                   {"dp", p.dp},
                                   {"vp", p.vp},
                                   {"micro_batch", p.micro_batch},
                                   {"last_bucket_split", p.last_bucket_split}})
    r.require(value >= 1 && value <= kMaxDegree, key, value,
              [&] { return fmt::format("from 1 to {}", kMaxDegree); });
  r.require(!r.clean() || degrees_fit(p), "tp * cp * pp * dp", static_cast<double>(p.tp) * p.cp * p.pp * p.dp,
            [&] {
              return fmt::format("at most {} ranks, and at most {} chunks (pp * vp)", kMaxWorld, kMaxChunks);
            });
  r.require(p.zero_stage >= 0 && p.zero_stage <= 3, "zero_stage", p.zero_stage, "from 0 to 3");
  r.require(p.shard_degree >= 0, "shard_degree", p.shard_degree, "0 (all dp * cp ranks) or more");
  r.require(p.optimizer_offload >= 0 && p.optimizer_offload <= 1, "optimizer_offload", p.optimizer_offload,
            "a share from 0 to 1");
  r.require(p.activation_offload >= 0, "activation_offload", p.activation_offload, "0 layers or more");
  r.require(p.offload_horizon >= 0, "offload_horizon", p.offload_horizon, "0 layers or more");
  r.require(p.bucket_elements >= 0, "bucket_elements", p.bucket_elements, "0 (the stack's rule) or more");
  unsigned axes = 0;
  for (const Axis axis : p.axis_order) axes |= 1u << static_cast<unsigned>(axis);
  r.require(
      axes == 0b1111, "axis_order",
      [&] {
        return fmt::format("{} {} {} {}", name(p.axis_order[0]), name(p.axis_order[1]), name(p.axis_order[2]),
                           name(p.axis_order[3]));
      },
      "tp, cp, dp and pp once each");
}

void own_inconsistencies(Rules& r, const ParallelPlan& p) {
  r.require(p.tp > 1 || !p.sequence_parallel, "sequence_parallel", true, "false with tp 1",
            "sequence parallelism splits over the TP ranks");
  r.require(p.tp > 1 || !p.overlap_tp, "overlap_tp", true, "false with tp 1");
  const bool interleaved = p.schedule == PipelineSchedule::interleaved;
  r.require(
      p.vp == 1 || interleaved, "vp", p.vp,
      [&] { return fmt::format("1 with the {} schedule", name(p.schedule)); },
      "only the interleaved schedule has virtual stages");
  r.require(p.vp > 1 || !interleaved, "schedule", name(p.schedule), "vp of 2 or more with it");
  r.require(p.pp > 1 || p.vp == 1, "vp", p.vp, "1 without a pipeline (pp 1)");
  r.require(p.pp > 1 || interleaved || p.schedule == PipelineSchedule::one_f_one_b, "schedule",
            name(p.schedule), "1f1b without a pipeline (pp 1)");
  r.require(p.schedule != PipelineSchedule::zero_bubble || p.activation_offload == 0, "activation_offload",
            p.activation_offload, "0 with the zero_bubble schedule",
            "its weight halves need the activations again after the place they were fetched into is reused");
  r.require(p.shard_degree == 0 || p.replicas() % p.shard_degree == 0, "shard_degree", p.shard_degree,
            [&] { return fmt::format("a divisor of dp * cp {}", p.replicas()); });
  r.require(p.zero_stage > 0 || p.shard_degree <= 1, "shard_degree", p.shard_degree,
            "0 or 1 with ZeRO stage 0", "ZeRO stage 1, 2 or 3 sets what is sharded");
  r.require(p.recompute.kind == RecomputeKind::full || p.recompute.layers < 0, "recompute_layers",
            p.recompute.layers,
            [&] { return fmt::format("none with {} recompute", name(p.recompute.kind)); });
  r.require(p.recompute.layers != 0, "recompute_layers", 0, "1 layer or more",
            "recompute none means the same");
  const char* const in_lockstep =
      "replicas would meet in every micro-batch, and wait for the slowest in each";
  const bool unequal = !p.replica_microbatches.empty();
  r.require(!unequal || p.zero_stage <= 1, "zero_stage", p.zero_stage,
            "0 or 1 with replica_microbatches (ga)", in_lockstep);
  r.require(!unequal || !p.parameter_offload, "parameter_offload", true,
            "false with replica_microbatches (ga)", in_lockstep);
}

void layers(Rules& r, const ParallelPlan& p, const ModelSpec& m) {
  const int n_chunks = p.pp * p.vp;
  if (p.chunks.empty()) {
    r.require(
        n_chunks <= m.n_layers, "pp * vp", n_chunks,
        [&] { return fmt::format("at most the {} layers of the model", m.n_layers); },
        n_chunks == m.n_layers + 2
            ? "embedding and LM head alone are chunks where the key states it: L0-1x...-0"
            : "");
  } else {
    r.require(static_cast<int>(p.chunks.size()) == n_chunks, "chunk_layers", p.chunks.size(),
              [&] { return fmt::format("pp * vp = {} of them", n_chunks); });
    std::int64_t next = 0;
    for (std::size_t c = 0; c < p.chunks.size(); ++c) {
      const Entry key{"chunk_layers", c};
      r.require(p.chunks[c].first == next, key, p.chunks[c].first,
                [&] { return fmt::format("first layer {}, where the chunk before it ends", next); });
      // The outer chunks may hold the embedding or the head alone.
      const int least = c == 0 || c + 1 == p.chunks.size() ? 0 : 1;
      r.require(p.chunks[c].count >= least && p.chunks[c].count <= m.n_layers, key, p.chunks[c].count,
                [&] { return fmt::format("from {} to {} layers", least, m.n_layers); });
      next = std::int64_t{p.chunks[c].first} + p.chunks[c].count;
    }
    r.require(next == m.n_layers, "chunk_layers", next,
              [&] { return fmt::format("all {} layers of the model covered", m.n_layers); });
  }
  if (!r.clean()) return;
  int longest = p.chunks.empty() ? (m.n_layers + n_chunks - 1) / n_chunks : 0;
  for (const LayerRange& chunk : p.chunks) longest = std::max(longest, chunk.count);
  r.require(p.recompute.layers <= longest, "recompute_layers", p.recompute.layers,
            [&] { return fmt::format("at most the {} layers of the longest chunk", longest); });
  r.require(p.activation_offload <= longest, "activation_offload", p.activation_offload,
            [&] { return fmt::format("at most the {} layers of the longest chunk", longest); });
}

void uneven_replicas(Rules& r, const ParallelPlan& p, const TrainingSpec& t) {
  const std::vector<int>& counts = p.replica_microbatches;
  const bool one_for_all = counts.size() == 1 && p.dp > 1;
  r.require(
      static_cast<int>(counts.size()) == p.dp, "replica_microbatches", counts.size(),
      [&] { return fmt::format("one number for each of the dp = {} replicas", p.dp); },
      one_for_all ? "as many for all follow from --global-batch, mbs times dp times that number, without ga"
                  : "");
  if (one_for_all) return;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < counts.size(); sum += counts[i++])
    r.require(counts[i] >= 1 && counts[i] <= kMaxDegree, Entry{"replica_microbatches", i}, counts[i],
              "1 micro-batch or more", "leave the replica out instead");
  r.require(sum * p.micro_batch == t.global_batch, "replica_microbatches", sum * p.micro_batch,
            [&] { return fmt::format("the {} sequences of the global batch in all", t.global_batch); });
  r.require(std::ranges::min(counts) < std::ranges::max(counts), "replica_microbatches", counts.front(),
            "numbers that differ", "without them all replicas have equally many");
}

void uneven_shards(Rules& r, const ParallelPlan& p) {
  const std::vector<int>& weights = p.shard_weights;
  r.require(p.shards() > 1, "shard_weights", fmt::format("{}", fmt::join(weights, "-")),
            "none where nothing is sharded",
            "ZeRO stage 1, 2 or 3 over two replicas or more shards the optimizer's state");
  if (!r.clean()) return;
  r.require(static_cast<int>(weights.size()) == p.shards(), "shard_weights", weights.size(),
            [&] { return fmt::format("one number for each of the {} shards", p.shards()); });
  int common = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    r.require(weights[i] >= 1 && weights[i] <= kMaxShardWeight, Entry{"shard_weights", i}, weights[i],
              [&] { return fmt::format("from 1 to {}", kMaxShardWeight); });
    common = std::gcd(common, weights[i]);
  }
  r.require(common == 1, "shard_weights", fmt::format("{}", fmt::join(weights, "-")),
            [&] { return fmt::format("numbers without the common divisor {}", common); });
  r.require(std::ranges::min(weights) < std::ranges::max(weights), "shard_weights", weights.front(),
            "numbers that differ", "without them all shards are equal");
}

void model_and_batch(Rules& r, const ParallelPlan& p, const ModelSpec& m, const TrainingSpec& t) {
  r.divides(p.tp, "tp", m.n_heads, "n_heads");
  // With more TP ranks than key/value heads each head is held by several ranks.
  r.require(m.n_kv_heads % p.tp == 0 || p.tp % m.n_kv_heads == 0, "tp", p.tp,
            [&] { return fmt::format("a divisor or a multiple of n_kv_heads {}", m.n_kv_heads); });
  r.divides(p.tp, "tp", m.ffn_hidden, "ffn_hidden");
  // Causal balance gives every CP rank two slices, one from each end of the sequence.
  const int slices = p.cp > 1 ? 2 * p.cp : 1;
  r.require(t.seq_len % slices == 0, "cp", p.cp,
            [&] { return fmt::format("2 * cp to divide seq_len {}", t.seq_len); });
  if (p.sequence_parallel && t.seq_len % slices == 0)
    r.require(t.seq_len / p.cp % p.tp == 0, "tp", p.tp, [&] {
      return fmt::format("a divisor of the {} tokens of a CP rank (sequence parallelism)", t.seq_len / p.cp);
    });
  if (p.replica_microbatches.empty()) {
    const std::int64_t sequences = static_cast<std::int64_t>(p.micro_batch) * p.dp;
    r.require(t.global_batch % sequences == 0, kBatchOfReplicas, sequences,
              [&] { return fmt::format("a divisor of the global batch {}", t.global_batch); });
  } else {
    uneven_replicas(r, p, t);
    if (!r.clean()) return;
  }
  if (!p.shard_weights.empty()) uneven_shards(r, p);
  const int m_batches = microbatches(p, t);
  if (p.schedule == PipelineSchedule::interleaved && m_batches > 0)
    r.require(m_batches >= p.pp, "pp", p.pp,
              [&] { return fmt::format("at most the {} micro-batches (interleaved schedule)", m_batches); });
  if (m.position == PositionKind::learned)
    r.require(t.seq_len <= m.max_positions, "seq_len", t.seq_len, [&] {
      return fmt::format("at most the {} rows of the model's position table", m.max_positions);
    });
}

void check(Rules& rules, const ParallelPlan& plan, const ModelSpec& model, const TrainingSpec& training,
           auto inputs_valid) {
  ranges(rules, plan);
  if (!rules.clean()) return;  // the multiplications below would overflow or divide by zero
  own_inconsistencies(rules, plan);
  if (!rules.done() && inputs_valid()) {
    model_and_batch(rules, plan, model, training);
    if (!rules.done()) layers(rules, plan, model);
  }
}

}  // namespace

std::vector<Problem> validate(const ParallelPlan& plan, const ModelSpec& model,
                              const TrainingSpec& training) {
  Rules rules(Report::every_problem);
  check(rules, plan, model, training, [&] { return validate(model).empty() && validate(training).empty(); });
  return rules.take();
}

std::vector<Problem> validate_checked(const ParallelPlan& plan, const ModelSpec& model,
                                      const TrainingSpec& training) {
  Rules rules(Report::every_problem);
  check(rules, plan, model, training, [] { return true; });
  return rules.take();
}

std::string_view broken_rule(const ParallelPlan& plan, const ModelSpec& model, const TrainingSpec& training) {
  Rules rules(Report::first_key);
  check(rules, plan, model, training, [] { return true; });
  return rules.first_key();
}

}  // namespace sextant
