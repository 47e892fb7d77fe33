// Traces as the PyTorch profiler (Kineto) writes them: Chrome trace JSON, one file per rank, packed by gzip or not.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "tools/traces/gpu_trace.hpp"
#include "tools/traces/kernel_names.hpp"

namespace sextant {

// Called now and then with the share of the file that is read, 0 to 1.
using ReadProgress = std::function<void(double)>;

// One trace per device on which the file has kernels: one, as each rank is a process. Read as a stream; the host's operations, which are
// most of a file, are not kept.
// Throws ConfigError on a file that is cut or damaged, is no trace, or saw nothing of a GPU.
std::vector<RankTrace> read_kineto_trace(const std::filesystem::path&, const KernelNames&,
                                         const ReadProgress& = {});

}  // namespace sextant
