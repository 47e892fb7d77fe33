// What the framework must be told for a plan to run as it is simulated, beyond what the fields of the plan say.
#pragma once

#include <string>
#include <vector>

#include "core/model/training_spec.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/stack_spec.hpp"

namespace sextant {

// "microbatch_group_size_per_vp_stage ... 8: ..." where an interleaved schedule's groups are not pp micro-batches; else empty, and
// where a stack makes such groups by itself (torchtitan's equal rounds).
std::string framework_setting(const ParallelPlan&, const TrainingSpec&, const StackSpec&);

// "Ett|(ttt|)*6ttL": E the embedding, t a decoder layer, L the head with the loss, | between chunks. Of two chunks or more.
std::string pipeline_layout(const std::vector<LayerRange>& chunks);

// How a stack is told that model chunks hold unequal numbers of layers: Megatron-Core by its layout string, others by options of
// their own; empty where they are equal, or where the stack cuts so by itself. torchtitan counts embedding and LM head as layers, and is
// told of equal stages too.
// Source: NVIDIA/Megatron-LM d98e8a6, megatron/training/arguments.py 966-974, core/transformer/pipeline_parallel_layer_layout.py.
std::string layout_setting(const ParallelPlan&, const ModelSpec&, const StackSpec&);

}  // namespace sextant
