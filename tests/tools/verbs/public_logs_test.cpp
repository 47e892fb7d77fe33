// Logs and tables of another machine than --cluster: refused, or taken with a word on it. Neighbours of what people gave.
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"

namespace sextant {
namespace {

constexpr const char* kSteps =
    "  data_parallel_size .............................. 4\n"
    "  global_batch_size ............................... 128\n"
    "  micro_batch_size ................................ 1\n"
    "  pipeline_model_parallel_size .................... 2\n"
    "  seq_length ...................................... 4096\n"
    "  sequence_parallel ............................... True\n"
    "  tensor_model_parallel_size ...................... 2\n"
    "  use_distributed_optimizer ....................... True\n"
    " iteration        1/     100 | elapsed time per iteration (ms): 60000.1 | global batch size:   128 |\n"
    " iteration        2/     100 | elapsed time per iteration (ms): 16020.0 | global batch size:   128 |\n"
    " iteration        3/     100 | elapsed time per iteration (ms): 16030.0 | global batch size:   128 |\n";

class PublicLogs : public ::testing::Test {
 protected:
  Called calibrate(const std::string& before, const char* cluster,
                   const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {
        "calibrate", "--log", folder_.write("run.log", before + kSteps).string(), "--model", "llama-2-13b",
        "--cluster", cluster};
    words.insert(words.end(), more.begin(), more.end());
    return call(words, kUnlimitedColumns);
  }

  // Of as many ranks on each node.
  Called table(int nodes, int ranks_of_node, const std::string& device, const std::string& between,
               const char* cluster, double us = 25000) {
    std::string text = between;
    for (int r = 0; r < nodes * ranks_of_node; ++r)
      text += fmt::format("#  Rank {:2} Group  0 Pid   {} on node{} device  {} [0x1{}] {}\n", r, 1000 + r,
                          r / ranks_of_node, r % ranks_of_node, r % ranks_of_node, device);
    text += fmt::format(" 1073741824 268435456 float sum -1 {} {:.2f} {:.2f} 0 {} 1 1 0\n", us,
                        1073.741824e3 / us, 1073.741824e3 / us * 2, us);
    return call({"calibrate", "--nccl", folder_.write("all_reduce.txt", text).string(), "--cluster", cluster},
                kUnlimitedColumns);
  }

  TempDir folder_;
};

// pytorch/torchtitan#1232: by default rank 0 alone is shown, whose stage holds the most activations and no head.
TEST_F(PublicLogs, MemoryOfOneStageIsComparedWithIt) {
  const auto answer = [&](const char* rank) {
    std::string text =
        "Building device mesh with parallelism: pp=4, dp_replicate=1, dp_shard=4, cp=1, tp=1, ep=1\n"
        "Applied full activation checkpointing to the model\n";
    // 40 layers as it deals them: 10, 11, 10 and 9.
    const bool first = rank[0] == '0';
    text += fmt::format("PP rank {0} is building stage_idx {0} with modules [{1}", rank,
                        first ? "'tok_embeddings'" : "'norm', 'output'");
    for (int layer = first ? 0 : 31; layer < (first ? 10 : 40); ++layer)
      text += fmt::format(", 'layers.{}'", layer);
    text += "]\n";
    text +=
        "Using pipeline schedule 1F1B with 8 microbatches and 4 stages.\n"
        "Trainer is initialized with local batch size 8, global batch size 32, gradient accumulation steps "
        "1, "
        "sequence length 4096, total steps 10 (warmup 2)\n";
    for (int n = 1; n < 6; ++n)
      text +=
          fmt::format("step: {:2}  loss: -1.00000  grad_norm: 1.2  memory: 20.00GiB(25.2%)  tps: 1,{}00\n", n,
                      n == 1 ? 1 : 9);
    return call({"calibrate", "--log", folder_.write("titan.log", text).string(), "--model", "llama-2-13b",
                 "--cluster", "2x8xh100", "--json"},
                kUnlimitedColumns);
  };
  const Called first = answer("0"), last = answer("3");
  ASSERT_EQ(first.code, ExitCode::ok) << first.err;
  const auto peak = [](const Called& c) {
    return nlohmann::json::parse(c.out).at("runs").at(0).at("predicted_peak_GiB").get<double>();
  };
  EXPECT_GT(peak(first) / peak(last), 1.03);
  const std::string notes = nlohmann::json::parse(last.out).at("notes").dump();
  EXPECT_NE(notes.find("its memory is that of pipeline stage 3 alone"), std::string::npos) << notes;
  EXPECT_NE(notes.find("the other stages' is not in the log"), std::string::npos) << notes;
  EXPECT_NE(notes.find("stages of L10-11-10-9 layers, as torchtitan cuts 40 by itself"), std::string::npos)
      << notes;
}

// Rank 3 of 4 stages of 4 replicas is of the first, whatever a rank is called; nodes of 8 hold two stages.
TEST_F(PublicLogs, TagsSayWhoseMemoryItIs) {
  const auto notes = [&](const char* tag) {
    std::string text = fmt::format(
        "{0}Building device mesh with parallelism: pp=4, dp_replicate=1, dp_shard=4, cp=1, tp=1, ep=1\n"
        "{0}Using pipeline schedule 1F1B with 8 microbatches and 4 stages.\n"
        "{0}Trainer is initialized with local batch size 8, global batch size 32, gradient accumulation "
        "steps 1, "
        "sequence length 4096, total steps 10 (warmup 2)\n",
        tag);
    for (int n = 1; n < 6; ++n)
      text += fmt::format("{}step: {:2}  loss: -1.00000  memory: 20.00GiB(25.2%)  tps: 1,{}00\n", tag, n,
                          n == 1 ? 1 : 9);
    const Called c = call({"calibrate", "--log", folder_.write("titan.log", text).string(), "--model",
                           "llama-2-13b", "--cluster", "2x8xh100", "--json"},
                          kUnlimitedColumns);
    return nlohmann::json::parse(c.out).at("notes").dump();
  };
  for (const auto& [tag, stage] : {std::pair{"[rank3]:", "stage 0 alone"},
                                   {"[rank5]:", "stage 1 alone"},
                                   {"1: [rank2]:", "stage 2 alone"},
                                   {"[1,9]<stdout>:", "stage 2 alone"},
                                   {"0: ", "stage 0, 1 alone"}})
    EXPECT_NE(notes(tag).find(std::string("its memory is that of pipeline ") + stage), std::string::npos)
        << tag << notes(tag);
}

TEST_F(PublicLogs, DeepSpeedsPipelineSaysNoStages) {
  std::string text = "[config.py:1001:print]   train_batch_size ............. 64\n";
  for (int n = 1; n < 6; ++n)
    text +=
        fmt::format("steps: {} loss: 7.1 iter time (s): {} samples/sec: 14.2\n", 10 * n, n == 1 ? 20.0 : 4.5);
  const std::string file = folder_.write("pipe.log", text).string();
  const auto calibrated = [&](const std::string& log) {
    return call({"calibrate", "--log", log, "--model", "llama-2-7b", "--cluster", "1x8xh100", "--stack",
                 "deepspeed-zero", "--seq-len", "4096", "--global-batch", "64"},
                kUnlimitedColumns);
  };
  EXPECT_EQ(calibrated(file).code, ExitCode::usage);
  EXPECT_TRUE(says(calibrated(file), "does not state how many stages it ran"));
  EXPECT_EQ(calibrated(file + "=tp2.pp2.z1.mbs1").code, ExitCode::ok)
      << "control" << calibrated(file + "=tp2.pp2.z1.mbs1").err;
}

TEST_F(PublicLogs, ADeviceNamedInPassing) {
  const std::string smi = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n";
  EXPECT_EQ(calibrate(smi, "2x8xa100-80gb").code, ExitCode::ok) << calibrate(smi, "2x8xa100-80gb").err;
  const Called other = calibrate(smi, "2x8xh100");
  EXPECT_EQ(other.code, ExitCode::bad_input);
  EXPECT_TRUE(says(other, "NVIDIA A100-SXM4-80GB")) << other.err;
  EXPECT_EQ(calibrate(smi, "2x8xh100", {"--allow-other-device"}).code, ExitCode::ok);
  // Less memory is another device; torch's properties name it too.
  EXPECT_EQ(calibrate("_CudaDeviceProperties(name='NVIDIA A100-SXM4-40GB', major=8)\n", "2x8xa100-80gb").code,
            ExitCode::bad_input);
  EXPECT_EQ(calibrate("NVIDIA Release 24.07 (build 1)\n", "2x8xa100-80gb").code, ExitCode::ok);
}

// No A100 multiplies in fp8, and no V100 in bf16: such a log is of another device, whatever it does not name.
TEST_F(PublicLogs, AFormatThatTheDeviceHasNot) {
  const std::string fp8 = "  fp8 ............................................. hybrid\n",
                    bf16 = "  bf16 ............................................ True\n";
  const Called a100 = calibrate(fp8, "2x8xa100-80gb");
  EXPECT_EQ(a100.code, ExitCode::bad_input);
  EXPECT_TRUE(says(a100, "compute: found fp8")) << a100.err;
  EXPECT_EQ(calibrate(fp8, "2x8xh100").code, ExitCode::ok) << calibrate(fp8, "2x8xh100").err;
  EXPECT_TRUE(says(calibrate(bf16, "2x8xV100-SXM2-32GB"), "compute: found bf16"));
}

TEST_F(PublicLogs, AnotherNodeOrNetwork) {
  const auto communicator = [](int ranks, int nodes, int local) {
    return fmt::format(
        "h:1:2 [0] NCCL INFO comm 0x1 rank 0 nRanks {} nNodes {} localRanks {} localRank 0 MNNVL 0\n", ranks,
        nodes, local);
  };
  EXPECT_EQ(calibrate(communicator(16, 2, 8), "2x8xa100-80gb").code, ExitCode::ok);
  const Called four = calibrate(communicator(16, 4, 4), "2x8xa100-80gb");
  EXPECT_EQ(four.code, ExitCode::bad_input);
  EXPECT_TRUE(says(four, "4 on one node")) << four.err;
  EXPECT_EQ(calibrate(communicator(4, 1, 4), "2x8xa100-80gb").code, ExitCode::ok);  // a subgroup
  EXPECT_EQ(calibrate(communicator(16, 2, 8), "4x4xa100-80gb").code, ExitCode::bad_input);
  EXPECT_EQ(
      calibrate("[INFO] [launch.py:151:main] nnodes=4, num_local_procs=4, node_rank=0\n", "2x8xa100-80gb")
          .code,
      ExitCode::bad_input);
  const Called socket = calibrate("h:1:2 [0] NCCL INFO Using network Socket\n", "2x8xa100-80gb");
  EXPECT_EQ(socket.code, ExitCode::bad_input);
  EXPECT_TRUE(says(socket, "network")) << socket.err;
  const std::string nics =
      "h:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB eth0:1<0>\n";
  EXPECT_EQ(calibrate(nics, "2x8xa100-80gb").code, ExitCode::bad_input);
  EXPECT_EQ(calibrate(nics, "2x8xa100-80gb@hdr-2x200").code, ExitCode::ok)
      << calibrate(nics, "2x8xa100-80gb@hdr-2x200").err;
}

TEST_F(PublicLogs, TablesOfPartOfANode) {
  const std::string a100 = "NVIDIA A100-SXM4-80GB";
  const Called whole = table(2, 8, a100, "", "2x8xa100-80gb", 13000);
  EXPECT_EQ(whole.code, ExitCode::ok) << whole.err;
  EXPECT_FALSE(says(whole, "of the 8 GPUs of a node")) << whole.err;
  const Called part = table(2, 4, a100, "", "2x8xa100-80gb");
  EXPECT_EQ(part.code, ExitCode::ok) << part.err;
  EXPECT_TRUE(says(part, "taken as 4 of the 8 GPUs of a node")) << part.err;
  const Called one = table(2, 1, a100, "", "2x8xa100-80gb", 60000);
  EXPECT_TRUE(says(one, "taken as 1 of the 8 GPUs of a node")) << one.err;
  const Called alone = table(1, 4, a100, "", "1x8xa100-80gb", 8000);
  EXPECT_EQ(alone.code, ExitCode::ok) << alone.err;
  EXPECT_TRUE(says(alone, "4 ranks on one node, taken as 4 of the 8 GPUs of a node")) << alone.err;
  EXPECT_TRUE(says(alone, "--cluster 1x4x")) << alone.err;
  EXPECT_FALSE(says(table(1, 8, a100, "", "1x8xa100-80gb", 8000), "of the 8 GPUs of a node"));
  EXPECT_FALSE(says(table(1, 4, a100, "", "1x4xa100-80gb", 8000), "GPUs of a node"));
  EXPECT_EQ(table(2, 8, a100, "", "2x4xa100-80gb", 13000).code, ExitCode::bad_input);
  EXPECT_EQ(table(2, 8, a100, "x NCCL INFO Using network Socket\n", "2x8xa100-80gb", 13000).code,
            ExitCode::bad_input);
  // A driver that is older than its device names no product.
  const Called graphics = table(2, 8, "NVIDIA Graphics Device", "", "2x8xa100-80gb", 13000);
  EXPECT_EQ(graphics.code, ExitCode::ok);
  EXPECT_TRUE(says(graphics, "names no product")) << graphics.err;
  EXPECT_EQ(table(2, 8, "NVIDIA H100 80GB HBM3", "", "2x8xa100-80gb", 13000).code, ExitCode::bad_input);
}

// A layout that is stated beside the log, and options: what contradicts it is refused with the log's line.
TEST_F(PublicLogs, WhatContradictsTheLogIsRefused) {
  const auto with = [&](const std::string& key, const std::vector<std::string>& more = {},
                        const std::string& before = "") {
    std::vector<std::string> words = {
        "calibrate",    "--log",       folder_.write("run.log", before + kSteps).string() + "=" + key,
        "--model",      "llama-2-13b", "--cluster",
        "2x8xa100-80gb"};
    words.insert(words.end(), more.begin(), more.end());
    return call(words, kUnlimitedColumns);
  };
  EXPECT_EQ(with("tp2.pp2.dp4.z1.mbs1").code, ExitCode::ok) << with("tp2.pp2.dp4.z1.mbs1").err;
  EXPECT_EQ(with("z1").code, ExitCode::ok) << with("z1").err;  // the log says the rest
  for (const auto& [key, told] :
       {std::pair{"tp4.pp2.dp2.z1.mbs1", "run.log:7: tp: found 2, expected 4"},
        {"tp2.pp1.dp8.z1.mbs1", "run.log:4: pp: found 2, expected 1"},
        {"tp2.pp2.dp4.z0.mbs1", "run.log:8: zero_stage: found 1, expected 0"},
        {"tp2.pp2.dp4.z1.mbs2", "run.log:3: micro_batch: found 1, expected 2"},
        {"tp2.pp2.dp4.z1.mbs1.nosp", "run.log:6: sequence_parallel: found on, expected off"}}) {
    const Called c = with(key);
    EXPECT_EQ(c.code, ExitCode::bad_input) << key;
    EXPECT_TRUE(says(c, told)) << key << ": " << c.err;
  }
  for (const auto& [option, value, told] :
       {std::tuple{"--seq-len", "2048", "run.log:5: seq_len: found 4096, expected 2048"},
        {"--global-batch", "256", "run.log:2: global_batch: found 128, expected 256"}}) {
    const Called c = with("tp2.pp2.dp4.z1.mbs1", {option, value});
    EXPECT_EQ(c.code, ExitCode::bad_input) << option;
    EXPECT_TRUE(says(c, told)) << c.err;
  }
  const std::string fp16 = "  fp16 ............................................ True\n",
                    ranks = "using world size: 32, data-parallel size: 4\n";
  EXPECT_TRUE(says(with("tp2.pp2.dp4.z1.mbs1", {"--precision", "bf16-mixed"}, fp16),
                   "compute: found fp16, expected bf16"));
  EXPECT_EQ(with("tp2.pp2.dp4.z1.mbs1", {}, fp16).code, ExitCode::ok);
  EXPECT_TRUE(says(with("tp2.pp2.dp4.z1.mbs1", {}, ranks), "gpus: found 32, expected 16"));
}

// NeMo's trainer: as many GPUs, on other nodes.
TEST_F(PublicLogs, NodesOfAnotherSize) {
  const auto on = [&](int nodes, int devices, const std::vector<std::string>& more = {}) {
    return calibrate(fmt::format("  devices .... {}\n  num_nodes .... {}\n", devices, nodes), "2x8xa100-80gb",
                     more);
  };
  EXPECT_EQ(on(2, 8).code, ExitCode::ok) << on(2, 8).err;
  EXPECT_EQ(on(4, 4).code, ExitCode::bad_input);
  EXPECT_TRUE(says(on(4, 4), "devices: found 4 GPUs of a node, expected 8")) << on(4, 4).err;
  EXPECT_EQ(on(4, 4, {"--allow-other-device"}).code, ExitCode::ok);
}

TEST_F(PublicLogs, ExpertsAreNoDenseModel) {
  const std::string experts = "  num_experts ..................................... ";
  const Called eight = calibrate(experts + "8\n", "2x8xa100-80gb");
  EXPECT_EQ(eight.code, ExitCode::bad_input);
  EXPECT_TRUE(says(eight, "num_experts: found 8")) << eight.err;
  for (const char* none : {"None\n", "1\n"})
    EXPECT_EQ(calibrate(experts + none, "2x8xa100-80gb").code, ExitCode::ok) << none;
}

TEST_F(PublicLogs, ALogOfAnotherFrameworkThanTheStack) {
  EXPECT_FALSE(says(calibrate("", "2x8xa100-80gb"), "a log of Megatron-LM"));
  EXPECT_FALSE(says(calibrate("", "2x8xa100-80gb", {"--stack", "megatron-lm-2024"}), "a log of Megatron-LM"));
  const Called other = calibrate("", "2x8xa100-80gb", {"--stack", "nanotron"});
  EXPECT_EQ(other.code, ExitCode::ok) << other.err;
  EXPECT_TRUE(says(other, "is a log of Megatron-LM, and --stack states nanotron")) << other.err;
  // One that has no pipeline stages cannot have run it.
  const Called never = calibrate("", "2x8xa100-80gb", {"--stack", "fsdp1-eager"});
  EXPECT_EQ(never.code, ExitCode::bad_input);
  EXPECT_TRUE(says(never, "which refuses the layout")) << never.err;
}

// A seventh of what the network is stated to carry is no measurement of it, but of what is wrong with it.
TEST_F(PublicLogs, TablesFarFromTheRateThatIsStated) {
  const std::string a100 = "NVIDIA A100-SXM4-80GB";
  const Called usual = table(2, 8, a100, "", "2x8xa100-80gb@hdr-8x200", 12000);
  EXPECT_EQ(usual.code, ExitCode::ok) << usual.err;
  EXPECT_FALSE(says(usual, "warning")) << usual.err;
  for (const double us : {80000.0, 67000.0}) {
    const Called slow = table(2, 8, a100, "", "2x8xa100-80gb@hdr-8x200", us);
    EXPECT_EQ(slow.code, ExitCode::ok) << slow.err;
    for (const char* cause :
         {"warning", "NCCL_IB_HCA", "GPUDirect RDMA", "one NIC of 8", "% of what --cluster states"})
      EXPECT_TRUE(says(slow, cause)) << cause << ": " << slow.err;
  }
  const Called half = table(2, 8, a100, "", "2x8xa100-80gb@hdr-8x200", 40000);
  EXPECT_TRUE(says(half, "few of the 8 NICs")) << half.err;
  // A table of another network, of half the rate.
  const Called other = table(2, 8, a100, "", "2x8xa100-80gb@hdr-8x200", 23000);
  EXPECT_TRUE(says(other, "a network of half the rate")) << other.err;
  const Called more = table(2, 8, a100, "", "2x8xa100-80gb@hdr-2x200", 30000);
  EXPECT_TRUE(says(more, "another fabric than --cluster states")) << more.err;
  const Called inside = table(1, 8, a100, "", "1x8xa100-80gb", 60000);
  EXPECT_TRUE(says(inside, "PCIe in place of NVLink")) << inside.err;
  EXPECT_FALSE(says(table(1, 8, a100, "", "1x8xa100-80gb", 8500), "warning"));
}

TEST_F(PublicLogs, StepsThatAreNotSteadyAreSaid) {
  std::string growing;
  for (int n = 4; n < 40; ++n)
    growing += fmt::format(
        " iteration {:8}/     100 | elapsed time per iteration (ms): {} | global batch size:   128 |\n", n,
        16000 + 500 * n);
  const std::string arguments = std::string(kSteps);
  const auto file = folder_.write("grow.log", arguments + growing).string();
  const Called c = call({"calibrate", "--log", file, "--model", "llama-2-13b", "--cluster", "2x8xa100-80gb"},
                        kUnlimitedColumns);
  EXPECT_EQ(c.code, ExitCode::ok) << c.err;
  EXPECT_TRUE(says(c, "steps are not steady")) << c.err;
  EXPECT_FALSE(says(calibrate("", "2x8xa100-80gb"), "steps are not steady"));
}

}  // namespace
}  // namespace sextant
