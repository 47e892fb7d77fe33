// A whole LLaMA out of kernels/blocks.hpp on tp x cp virtual ranks of one process: every rank holds its own
// slices and saved tensors, and the collectives between units are plain sums and copies in rank order. What a
// runtime has to reproduce, written down in straight lines.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/model/model_spec.hpp"
#include "kernels/blocks.hpp"
#include "kernels/positions.hpp"
#include "tests/reference/matrix.hpp"

namespace sextant::testing {

// Parameters or gradients in model space, by Hugging Face name.
using NamedTensors = std::map<std::string, std::vector<double>>;

struct VirtualLayout {
  int tp = 1, cp = 1;
  bool sequence_parallel = false;
  bool recompute_core = false;
  bool split_backward = false;  // input halves of a layer first, weight halves after
  bool fused_head = false;      // tp = 1 only
  int head_chunk = 16;
  int vocab_multiple = 1;
  Dtype dtype = Dtype::fp64;
  const KernelTable* kernels = nullptr;  // null: the reference table
};

struct StepResult {
  double loss = 0;                  // mean over valid targets
  std::vector<double> logits = {};  // [B, S, V], empty with cp > 1
  NamedTensors gradients = {};
};

class VirtualLlama {
 public:
  VirtualLlama(const ModelSpec&, const VirtualLayout&, const NamedTensors& weights);
  // ids and targets [batch, seq].
  StepResult run(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets, int batch);

 private:
  struct Slice {  // rows [first, first + rows) x columns of a parameter in model space
    std::int64_t first_row, rows, first_col, cols, all_rows, all_cols;
    bool replicated;  // every tp rank holds all of it
  };
  struct Rank {
    int tp = 0, cp = 0;
    std::map<std::string, Matrix> weights, gradients;
    std::vector<std::vector<std::uint64_t>> buffers;  // saved tensors, one buffer per half-layer and head
    std::vector<TensorSet> saved;
    std::vector<std::int32_t> positions, ids, targets;
    Matrix stream, gradient;
  };
  using PerRank = std::vector<Matrix>;

  Slice slice(const std::string& name, int tp_rank) const;
  BlockWork work(const Rank&, BlockKind, Pass) const;
  BlockContext context(const Rank&) const;
  TensorView weight(const Rank& r, const std::string& name) const { return r.weights.at(name).view(); }
  TensorView gradient(const Rank& r, const std::string& name) const { return r.gradients.at(name).view(); }
  AttentionWeights attention(const Rank&, int layer, bool gradients) const;
  MlpWeights mlp(const Rank&, int layer, bool gradients) const;
  std::string head_name() const;

  PerRank local_matrices() const;
  PerRank full_matrices(std::int64_t cols) const;
  PerRank gather_tokens(const std::vector<TensorView>& local) const;  // SP: concatenate; otherwise copies
  PerRank reduce_tokens(const PerRank& partial) const;                // sum over tp; SP: own slice of it
  PerRank gather_keys(const std::vector<TensorView>& kv) const;
  PerRank scatter_keys(const PerRank& dkeys) const;

  void start(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets, int batch);
  PerRank norm(int set, const std::string& name, const PerRank* branch);
  void norm_gradient(int set, const std::string& name, const PerRank& dnormed, bool bypass);
  PerRank attention_branch(int layer);
  PerRank mlp_branch(int layer);
  double loss_forward(std::vector<double>& logits);
  PerRank head_gradient();
  void mlp_gradient(int layer);
  void attention_gradient(int layer);
  NamedTensors collect() const;

  ModelSpec model_;
  VirtualLayout layout_;
  RopeTable rope_;
  std::vector<std::int32_t> key_positions_;
  std::vector<Rank> ranks_;  // cp-major: rank = cp_rank * tp + tp_rank
  NamedTensors shapes_source_;
  int batch_ = 0, seq_ = 0;
  std::int64_t valid_ = 0;
  PerRank pending_;
};

}  // namespace sextant::testing
