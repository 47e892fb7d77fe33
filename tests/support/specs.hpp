// Small specs for tests: a decoder of any depth, links without a cluster, cost models with stated prices.
#pragma once

#include "core/model/model_spec.hpp"
#include "core/model/training_spec.hpp"
#include "core/plan/plan_links.hpp"
#include "core/plan/stack_spec.hpp"
#include "cost_models/cost_model.hpp"
#include "planner/lowering/lower.hpp"

namespace sextant::testing {

inline ModelSpec tiny_model(int n_layers = 8) {
  ModelSpec m;
  m.name = "tiny";
  m.n_layers = n_layers;
  m.hidden = 64;
  m.n_heads = 8;
  m.n_kv_heads = 4;
  m.head_dim = 8;
  m.ffn_hidden = 96;
  m.vocab_size = 512;
  return m;
}

inline TrainingSpec tiny_training(int global_batch = 16) {
  TrainingSpec t;
  t.seq_len = 32;
  t.global_batch = global_batch;
  return t;
}

// Every group on equal links of 100 GB/s.
inline PlanLinks flat_links(const ParallelPlan& plan) {
  const auto group = [](int size) {
    GroupShape g;
    g.size = size;
    g.ranks_per_node = size;
    g.node_bandwidth = BytesPerSecond(1e11);
    g.network_bandwidth = BytesPerSecond(1e11);
    return g;
  };
  const int shards = plan.shards() > 1 ? plan.shards() : plan.replicas();
  StageLinks stage{group(plan.tp), group(plan.cp), group(shards), group(plan.replicas() / shards), group(2)};
  return {{stage}, {}, group(plan.world()), group(2)};
}

// A decoder block costs `forward` when forward and `backward` when backward; everything else costs nothing. Priced on
// the mlp unit alone, so that a layer costs exactly that.
struct LayerCost final : CostModel {
  double forward = 1, backward = 2;
  LayerCost(double f, double b) : forward(f), backward(b) {}
  OpCost price(const Work& work) const override {
    OpCost cost;
    if (const auto* block = std::get_if<BlockWork>(&work); block && block->kind == BlockKind::mlp)
      cost.duration = Seconds(block->pass == Pass::forward || block->pass == Pass::recompute ? forward
                              : block->pass == Pass::backward                                ? backward
                                                                                             : backward / 2);
    return cost;
  }
};

// A price for everything: distinct, positive, repeatable.
struct HashedCost final : CostModel {
  OpCost price(const Work& work) const override {
    OpCost cost;
    cost.duration = Seconds(1e-6 * (1 + static_cast<double>(std::hash<std::string>{}(work_key(work)) % 997)));
    return cost;
  }
};

inline ExecutionGraph lower_tiny(const std::string& key, int n_layers = 8, int global_batch = 16,
                                 const StackSpec& stack = {}, bool operands = true, bool tied = false) {
  ModelSpec model = tiny_model(n_layers);
  model.tied_embeddings = tied;
  const ParallelPlan plan = parse_plan_key(key);
  return lower(model, tiny_training(global_batch), flat_links(plan), plan, stack, {operands});
}

}  // namespace sextant::testing
