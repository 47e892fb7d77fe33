// What stands in a run's folder, and what is wrong with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/run_folder.hpp"

namespace sextant::testing {

inline bool tells(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

inline std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

inline std::vector<std::int64_t> steps_in(const std::filesystem::path& run) {
  std::vector<std::int64_t> steps;
  for (const auto& c : committed_checkpoints(run)) steps.push_back(c.step);
  return steps;
}

// What opening and reading all of the newest checkpoint says; empty when nothing is wrong.
inline std::string fault(const std::filesystem::path& run, CheckpointUse use = CheckpointUse::go_on) {
  try {
    Checkpoint::open(run, {}, use).verify();
    return "";
  } catch (const ConfigError& e) {
    return e.what();
  }
}

inline void flip(const std::filesystem::path& file, std::int64_t at, unsigned char bits) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(at);
  const int byte = f.get();
  f.seekp(at);
  f.put(static_cast<char>(byte ^ bits));
}

}  // namespace sextant::testing
