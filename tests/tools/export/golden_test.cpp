// Every file that an export writes, for a few plans of each target, against what was looked at and kept in
// tests/golden/exports. SEXTANT_WRITE_GOLDEN=1 writes them anew, to be looked at.
#include <algorithm>
#include <cstdlib>

#include "tests/tools/export/export_case.hpp"
#include "tools/export/export_target.hpp"

namespace sextant::exporting {
namespace {

namespace fs = std::filesystem;

struct Golden {
  std::string name, target, cluster, stack, key;
  Words more = {};       // of export
  Words question = k8B;  // model and batch
};

// NOLINTNEXTLINE(readability-function-size): a table of exports
const std::vector<Golden>& goldens() {
  static const Words kFp8 = {"--model",        "llama-3.1-8b", "--seq-len", "4096",
                             "--global-batch", "64",           "--set",     "training.compute=fp8"};
  static const std::vector<Golden> all = {
      {"megatron-lm_interleaved",
       "megatron-lm",
       "4x8xh100",
       "megatron-core",
       "tp2.pp2.vp2.cp2.dp4.z1.mbs1.sel",
       {"--launch", "slurm"}},
      {"megatron-lm_uneven", "megatron-lm", "4x8xa100-80gb", "megatron-core",
       "tp2.pp4.dp4.z1.mbs1.full2.b20M.L7-8-9-8.ax-tp-cp-pp-dp"},
      {"megatron-lm_fsdp",
       "megatron-lm",
       "2x8xh100",
       "megatron-core",
       "dp16.z3.sd8.mbs1.full",
       {"--container", "nemo.sqsh"}},
      {"megatron-lm_fp8",
       "megatron-lm@head",
       "1x8xh100",
       "megatron-core",
       "tp2.dp4.z1.mbs1.tpo",
       {"--launch", "mpirun"},
       kFp8},
      {"torchtitan_pipeline",
       "torchtitan",
       "4x8xh100",
       "torchtitan",
       "tp2.pp4.vp2.dp4.z2.mbs1.sel",
       {"--launch", "slurm", "--container", "titan.sqsh"}},
      {"torchtitan_hybrid", "torchtitan", "2x8xa100-80gb", "torchtitan", "cp2.dp8.z3.sd8.mbs1.full3"},
      {"nanotron_stages", "nanotron", "4x8xh100", "nanotron", "tp2.pp4.dp4.z1.mbs1.full.b20M.nopg", {}, k7B},
      {"nanotron_plain", "nanotron", "2x8xh100", "nanotron", "tp2.dp8.z0.mbs2.nosp.nopg", {}, k7B},
      {"fsdp2_hybrid",
       "fsdp2",
       "4x8xh100",
       "torchtitan",
       "tp2.dp16.z3.sd8.mbs1.full3",
       {"--launch", "slurm"}},
      {"fsdp2_offload", "fsdp2", "1x8xa100-80gb", "torchtitan", "dp8.z3.mbs1.sel.oo100.po", {}, k7B},
      {"deepspeed_sharded",
       "deepspeed",
       "2x8xh100",
       "deepspeed-zero",
       "dp16.z3.mbs1.full.ao32",
       {"--launch", "slurm"}},
      {"deepspeed_offload", "deepspeed", "1x8xa100-80gb", "deepspeed-zero", "dp8.z3.mbs1.oo50.po", {}, k7B},
      {"deepspeed_pipeline", "deepspeed", "1x8xh100", "deepspeed-zero", "pp4.dp2.z1.mbs1.nogr.L7-8-9-8"},
      {"deepspeed_autotp",
       "deepspeed",
       "1x8xh100",
       "deepspeed-zero",
       "tp2.dp4.z2.mbs1.nosp.b100M",
       {"--launch", "mpirun"}},
      {"accelerate_hybrid",
       "accelerate",
       "2x8xh100",
       "torchtitan-eager",
       "dp16.z3.sd8.mbs1.full",
       {"--launch", "slurm"}},
      {"accelerate_offload",
       "accelerate",
       "1x8xa100-80gb",
       "torchtitan-eager",
       "dp8.z3.mbs1.oo100.po",
       {},
       k7B},
      {"accelerate-deepspeed_offload", "accelerate-deepspeed", "2x8xh100", "deepspeed-zero",
       "dp16.z3.mbs1.oo100.full"},
      {"colossalai_interleaved",
       "colossalai",
       "4x8xh100",
       "colossal-ai",
       "tp2.pp4.vp2.dp4.z1.mbs1.full2.nogr",
       {"--launch", "slurm"}},
      {"colossalai_ring", "colossalai", "2x8xh100", "colossal-ai",
       "tp2.cp2.pp2.dp2.z0.mbs1.nosp.nogr.L17-15.ax-tp-cp-pp-dp"},
      {"colossalai_offload",
       "colossalai",
       "2x8xa100-80gb",
       "colossal-ai",
       "dp16.z2.mbs1.full.oo100.b10485760",
       {},
       k7B},
      {"colossalai-gemini_offload",
       "colossalai-gemini",
       "1x8xa100-80gb",
       "colossal-gemini",
       "tp2.dp4.z3.mbs1.nosp.full.oo100.po",
       {"--launch", "mpirun"},
       k7B},
      {"smp_hybrid", "smp", "4x8xh100", "smp-v2", "tp2.dp16.z3.sd8.mbs1.full.ao32"},
      {"sextant_torchrun",
       "sextant",
       "2x8xh100",
       "sextant",
       "tp2.pp2.dp4.z3.mbs1.zb.ax-dp-tp-cp-pp",
       {"--launch", "slurm"}},
      {"sextant_mpirun", "sextant", "1x8xh100", "sextant", "dp8.z1.mbs1.lb2", {"--launch", "mpirun"}, k7B},
      {"megatron-bridge_interleaved",
       "megatron-bridge",
       "4x8xh100",
       "megatron-core",
       "tp2.pp2.vp2.cp2.dp4.z1.mbs1.sel",
       {"--launch", "slurm", "--container", "nemo.sqsh"}},
      {"megatron-bridge_uneven", "megatron-bridge", "4x8xa100-80gb", "megatron-core",
       "tp2.pp4.dp4.z1.mbs1.full2.b20M.L7-8-9-8.ax-tp-cp-pp-dp"},
      {"megatron-bridge_fsdp", "megatron-bridge", "2x8xh100", "megatron-core", "dp16.z3.sd8.mbs1.full"},
      {"megatron-bridge_fp8",
       "megatron-bridge",
       "1x8xh100",
       "megatron-core",
       "tp2.dp4.z1.mbs1.tpo.oo50",
       {},
       kFp8},
      {"torchtitan_head", "torchtitan@head", "2x8xh100", "torchtitan", "tp2.pp2.dp4.z3.mbs1.full"},
  };
  return all;
}

// All files of the folder in order of their names, without what a new calibration changes.
std::string folder_text(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  std::string all;
  for (const std::string& name : names) {
    if (name == "plan.json" || name.starts_with("check") || name == "train.py" || name == ".sextant_export")
      continue;
    std::istringstream lines(text_of(folder / name));
    all += "==> " + name + "\n";
    for (std::string line; std::getline(lines, line);)
      if (!line.starts_with("- Predicted as ")) all += line + "\n";
  }
  return all;
}

class ExportGolden : public testing::TestWithParam<Golden> {};

TEST_P(ExportGolden, IsWhatWasKept) {
  const Golden& g = GetParam();
  const TempDir dir;
  const std::string plan = plan_file(dir, on(g.cluster, g.stack, g.question), g.key);
  const Called called = export_to(g.target, plan, dir.path() / "job", g.more);
  ASSERT_EQ(called.code, ExitCode::ok) << called.out << called.err;
  const std::string text = folder_text(dir.path() / "job");
  const fs::path kept = fs::path(SEXTANT_SOURCE_DIR) / "tests/golden/exports" / (g.name + ".txt");
  if (std::getenv("SEXTANT_WRITE_GOLDEN")) {
    std::ofstream(kept, std::ios::binary) << text;
    GTEST_SKIP() << "written: " << kept;
  }
  EXPECT_EQ(text, text_of(kept));
}

INSTANTIATE_TEST_SUITE_P(All, ExportGolden, testing::ValuesIn(goldens()), [](const auto& named) {
  std::string name = named.param.name;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST(ExportGoldens, EveryTargetAndVersionHasOne) {
  for (const ExportTarget& target : export_targets())
    EXPECT_TRUE(std::ranges::any_of(goldens(), [&](const Golden& g) {
      return g.target.substr(0, g.target.find('@')) == target.name;
    })) << target.name;
}

}  // namespace
}  // namespace sextant::exporting
