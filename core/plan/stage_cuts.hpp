// Which cuts of a model's layers into pipeline stages can a framework express, and which does it make by a rule of its own? A
// cut is the number of decoder layers of each model chunk, in model order; chunk c lies on stage c % pp. Embedding and LM head
// go with the first and the last chunk.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model_spec.hpp"
#include "core/plan/parallel_plan.hpp"

namespace sextant {

enum class UnevenStages : std::uint8_t {
  none,  // as many layers in every chunk
  // The first and the last stage may hold other numbers than those between, which are alike; chunks of one stage are alike. Or
  // equal chunks that count embedding, LM head or both as one layer. Megatron-Core 0.11 and 0.12: num_layers_in_first_pipeline_stage,
  // num_layers_in_last_pipeline_stage, account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split.
  ends,
  partition_method,  // DeepSpeed's PipelineModule over Megatron's layers: one of its methods
  seg_method,  // Paddle's PipelineLayer: equal, or uniform with embedding, norm and head counted as layers
  block_compute_costs,  // nanotron: by the cost of layers and LM head
  per_stage,  // any number for each stage; virtual stages share out what is left from the middle on (Colossal-AI)
  any,
};
inline constexpr std::array<std::string_view, 7> kUnevenStagesNames = {
    "none", "ends", "partition_method", "seg_method", "block_compute_costs", "per_stage", "any"};

inline std::string_view name(UnevenStages able) { return kUnevenStagesNames[static_cast<std::size_t>(able)]; }

// The cuts that the framework's own rule makes, its default first. Empty where its user states the cut, and where the rule
// makes none that trains: a stage without a layer, or chunks that do not divide.
std::vector<std::vector<int>> ruled_cuts(UnevenStages, int pp, int vp, const ModelSpec&);
// Whether the framework cuts by a rule of its own, whatever its user would like.
bool cuts_by_rule(UnevenStages, int vp);

// Whether the framework can express the plan's cut. Chunks that a plan does not state are an even split; where the framework cuts
// by a rule of its own they are what that makes.
bool can_cut(UnevenStages, const ParallelPlan&, const ModelSpec&);
// The same of these very layers.
bool can_cut(UnevenStages, const ParallelPlan&, std::span<const LayerRange>, const ModelSpec&);

// Most chunks that the framework makes of so many layers. Where their numbers are free at the ends, embedding and LM head may have
// a chunk each, alone: 128 chunks of 126 layers (Llama 3.1 405B as Meta trained it: arXiv 2407.21783, section 3.3.2). Source for
// `ends`: Megatron-Core 0.12, transformer_block.py, get_num_layers_to_build: none is enough in the outer chunks.
int most_chunks(UnevenStages, int n_layers);
// The plan with that many chunks on its stages, a layer each or embedding or LM head alone. Nothing where its stages do not divide
// them, where it has them, and where it is worth little: with two or three stages, or where the chunks are no multiple of four.
std::optional<ParallelPlan> with_ends_alone(UnevenStages, ParallelPlan, const ModelSpec&);

// What the framework does with layers, and what to do instead, of a plan with pipeline stages that it cannot cut so: two halves of
// a message.
struct CutRefusal {
  std::string reason, instead;
  std::vector<std::vector<int>> cuts;  // that it can express instead; one at least where there is any
};
CutRefusal cut_refusal(UnevenStages, const ParallelPlan&, const ModelSpec&);

// Options of the framework that make the plan's cut, such as num_layers_in_first_pipeline_stage=7; empty where none is needed.
std::string cut_option(UnevenStages, const ParallelPlan&, const ModelSpec&);

// Gives a plan that states no chunks those of the framework's own rule, where they are not an even split. What was taken, for a
// note; nothing where nothing was.
std::optional<std::string> take_ruled_cut(UnevenStages, const ModelSpec&, ParallelPlan&);

// Chunks of as many layers where embedding and LM head count as `first` and `last` layers; the first chunks hold one more where they do not
// divide. Nothing where a chunk would hold less than none.
// Source: pytorch/torchtitan b5bcd76, torchtitan/distributed/pipeline_parallel.py, _generate_llm_fqn_per_model_part.
std::optional<std::vector<int>> cut_with_ends(int n_layers, int chunks, int first, int last);

// Times of one layer on the first stage, those between and the last, and of embedding and LM head, in any unit.
struct EndCosts {
  double first = 1, inner = 1, last = 1, embedding = 0, head = 0;
};
// Of the cuts that `ends` allows, one whose slowest chunk is fastest; among those the most even one. Empty where there is none.
std::vector<int> ends_cut(int n_layers, int pp, int vp, const EndCosts& = {});

}  // namespace sextant
