// What DeepSpeed's logs say of offload: in the configuration of ZeRO, in the user's JSON, in what its optimizers print. The texts are
// made up; their form is that of deepspeedai/DeepSpeed edaa722 (config.py) and of versions 0.3 (JSON with cpu_offload), 0.5 (zero_config as
// JSON), 0.7 (pydantic 1) and 0.15 (pydantic 2).
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "planner/calibration/run_log.hpp"
#include "tests/planner/calibration/said.hpp"

namespace sextant {
namespace {

constexpr const char* kPrint = "[2026-02-03 04:05:06,001] [INFO] [config.py:1003:print]   ";

std::string steps() {
  std::string text;
  for (int i = 1; i <= 5; ++i)
    text += fmt::format(
        "[2026-02-03 04:0{0}:06,001] [INFO] [timer.py:265:stop] epoch=0/micro_step={1}/global_step={0}, "
        "RunningAvgSamplesPerSec=16.0, CurrSamplesPerSec=16.{0}, MemAllocated=12.5GB, "
        "MaxMemAllocated=31.1GB\n",
        i, 4 * i);
  return text;
}

std::string listed(const std::string& zero_config, int stage = 3) {
  std::string text;
  for (const auto& line :
       {std::string("bfloat16_enabled ............. True"), std::string("gradient_accumulation_steps .. 4"),
        std::string("train_batch_size ............. 64"), std::string("train_micro_batch_size_per_gpu  2"),
        "zero_config .................. " + zero_config,
        fmt::format("zero_optimization_stage ...... {}", stage)})
    text += kPrint + line + "\n";
  return text + steps();
}

std::string dataclass(const char* parameters, const char* optimizer) {
  return fmt::format(
      "stage=3 contiguous_gradients=True overlap_comm=True offload_param={} offload_optimizer={} "
      "sub_group_size=1000000000 cpu_offload_param=None cpu_offload_use_pin_memory=None cpu_offload=None",
      parameters, optimizer);
}
constexpr const char* kOnHost =
    "DeepSpeedZeroOffloadOptimizerConfig(device='cpu', nvme_path=None, buffer_count=4, pin_memory=True, "
    "ratio=1.0, "
    "super_offload=False)";

TEST(DeepSpeedOffload, OfTheConfigurationOfZero) {
  struct Case {
    std::string zero_config, key;
  };
  for (const Case& c :
       {Case{dataclass("None", "None"), "tp1.pp1.vp1.cp1.dp8.z3.mbs2"},
        Case{dataclass("None", kOnHost), "tp1.pp1.vp1.cp1.dp8.z3.mbs2.oo100"},
        Case{dataclass("DeepSpeedZeroOffloadParamConfig(device='cpu', nvme_path=None, max_in_cpu=1000000000)",
                       kOnHost),
             "tp1.pp1.vp1.cp1.dp8.z3.mbs2.oo100.po"},
        // Twin-Flow, on a path with a bracket before its share.
        Case{dataclass(
                 "None",
                 "DeepSpeedZeroOffloadOptimizerConfig(device='cpu', nvme_path=PosixPath('/x'), ratio=0.3)"),
             "tp1.pp1.vp1.cp1.dp8.z3.mbs2.oo30"},
        Case{dataclass("None",
                       "DeepSpeedZeroOffloadOptimizerConfig(device='none', nvme_path=None, ratio=1.0)"),
             "tp1.pp1.vp1.cp1.dp8.z3.mbs2"},
        // pydantic 1
        Case{
            dataclass(
                "None",
                "DeepSpeedZeroOffloadOptimizerConfig(device=<OffloadDeviceEnum.cpu: 'cpu'>, nvme_path=None)"),
            "tp1.pp1.vp1.cp1.dp8.z3.mbs2.oo100"},
        // Over several lines, as until 2022.
        Case{"{\n    \"stage\": 3, \n    \"offload_param\": null, \n    \"offload_optimizer\": {\n        "
             "\"device\": "
             "\"cpu\", \n        \"pin_memory\": false\n    }, \n    \"sub_group_size\": 1.000000e+09\n}",
             "tp1.pp1.vp1.cp1.dp8.z3.mbs2.oo100"},
        Case{"{\n    \"stage\": 3, \n    \"cpu_offload\": false, \n    \"cpu_offload_params\": true\n}",
             "tp1.pp1.vp1.cp1.dp8.z3.mbs2.po"}}) {
    const Said s = filled(listed(c.zero_config));
    EXPECT_EQ(s.problems, "") << c.zero_config;
    EXPECT_EQ(plan_key(s.plan), c.key) << c.zero_config;
  }
  EXPECT_TRUE(
      filled(listed(dataclass("DeepSpeedZeroOffloadParamConfig(device='nvme', nvme_path=PosixPath('/x'))",
                              kOnHost)))
          .notes_that("NVMe"));
}

std::string json_log(const std::string& json) { return kPrint + ("json = " + json) + "\n" + steps(); }

TEST(DeepSpeedOffload, OfTheUsersJson) {
  const std::string whole =
      "{\n    \"train_batch_size\": 64, \n    \"train_micro_batch_size_per_gpu\": 2, \n    "
      "\"gradient_accumulation_steps\": 4, \n    \"fp16\": {\n        \"enabled\": true, \n        "
      "\"loss_scale\": 0\n    }, \n    \"zero_optimization\": {\n        \"stage\": 2, \n        "
      "\"offload_optimizer\": {\n            \"device\": \"cpu\", \n            \"note\": \"a } in "
      "quotes\"\n        "
      "}, \n        \"reduce_bucket_size\": 5.000000e+08\n    }\n}";
  const Said s = filled(json_log(whole));
  EXPECT_EQ(plan_key(s.plan), "tp1.pp1.vp1.cp1.dp8.z2.mbs2.oo100");
  EXPECT_EQ(s.training.compute, Dtype::fp16);
  EXPECT_EQ(s.training.global_batch, 64);
  // The oldest, without blanks behind colons.
  EXPECT_EQ(
      plan_key(
          filled(json_log("{\n    \"train_batch_size\":64,\n    \"train_micro_batch_size_per_gpu\":2,\n    "
                          "\"gradient_accumulation_steps\":4,\n    \"zero_optimization\":{\n        "
                          "\"stage\":2,\n        \"cpu_offload\":true\n    }\n}"))
              .plan),
      "tp1.pp1.vp1.cp1.dp8.z2.mbs2.oo100");
  // "auto" leaves it to what stands before.
  EXPECT_EQ(
      parse_run_log(listed(dataclass("None", "None")) +
                        json_log("{\n    \"train_batch_size\": \"auto\",\n    \"zero_optimization\": {}\n}"),
                    "x.log")
          .says.at("global_batch"),
      64);
  // One that is cut hides no steps.
  EXPECT_EQ(parse_run_log(json_log("{\n    \"train_batch_size\": 64,"), "x.log").steps.size(), 5U);
  EXPECT_TRUE(
      filled(
          json_log("{\n    \"activation_checkpointing\": {\n        \"cpu_checkpointing\": true\n    }\n}"))
          .notes_that("cpu_checkpointing"));
}

TEST(DeepSpeedOffload, ContradictsWhatIsStated) {
  const std::string host = listed(dataclass("None", kOnHost)), device = listed(dataclass("None", "None"));
  EXPECT_TRUE(said(host, "dp8.z3.mbs2").names("optimizer_offload: found on, expected off"));
  EXPECT_EQ(said(host, "dp8.z3.mbs2.oo100").problems, "");
  EXPECT_TRUE(said(host, "dp8.z3.mbs2.oo50").names("optimizer_offload: found on, expected 50 %"));
  EXPECT_TRUE(said(device, "dp8.z3.mbs2.oo100").names("optimizer_offload: found off, expected on"));
  EXPECT_TRUE(said(device, "dp8.z3.mbs2.po").names("parameter_offload: found off, expected on"));
  EXPECT_EQ(said(device, "dp8.z3.mbs2").problems, "");
  // A log that says nothing of it contradicts neither.
  EXPECT_EQ(said(steps(), "dp8.z3.mbs2.oo100.po").problems, "");
}

TEST(DeepSpeedOffload, OfWhatOptimizersPrint) {
  const auto optimizer = [](const char* line) { return filled(std::string(line) + "\n" + steps()).plan; };
  EXPECT_EQ(optimizer("[INFO] [stage_1_and_2.py:150:__init__] CPU Offload: True").optimizer_offload, 1);
  EXPECT_EQ(optimizer("[INFO] [stage_1_and_2.py:150:__init__] CPU Offload: False").optimizer_offload, 0);
  EXPECT_EQ(optimizer("[INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed Basic Optimizer = DeepSpeedCPUAdam")
                .optimizer_offload,
            1);
  EXPECT_EQ(
      optimizer("[INFO] [logging.py:96:log_dist] [Rank 0] Creating torch.bfloat16 ZeRO stage 2 optimizer")
          .zero_stage,
      2);
  // Stage 3 prints this with and without offload.
  EXPECT_EQ(optimizer("[INFO] [utils.py:785:see_memory_usage] DeepSpeedZeRoOffload initialize [begin]")
                .optimizer_offload,
            0);
  // Megatron-DeepSpeed prints the same beside Megatron's lines.
  EXPECT_EQ(filled("[INFO] [stage_1_and_2.py:150:__init__] CPU Offload: True\n" + std::string(kMegatron))
                .plan.optimizer_offload,
            1);
}

TEST(DeepSpeedOffload, MegatronStatesAShare) {
  const std::string text = with_arguments(argument("optimizer_cpu_offload", "True") +
                                          argument("optimizer_offload_fraction", "0.5"));
  EXPECT_EQ(filled(text).plan.optimizer_offload, 0.5);
  EXPECT_EQ(said(text, "tp2.pp2.vp2.dp16.z1.mbs1.sel.oo50").problems, "");
  EXPECT_TRUE(said(text, "tp2.pp2.vp2.dp16.z1.mbs1.sel.oo100").names("found 50 %, expected on"));
}

}  // namespace
}  // namespace sextant
