// Who a process is among those that a launcher has started, from what the launcher has put into the environment: Open MPI,
// MPICH and Intel MPI, Slurm, torchrun.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "runtime/communicators/make_communicator.hpp"

namespace sextant {

// The value of a variable of the environment; empty when it is not there.
using Environment = std::function<std::string(const char* variable)>;
std::string process_environment(const char* variable);

// Processes of the job on this machine, and which of them this is; nothing when nobody says so.
std::optional<int> launched_local_ranks(const Environment& = process_environment);
std::optional<int> launched_local_rank(const Environment& = process_environment);

// The GPU of this process among those that it sees: by its place on this machine, or the first where it is shown one alone
// (CUDA_VISIBLE_DEVICES, as srun --gpus-per-task=1 sets it).
int launched_gpu(const Environment& = process_environment);

// What --comm is when not given: mpi or env in a process that mpirun, srun or torchrun started beside others, else local.
std::string comm_of_launcher(const Environment& = process_environment);

// Without MPI: torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), which any script can set; or srun's
// (SLURM_PROCID, SLURM_NTASKS, SLURM_STEP_NODELIST, SLURM_JOB_ID). With the job's secret (job_secret.hpp) where it has other
// processes. Throws ConfigError naming what is missing or wrong.
TcpWorld launched_world(const Environment& = process_environment);

// The first machine of a list as Slurm writes it: "gpu[012-015,17],login1" begins with gpu012.
std::string first_host(const std::string& list);

}  // namespace sextant
