// Traces as a user names them: files and folders of them, of PyTorch and Nsight Systems, told by their content; the ranks of one job.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/traces/collective_waits.hpp"
#include "tools/traces/gpu_trace.hpp"
#include "tools/traces/kernel_names.hpp"

namespace sextant {

enum class TraceFormat : std::uint8_t { kineto, nsys };

// Nothing for a file that is no trace, or cannot be read.
std::optional<TraceFormat> trace_format_of(const std::filesystem::path&);

// The traces in a folder, or in the one folder in it that has some, by name. Empty: it has none.
// Throws ConfigError where several folders in it have traces, as of several iterations.
std::vector<std::filesystem::path> trace_files_in(const std::filesystem::path& folder);

// The ranks of one job that were traced, in order.
struct TracedJob {
  std::vector<RankSteps> ranks;  // a rank may have several traces, of other steps
  std::string program, device;   // device empty: not said
  int world = 0;                 // 0: not said
  std::vector<std::string> remarks;
};

// `progress`: share of all that is read, 0 to 1, and the file that is read. Waits inside collectives are told from transfers.
// Throws ConfigError on what no file can be read as, files of several jobs or devices, and a rank that is given twice.
TracedJob read_traces(const std::vector<std::filesystem::path>& files, const KernelNames&,
                      const std::function<void(double, const std::string&)>& progress = {});

}  // namespace sextant
