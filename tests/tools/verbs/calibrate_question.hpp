// The question of the tests of `sextant calibrate`, and runs to give it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/csv.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"

namespace sextant {

inline const std::vector<std::string> kQuestion = {"--model", "llama-2-13b", "--cluster", "8x8xa100-80gb"};

inline std::vector<std::string> with_question(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), kQuestion.begin(), kQuestion.end());
  return arguments;
}

// Three runs of nanotron, of which the tables of memory constants are, with these peaks.
inline std::string nanotron_runs(const TempDir& folder, const std::vector<double>& peaks_GiB,
                                 const char* step_s = "30") {
  const CsvTable example = parse_csv(call({"validate", "--example"}).out, "example");
  std::string text;
  for (const std::string& name : example.columns) text += (text.empty() ? "" : ",") + name;
  text += '\n';
  for (std::size_t run = 0; run < peaks_GiB.size(); ++run) {
    const std::map<std::string, std::string> own = {{"run_id", "r" + std::to_string(run)},
                                                    {"source", "nanotron"},
                                                    {"framework", "nanotron"},
                                                    {"recompute", "none"},
                                                    {"step_time_s", step_s},
                                                    {"peak_memory_GiB", std::to_string(peaks_GiB[run])}};
    for (std::size_t i = 0; i < example.columns.size(); ++i) {
      const auto at = own.find(example.columns[i]);
      text += (i ? "," : "") + csv_field(at == own.end() ? example.rows[0].cells[i] : at->second);
    }
    text += '\n';
  }
  return folder.write("runs.csv", text).string();
}

}  // namespace sextant
