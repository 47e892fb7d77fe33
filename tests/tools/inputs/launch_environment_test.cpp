// Who a process is, from its environment. System: the variables as torchrun, srun and MPI's launchers set them, and some
// that nobody sets. Expectation: rank, address and port as their documentation says, and the name of what is missing.
#include "tools/inputs/launch_environment.hpp"

#include <map>

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace sextant {
namespace {

Environment of(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) {
    const auto it = variables.find(name);
    if (it == variables.end())
      return std::string(name == std::string("SEXTANT_SECRET") ? "of these tests alone" : "");
    return it->second;
  };
}

std::string refusal(const std::map<std::string, std::string>& variables) {
  try {
    launched_world(of(variables));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(LaunchEnvironment, Torchrun) {
  std::map<std::string, std::string> v = {{"RANK", "3"},
                                          {"WORLD_SIZE", "8"},
                                          {"LOCAL_RANK", "1"},
                                          {"LOCAL_WORLD_SIZE", "2"},
                                          {"MASTER_ADDR", "node7"},
                                          {"MASTER_PORT", "29400"},
                                          {"TORCHELASTIC_RUN_ID", "xyz"}};
  const TcpWorld world = launched_world(of(v));
  EXPECT_EQ(world.rank, 3);
  EXPECT_EQ(world.ranks, 8);
  EXPECT_EQ(world.address, "node7");
  EXPECT_EQ(world.port, 29400);
  EXPECT_EQ(world.secret, "of these tests alone");
  EXPECT_EQ(launched_local_rank(of(v)), 1);
  EXPECT_EQ(launched_local_ranks(of(v)), 2);
  v["TORCHELASTIC_USE_AGENT_STORE"] = "True";  // its own store has the port
  EXPECT_EQ(launched_world(of(v)).port, 29401);
  v["TORCHELASTIC_RUN_ID"] = "abc";
  EXPECT_NE(launched_world(of(v)).job, world.job);
}

TEST(LaunchEnvironment, Srun) {
  const std::map<std::string, std::string> v = {{"SLURM_PROCID", "5"},
                                                {"SLURM_NTASKS", "16"},
                                                {"SLURM_LOCALID", "1"},
                                                {"SLURM_JOB_ID", "1234567"},
                                                {"SLURM_STEP_ID", "2"},
                                                {"SLURM_STEP_NODELIST", "gpu[012-015,17],login1"},
                                                {"SLURM_NODEID", "3"},
                                                {"SLURM_STEP_TASKS_PER_NODE", "4(x3),3,1"},
                                                {"SLURM_TASKS_PER_NODE", "8(x5)"}};
  const TcpWorld world = launched_world(of(v));
  EXPECT_EQ(world.rank, 5);
  EXPECT_EQ(world.ranks, 16);
  EXPECT_EQ(world.address, "gpu012");
  EXPECT_EQ(world.port, 20000 + 14569) << "1234567 mod 20000, and the step";
  EXPECT_EQ(launched_local_rank(of(v)), 1);
  EXPECT_EQ(launched_local_ranks(of(v)), 3) << "the fourth machine of five";
  const auto tasks = [](const char* node) {
    return launched_local_ranks(of({{"SLURM_NODEID", node}, {"SLURM_TASKS_PER_NODE", "4(x3),3,1"}}));
  };
  EXPECT_EQ(tasks("0"), 4);
  EXPECT_EQ(tasks("2"), 4);
  EXPECT_EQ(tasks("4"), 1);
  EXPECT_EQ(tasks("5"), std::nullopt) << "a machine that it does not name";
}

TEST(LaunchEnvironment, SaysHowRanksMeetUnlessToldOtherwise) {
  EXPECT_EQ(comm_of_launcher(of({})), "local");
  EXPECT_EQ(comm_of_launcher(of({{"OMPI_COMM_WORLD_SIZE", "8"}})), "mpi");
  EXPECT_EQ(comm_of_launcher(of({{"PMI_SIZE", "2"}})), "mpi");
  EXPECT_EQ(comm_of_launcher(of({{"OMPI_COMM_WORLD_SIZE", "1"}})), "local");
  EXPECT_EQ(comm_of_launcher(of({{"PMIX_RANK", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}})), "mpi");
  const std::map<std::string, std::string> task = {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}};
  EXPECT_EQ(comm_of_launcher(of(task)), "env");
  const auto with = [&](const char* variable, const char* value) {
    auto more = task;
    more[variable] = value;
    return comm_of_launcher(of(more));
  };
  EXPECT_EQ(with("PMIX_RANK", "0"), "mpi") << "srun --mpi=pmix";
  EXPECT_EQ(with("SLURM_PTY_PORT", "44039"), "local") << "a shell of srun --pty";
  EXPECT_EQ(with("OMPI_COMM_WORLD_SIZE", "8"), "mpi") << "what mpirun starts on the machines of a job";
  EXPECT_EQ(comm_of_launcher(of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}})), "local")
      << "a batch script";
  // torchrun, started once a machine by srun, with one process.
  EXPECT_EQ(comm_of_launcher(of({{"SLURM_PROCID", "0"},
                                 {"SLURM_STEP_NUM_TASKS", "2"},
                                 {"RANK", "0"},
                                 {"WORLD_SIZE", "1"},
                                 {"MASTER_ADDR", "node7"}})),
            "local");
  EXPECT_EQ(comm_of_launcher(of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node7"}})), "env");
  EXPECT_EQ(comm_of_launcher(of({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "node7"}})), "local");
}

TEST(LaunchEnvironment, FirstOfSlurmsHosts) {
  EXPECT_EQ(first_host("a"), "a");
  EXPECT_EQ(first_host("a,b[1-2]"), "a");
  EXPECT_EQ(first_host("b[7]"), "b7");
  EXPECT_EQ(first_host("b[001,4-9],c"), "b001");
  EXPECT_EQ(first_host("rack[2-3]-gpu[05-06]"), "rack2-gpu05");
  EXPECT_EQ(first_host(""), "");
}

TEST(LaunchEnvironment, WhatIsMissingIsNamed) {
  EXPECT_NE(refusal({}).find("WORLD_SIZE"), std::string::npos) << refusal({});
  EXPECT_NE(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}).find("MASTER_ADDR"),
            std::string::npos);
  EXPECT_NE(
      refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "x"}, {"MASTER_PORT", "1"}}).find("RANK"),
      std::string::npos)
      << "ranks count from 0";
  EXPECT_NE(refusal({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "7"}}).find("NODELIST"),
            std::string::npos);
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "x"}, {"MASTER_PORT", "1"}}), "none")
      << "control";
  EXPECT_FALSE(launched_local_rank(of({})));
  EXPECT_FALSE(launched_local_rank(of({{"LOCAL_RANK", "first"}})));
}

TEST(LaunchedGpu, IsTheOneShownOrThatOfThePlace) {
  EXPECT_EQ(launched_gpu(of({})), 0);
  EXPECT_EQ(launched_gpu(of({{"SLURM_LOCALID", "3"}})), 3);
  EXPECT_EQ(launched_gpu(of({{"SLURM_LOCALID", "3"}, {"CUDA_VISIBLE_DEVICES", "0,1,2,3"}})), 3);
  EXPECT_EQ(launched_gpu(of({{"SLURM_LOCALID", "3"}, {"CUDA_VISIBLE_DEVICES", "3"}})), 0);
}

}  // namespace
}  // namespace sextant
