#include "tools/inputs/launch_environment.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/words.hpp"
#include "tools/inputs/job_secret.hpp"

namespace sextant {
namespace {

// The number that `text` begins with: Slurm writes "4(x2)" for four on each of two machines.
std::optional<int> number_in(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data() || value < 0) return std::nullopt;
  return value;
}

std::optional<int> first_of(const Environment& environment, std::initializer_list<const char*> variables) {
  for (const char* variable : variables)
    if (const auto value = number_in(environment(variable))) return value;
  return std::nullopt;
}

// Of counts as Slurm writes them, "4(x2),3": those of machine `place`, counted from 0.
std::optional<int> count_at(const std::string& counts, int place) {
  std::size_t at = 0;
  while (at < counts.size()) {
    const std::string entry = counts.substr(at, counts.find(',', at) - at);
    const std::size_t repeated = entry.find("(x");
    const int machines =
        repeated == std::string::npos ? 1 : number_in(entry.substr(repeated + 2)).value_or(1);
    if (place < machines) return number_in(entry);
    place -= machines;
    at += entry.size() + 1;
  }
  return std::nullopt;
}

[[noreturn]] void wrong_variable(const std::string& variable, const std::string& found,
                                 const std::string& expected) {
  throw ConfigError(Problem{"--comm env", variable, found.empty() ? "nothing" : found, expected,
                            "torchrun and srun set it; by hand: RANK=0 WORLD_SIZE=2 MASTER_ADDR=host "
                            "MASTER_PORT=29500 sextant run ..."});
}

int required(const Environment& environment, const char* variable, int least, int most) {
  const std::string text = environment(variable);
  const auto value = number_in(text);
  if (!value || *value < least || *value > most)
    wrong_variable(variable, text, fmt::format("a whole number from {} to {}", least, most));
  return *value;
}

constexpr int kMostRanks = 1 << 20, kLastPort = 65535;
// Of srun, which names none: one for each step of a job, above those that services take.
constexpr int kFirstPort = 20000, kPorts = 20000;

}  // namespace

std::string process_environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? value : "";
}

std::optional<int> launched_local_ranks(const Environment& environment) {
  if (const auto local =
          first_of(environment, {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE"}))
    return local;
  const std::string of_step = environment("SLURM_STEP_TASKS_PER_NODE");
  return count_at(of_step.empty() ? environment("SLURM_TASKS_PER_NODE") : of_step,
                  number_in(environment("SLURM_NODEID")).value_or(0));
}
std::optional<int> launched_local_rank(const Environment& environment) {
  return first_of(environment,
                  {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "LOCAL_RANK", "SLURM_LOCALID"});
}

int launched_gpu(const Environment& environment) {
  const std::string visible = environment("CUDA_VISIBLE_DEVICES");
  const bool one_alone = !visible.empty() && visible.find(',') == std::string::npos;
  return one_alone ? 0 : launched_local_rank(environment).value_or(0);
}

std::string comm_of_launcher(const Environment& environment) {
  const auto several = [&](std::initializer_list<const char*> variables) {
    return first_of(environment, variables).value_or(1) > 1;
  };
  if (several({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})) return "mpi";
  if (!environment("PMIX_RANK").empty() && several({"SLURM_STEP_NUM_TASKS"})) return "mpi";
  if (!environment("RANK").empty() && !environment("MASTER_ADDR").empty())
    return several({"WORLD_SIZE"}) ? "env" : "local";
  // Tasks of srun, of which none is a person's shell (srun --pty). A batch script has no number of a step.
  if (several({"SLURM_STEP_NUM_TASKS"}) && !environment("SLURM_PROCID").empty() &&
      environment("SLURM_PTY_PORT").empty())
    return "env";
  return "local";
}

std::string first_host(const std::string& list) {
  const std::size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const std::size_t end = list.find_first_of(",-]", bracket);
  std::string host = list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
  const std::size_t close = list.find(']', bracket);
  if (close != std::string::npos)  // what stands behind the numbers: "rack[1-3]-gpu"
    host += first_host(list.substr(close + 1));
  return host;
}

namespace {

TcpWorld world_without_secret(const Environment& environment) {
  TcpWorld world;
  if (!environment("RANK").empty() || environment("SLURM_PROCID").empty()) {
    world.ranks = required(environment, "WORLD_SIZE", 1, kMostRanks);
    world.rank = required(environment, "RANK", 0, world.ranks - 1);
    world.address = environment("MASTER_ADDR");
    if (world.address.empty()) wrong_variable("MASTER_ADDR", "", "the machine of rank 0");
    world.port = required(environment, "MASTER_PORT", 1, kLastPort - 1);
    // torchrun's own store listens there then.
    const std::string store = lower(environment("TORCHELASTIC_USE_AGENT_STORE"));
    if (store == "true" || store == "1") ++world.port;
    world.job =
        fmt::format("{} {}", environment("TORCHELASTIC_RUN_ID"), environment("TORCHELASTIC_RESTART_COUNT"));
    return world;
  }
  world.ranks = required(environment, "SLURM_NTASKS", 1, kMostRanks);
  world.rank = required(environment, "SLURM_PROCID", 0, world.ranks - 1);
  std::string nodes = environment("SLURM_STEP_NODELIST");
  if (nodes.empty()) nodes = environment("SLURM_JOB_NODELIST");
  world.address = first_host(nodes);
  if (world.address.empty()) wrong_variable("SLURM_STEP_NODELIST", nodes, "the machines of the step");
  const int job = required(environment, "SLURM_JOB_ID", 0, 2147483647);
  const int step = number_in(environment("SLURM_STEP_ID")).value_or(0);
  world.port = kFirstPort + (job % kPorts + step) % kPorts;
  world.job = fmt::format("slurm {} {}", job, environment("SLURM_STEP_ID"));
  return world;
}

}  // namespace

TcpWorld launched_world(const Environment& environment) {
  TcpWorld world = world_without_secret(environment);
  if (world.ranks == 1) return world;  // it meets nobody
  JobSecret secret = job_secret(environment);
  world.secret = std::move(secret.text);
  world.secret_source = std::move(secret.source);
  return world;
}

}  // namespace sextant
