// The most that a cluster may consist of.
#pragma once

namespace sextant {

inline constexpr int kMaxNodes = 131072, kMaxGpusPerNode = 1024, kMaxGpus = 1 << 20;

}  // namespace sextant
