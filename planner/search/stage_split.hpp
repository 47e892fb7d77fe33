// Which layers go to which model chunk? Contiguous chunks whose slowest is as fast as possible, embedding and LM head
// counted; among those the most even ones. Ignores memory and communication.
#pragma once

#include <span>
#include <vector>

#include "core/plan/parallel_plan.hpp"

namespace sextant {

// Time of one micro-batch, forward and backward, in any unit.
struct ChainCost {
  double layer = 1, embedding = 0, head = 0;
};

// The outer chunks may hold no layer, the others hold at least one (core/plan/plan_rules). Needs n_chunks - 2 <= n_layers.
std::vector<LayerRange> balanced_chunks(int n_layers, int n_chunks, const ChainCost&);
void balanced_chunks(int n_layers, int n_chunks, const ChainCost&,
                     std::vector<LayerRange>& out);  // reuses `out`

// The same where chunks are of unequal speed: `layer[c]` is the time of one layer in chunk c; the embedding is in the
// first chunk, the head in the last. Of the splits whose slowest chunk is fastest, one that no single layer's move evens.
void balanced_chunks(int n_layers, std::span<const double> layer, double embedding, double head,
                     std::vector<LayerRange>& out);

int longest_chunk(std::span<const LayerRange>);  // layers

}  // namespace sextant
