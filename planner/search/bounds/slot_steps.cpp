// Which slots of the schedule a bound walks, and in which order: all of them, or of many like micro-batches a few.
#include <algorithm>
#include <cstdint>
#include <numeric>

#include "planner/search/bounds/bound.hpp"

namespace sextant {

namespace {

std::vector<SlotStep> steps_by_depth(PipelineSchedule schedule, int pp, int vp, int microbatches) {
  const auto m = static_cast<std::uint32_t>(microbatches), last = static_cast<std::uint32_t>(pp * vp - 1);
  const std::uint32_t gradients = (last + 1) * m, nothing = 2 * gradients, nowhere = nothing + 1;
  // Neighbours in merged_order() wait for one another. By depth they do not, and a processor works on several at once.
  std::vector<std::uint32_t> lane(static_cast<std::size_t>(pp)), arrived(nowhere + 1);
  const std::vector<StageSlot> order = merged_order(schedule, pp, vp, microbatches);
  std::vector<SlotStep> in_order;
  std::vector<std::uint32_t> depths, before;  // by step; steps of lower depth, by depth
  in_order.reserve(order.size());
  depths.reserve(order.size());
  for (const StageSlot& merged : order) {
    const Slot& slot = merged.slot;
    const auto chunk = static_cast<std::uint32_t>(slot.chunk * pp + merged.stage);
    SlotStep step{.from = nothing, .to = nowhere};
    step.at = chunk * m + slot.microbatch;
    step.of = static_cast<std::uint16_t>(kSlotKinds * chunk + static_cast<std::uint32_t>(slot.kind));
    const bool forward = slot.kind == SlotKind::forward, weight = slot.kind == SlotKind::weight;
    if (!weight && chunk != (forward ? 0 : last)) step.from = forward ? step.at : gradients + step.at;
    if (!weight && chunk != (forward ? last : 0)) step.to = forward ? step.at + m : gradients + step.at - m;
    step.is_first = forward && slot.microbatch == 0;
    step.is_last = !forward && !weight && slot.microbatch + 1 == m;
    std::uint32_t& depth = lane[static_cast<std::size_t>(merged.stage)];
    depth = std::max(depth, step.from == nothing ? 0 : arrived[step.from]) + 1;
    arrived[step.to] = depth;
    in_order.push_back(step);
    depths.push_back(depth);
    before.resize(std::max<std::size_t>(before.size(), depth + 2));
    ++before[depth + 1];
  }
  std::partial_sum(before.begin(), before.end(), before.begin());
  std::vector<SlotStep> steps(in_order.size());
  for (std::size_t i = 0; i < in_order.size(); ++i) steps[before[depths[i]]++] = in_order[i];
  return steps;
}

// Whether on every stage a forward and a backward take turns around the step: a stage's slots before it are the first of a longer
// schedule, and those behind it the last.
bool is_steady_at(const std::vector<SlotStep>& steps, std::size_t cut, int pp) {
  struct Stage {
    int done = 0, at_cut = 0, first_backward = -1, last_forward = 0;
  };
  std::vector<Stage> stages(static_cast<std::size_t>(pp));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const SlotStep& step = steps[i];
    if (step.is_first && i >= cut) return false;
    if (step.is_last && i < cut) return false;
    Stage& stage = stages[step.of / kSlotKinds % stages.size()];
    const bool forward = step.of % kSlotKinds == static_cast<std::size_t>(SlotKind::forward);
    if (forward) stage.last_forward = stage.done;
    if (!forward && stage.first_backward < 0) stage.first_backward = stage.done;
    ++stage.done;
    if (i < cut) ++stage.at_cut;
  }
  return std::ranges::all_of(stages, [](const Stage& s) {
    return s.first_backward - 1 <= s.at_cut && s.at_cut <= s.last_forward + 1;
  });
}

}  // namespace

SlotSteps slot_steps(PipelineSchedule schedule, int pp, int vp, int microbatches) {
  return {steps_by_depth(schedule, pp, vp, microbatches), microbatches, 0, 0};
}

// Why it is a bound. The longest path through the walked slots crosses the cut once, on a stage's lane or beside it. Its first part is
// a path of the whole schedule as it is, its second with every micro-batch moved on by those left out, which are whole groups of the
// schedule. Where it crosses on a lane, of compute, sends, copies or reductions, all slots of those are between the parts; a place of the
// ring of copies waits for the one before in the same place (may_walk_few).
SlotSteps few_slot_steps(PipelineSchedule schedule, int pp, int vp, int microbatches) {
  constexpr int kRounds = 4;  // of the pipeline's depth
  const bool interleaved = schedule == PipelineSchedule::interleaved;
  const int group = interleaved ? interleaved_group(pp, microbatches) : 1;
  if ((!interleaved && schedule != PipelineSchedule::one_f_one_b) || group == 0)
    return slot_steps(schedule, pp, vp, microbatches);
  const int left_out = std::max(0, microbatches - kRounds * std::max(pp, group)) / group * group,
            walked = microbatches - left_out;
  if (left_out < microbatches / 4 || (interleaved && interleaved_group(pp, walked) != group))
    return slot_steps(schedule, pp, vp, microbatches);
  SlotSteps few{steps_by_depth(schedule, pp, vp, walked), walked, left_out, 0};
  few.cut = few.steps.size() / 2;
  if (!is_steady_at(few.steps, few.cut, pp)) return slot_steps(schedule, pp, vp, microbatches);
  return few;
}

bool may_walk_few(const PipelineTimes& p, const SlotSteps& few) {
  if (p.offloaded.empty() || few.left_out == 0) return true;
  const auto pp = static_cast<std::size_t>(p.pp);
  for (std::size_t stage = 0; stage < pp; ++stage) {
    std::int64_t copied = 0;  // layers of a micro-batch
    for (std::size_t chunk = stage; chunk < p.offloaded.size(); chunk += pp)
      copied += p.offloaded[chunk].last - p.offloaded[chunk].first;
    if (std::int64_t{2} * few.left_out * copied % p.ring != 0) return false;
  }
  return true;
}

}  // namespace sextant
