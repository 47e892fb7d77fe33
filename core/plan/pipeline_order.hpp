// In which order does a pipeline stage work through its micro-batches and model chunks? A pure schedule: no times.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/parallel_plan.hpp"

namespace sextant {

// weight is the deferred half of a backward pass (zero-bubble schedule only).
enum class SlotKind : std::uint8_t { forward, backward, weight };

struct Slot {
  SlotKind kind = SlotKind::forward;
  std::uint16_t chunk = 0;  // on this stage, 0 .. vp-1; the model chunk is chunk * pp + stage
  std::uint32_t microbatch = 0;
  bool operator==(const Slot&) const = default;
};

// Micro-batches m that an interleaved stage takes through one chunk before the next: the fewest, from pp on, whose last
// group has none or pp at least. pp where it divides m; 0 where there are fewer than pp. What Megatron-Core asks of
// microbatch_group_size_per_vp_stage (pipeline_parallel/schedules.py); from pp on, PyTorch's ScheduleInterleaved1F1B takes
// m / (m / pp), which is the same wherever it accepts m.
int interleaved_group(int pp, int n_microbatches);

// 1F1B: Narayanan et al. 2021 (arXiv 2104.04473) fig. 4 top. Interleaved: fig. 4 bottom, in Megatron's form:
// micro-batches in groups, chunk by chunk inside a group; needs pp micro-batches at least, and with pp of them all forwards come
// first, as in Megatron-LM until 2024. GPipe: all forward, all backward. Zero bubble: ZB-H1 of Qi et al. 2023 (arXiv
// 2401.10241): the backward is split and stage s keeps up to s weight halves back, so that no stage holds more than the
// first one.
std::vector<Slot> pipeline_order(PipelineSchedule, int pp, int vp, int n_microbatches, int stage);
// The same of every stage.
std::vector<std::vector<Slot>> pipeline_orders(PipelineSchedule, int pp, int vp, int n_microbatches);

// The largest number of micro-batches (counted per chunk) whose activations are alive at once on the stage.
int peak_in_flight(const std::vector<Slot>& order);

struct StageSlot {
  int stage = 0;
  Slot slot;
};

// All stages' slots in one order in which every slot stands behind what it waits for: stage by stage, one slot a turn.
// This is the issue order of the execution graph. Throws when the schedule waits in a circle.
std::vector<StageSlot> merged_order(PipelineSchedule, int pp, int vp, int n_microbatches);
std::vector<StageSlot> merged_order(const std::vector<std::vector<Slot>>& by_stage, int vp,
                                    int n_microbatches);

// What a stage holds while it works on one slot: micro-batches saved per chunk (the slot's own included), and streams
// that have arrived from its neighbours and wait (the slot's own included). Distinct states only.
struct Occupancy {
  SlotKind kind = SlotKind::forward;
  std::uint16_t chunk = 0;
  std::uint16_t arrived = 0;
  std::vector<std::uint16_t> saved;  // by chunk on the stage: forward done or running, backward not yet begun
  std::vector<std::uint16_t> saved_weight;  // by chunk: backward done or running, weight half not yet begun
  bool operator==(const Occupancy&) const = default;
};
std::vector<std::vector<Occupancy>> occupancy(PipelineSchedule, int pp, int vp, int n_microbatches);

}  // namespace sextant
