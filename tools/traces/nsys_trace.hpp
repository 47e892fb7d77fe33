// What `nsys export -t sqlite` writes of an Nsight Systems report: kernels, copies, launches and NVTX ranges of one process or of several.
#pragma once

#include <filesystem>
#include <vector>

#include "tools/traces/gpu_trace.hpp"
#include "tools/traces/kernel_names.hpp"
#include "tools/traces/kineto_trace.hpp"

namespace sextant {

// One trace per process and device. Tables and columns are those of exports since 2019; what a version lacks is done without. Ranks are
// not in it.
// Throws ConfigError on a file that is no such export, is damaged, or saw nothing of a GPU.
std::vector<RankTrace> read_nsys_trace(const std::filesystem::path&, const KernelNames&,
                                       const ReadProgress& = {});

}  // namespace sextant
