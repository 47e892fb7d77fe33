// Every value of a preset file with what it is: unit and meaning, which tools/presets/meanings.json holds once for all
// files of a kind, and where it comes from, which the file says: beside the value, or once for what stands around it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

struct PresetValue {
  std::string key;        // path in the file: "kernels.pointwise_passes", "calibrated constants[3].sigma"
  std::string value;      // as JSON
  std::string low, high;  // how far a fit may move it, as JSON; empty: not stated
  bool number = false;    // or a list of numbers
  std::string unit, meaning;
  std::string origin, source, date;  // origin in words: "fitted", "assumed"
  std::string of;                    // the preset that says it, where a stack has it from its base
};

// In the order of the file; what a stack has from its bases follows. Throws ConfigError where a file cannot be read.
std::vector<PresetValue> preset_values(const std::filesystem::path& presets,
                                       const std::filesystem::path& file);

// What is missing of a number: unit, meaning, source. Also a unit that is not the one in its key ("_us", "_GBps").
std::vector<std::string> unsaid(const PresetValue&);

// The part of the presets that a file is of: "stacks", "cost", "calibration"; of a file beside those folders, its own name.
std::string preset_kind(const std::filesystem::path& file, const std::filesystem::path& presets);

}  // namespace sextant
