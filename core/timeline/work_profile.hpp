// Durations measured on a machine, by work: what `sextant profile` writes and what prices a plan for that machine. Ignores
// that a machine changes: a profile has a date and a name.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/timeline/machine_facts.hpp"

namespace sextant {

inline constexpr const char* kProfileSchema = "sextant.profile/1";

struct MeasuredWork {
  // Of the samples. A step takes the sum of means, whatever the shape of their distribution: ranks that share cores have
  // medians far below. The spread lies between the quartiles.
  double mean_us = 0, median_us = 0, spread_us = 0;
  double alone_us = 0;  // mean of a collective while nothing else runs; 0: not measured so
  int samples = 0;
  int outliers = 0;  // of them: far from the others, and counted all the same
  bool operator==(const MeasuredWork&) const = default;
};

struct WorkProfile {
  std::string schema = kProfileSchema;
  std::string machine, date, sextant;
  std::vector<std::string> command;           // that measured, word by word
  std::string timed_by;                       // "events", or how the kernels of operations were timed
  std::vector<std::string> notes;             // what the figures are not of
  int ranks = 1;                              // that ran at the same time, at most
  std::map<std::string, MeasuredWork> works;  // by work_key
  std::optional<MachineFacts> facts;  // what the machine is; when it was measured as well, what it does
  std::string former = {};            // of a file that was read: what is written as version 0.1 wrote it
  bool operator==(const WorkProfile&) const = default;
};
void to_json(nlohmann::json&, const WorkProfile&);
void from_json(const nlohmann::json&, WorkProfile&);  // throws ConfigError: also for keys that name no work
// A file, or the name of one that is shipped (PRESETS/profiles). Throws ConfigError.
WorkProfile load_profile(const std::string& file_or_name, const std::filesystem::path& presets);

}  // namespace sextant
