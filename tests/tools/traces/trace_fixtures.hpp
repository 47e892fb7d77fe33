// Traces of tests/golden/traces (tests/reference/make_traces.py), and small ones written by a test.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include "tests/support/measured.hpp"
#include "tools/traces/kernel_names.hpp"
#include "tools/traces/trace_files.hpp"

namespace sextant::test {

inline std::filesystem::path golden_trace(const std::string& name) {
  return std::filesystem::path(SEXTANT_SOURCE_DIR) / "tests/golden/traces" / name;
}
inline const KernelNames& shipped_names() {
  static const KernelNames names(preset_dir());
  return names;
}

// A database of what these statements make; one that stands there gets more.
inline void write_database(const std::filesystem::path& file, const std::string& sql) {
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(file.c_str(), &database), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
      << sqlite3_errmsg(database);
  sqlite3_close(database);
}

// Events of a Kineto trace as text, with what launched them.
inline std::string kernel_event(const std::string& name, double ts_us, double dur_us, int stream = 7,
                                double launch_us = -1, const std::string& args = "") {
  static int correlation = 0;
  ++correlation;
  std::string out = fmt::format(
      R"({{"ph":"X","cat":"kernel","name":"{}","pid":0,"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"device":0,"stream":{},"correlation":{}{}}}}})",
      name, stream, ts_us, dur_us, stream, correlation, args);
  if (launch_us >= 0)
    out += fmt::format(
        R"(,{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":{:.3f},"dur":1,"args":{{"correlation":{}}}}})",
        launch_us, correlation);
  return out;
}
inline std::string step_event(int number, double ts_us, double dur_us) {
  return fmt::format(
      R"({{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{}","pid":1,"tid":1,"ts":{:.3f},"dur":{:.3f},"args":{{}}}})",
      number, ts_us, dur_us);
}
inline std::string kineto_text(const std::vector<std::string>& events, int rank = 0, int world = 1,
                               const std::string& device = "NVIDIA H100 80GB HBM3") {
  return fmt::format(
      R"({{"schemaVersion":1,"deviceProperties":[{{"id":0,"name":"{}"}}],"distributedInfo":{{"rank":{},"world_size":{}}},"traceEvents":[{}]}})",
      device, rank, world, fmt::join(events, ","));
}

}  // namespace sextant::test
