// The run that a kill campaign kills: a small one with checkpoints, which reports each loss and each commit on its standard
// output.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace sextant::testing {

inline constexpr std::int64_t kRunSteps = 40, kSaveEvery = 2;

enum class Fault { none, slow_disk, failing_write, file_too_large, full_disk };
inline constexpr const char* kFaultNames[] = {"none", "slow disk", "failing write", "file size limit",
                                              "full disk"};

inline constexpr const char* kRefused =
    "refused:";  // what is there cannot be gone on from; a full disk may end a run as well

// Until its end; the exit code. With MPI it is one rank of a job.
int child(const std::string& key, const std::filesystem::path& folder, Fault, unsigned seed, bool mpi);

}  // namespace sextant::testing
