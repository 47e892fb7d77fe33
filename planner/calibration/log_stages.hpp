// What does a log say of its pipeline stages: how its layers were cut, in which order micro-batches run, and whose memory it shows?
// Used by planner/calibration/log_to_run and tools/inputs/calibrate_material.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/calibration/run_log.hpp"

namespace sextant {

struct LogCut {
  std::vector<int> layers;  // of each chunk, also where they are equal
  std::string assumed;      // for a note, where the log does not state all of them
};
// How the layers were cut for a layout of these pp and vp. torchtitan's logs need not print it, or one rank's stages alone: then it is the
// cut that its version makes by itself, where that agrees. Nothing where another log does not say. Throws ConfigError where what it states
// cuts no such model.
std::optional<LogCut> chunks_of_log(const RunLog&, const ModelSpec&, const ParallelPlan&);

// The virtual stages of a stage; nothing where the log does not say.
std::optional<int> virtual_stages_of_log(const RunLog&, const ModelSpec&, const ParallelPlan&);

// Of the schedules that torchtitan names; nothing where the log names none. `note`: what is priced otherwise than it ran.
std::optional<PipelineSchedule> schedule_of_log(const RunLog&, std::string* note);

// The micro-batch where torchtitan's log prints none for its stages: it cut a local batch into as many as there are stages until January
// 2025, when it printed the schedule's name alone, and into single sequences since. Nothing where the log says it, or has no stages.
std::optional<int> guessed_micro_batch(const RunLog&, const ParallelPlan&);

// Stages among whose peaks the log's is the largest, in order; empty: all of them, or no peak is shown. `node_gpus`: where tags of launchers
// count nodes.
std::vector<int> stages_of_peak(const RunLog&, const ParallelPlan&, int node_gpus = 8);

}  // namespace sextant
