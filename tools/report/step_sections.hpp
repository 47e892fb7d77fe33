// Sections that several chapters have: where the step's time goes, what its stages hold, and when things happen in it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/timeline/breakdown.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "tools/report/planned_step.hpp"
#include "tools/report/report.hpp"

namespace sextant {

// Titles by which add_chapter knows a section.
inline constexpr const char* kTimeTitle = "Where the step goes";
inline constexpr const char* kMemoryTitle = "Memory per stage";
inline constexpr const char* kTimelineTitle = "One step on every stage";

struct StageHolds {
  std::string stage;
  std::vector<std::pair<std::string, double>> GiB;  // by category, host memory not among them
  double peak_GiB = 0;
};
ReportSection memory_section(const std::vector<StageHolds>&, double available_GiB);
std::vector<StageHolds> stages_of(const MemoryEstimate&);

// Seconds by part; of stages, by the same names, those that differ from stage to stage.
struct ChapterParts {
  std::vector<std::pair<std::string, double>> mean;
  double step_s = 0;
  std::vector<std::vector<std::pair<std::string, double>>> stages = {};
};
ReportSection time_section(const ChapterParts&);
std::vector<std::pair<std::string, double>> parts_of(const TimeSplit&);

// How long each stage works and waits.
ReportTable stages_table(const std::string& caption, const Breakdown&);

ReportSection timeline_section(const PlannedStep&);

}  // namespace sextant
