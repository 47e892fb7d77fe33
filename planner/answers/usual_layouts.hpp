// What is usual for a stack and its devices: layouts whose features and degrees measured runs of its code have.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "core/plan/plan_limits.hpp"
#include "core/runs/evidence.hpp"
#include "planner/lowering/job.hpp"

namespace sextant {

inline Evidence evidence_of(const Job& job, const EvidenceTable& table, const ParallelPlan& plan) {
  return table.of(job.stack.name, job.cluster.device.generation, plan, job.training.seq_len);
}

// What of a layout is unusual for the job's stack and devices: its features, and degrees far beyond what was measured.
std::vector<std::string> unusual_features(const Job&, const EvidenceTable&, const ParallelPlan&);

// In a search: no feature of unusual_features(), and no uneven stages where the layers divide as well.
// `on_host`: offloads that are free all the same.
PlanLimits usual_limits(const Job&, const PlanLimits&, const EvidenceTable&,
                        std::initializer_list<PlanField> on_host = {});

// The same, as the framework advises: one space, or where it advises no ZeRO stage above some beside TP and CP two, one without
// these and one with lower stages.
std::vector<PlanLimits> advised_limits(const StackSpec&, const PlanLimits& usual);

inline constexpr std::initializer_list<PlanField> kOffloads = {
    PlanField::optimizer_offload, PlanField::parameter_offload, PlanField::activation_offload};
inline PlanLimit pinned(PlanField f, double value) { return {f, Relation::equal, value}; }
inline PlanLimit at_most_of(PlanField f, double value) { return {f, Relation::less_equal, value}; }

}  // namespace sextant
