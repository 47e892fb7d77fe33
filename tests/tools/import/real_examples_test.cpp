// The frameworks' own examples, where SEXTANT_EXAMPLES names a folder with their checkouts (Megatron-LM at d98e8a6, torchtitan-0.2.2,
// torchtitan at b5bcd76, nanotron at 2411b02, DeepSpeedExamples at 45b4b71): none of their text is kept here.
#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/tools/import/imported.hpp"

namespace sextant::importing {
namespace {

struct Example {
  const char* file;
  const char* cluster;
  const char* key;  // of the layout; "refused: WORDS" where the model is of no kind that is known
  const char* model = "";
};
const Example kExamples[] = {
    {"Megatron-LM/examples/gpt3/train_gpt3_175b_distributed.sh", "16x8xa100-80gb",
     "tp8.pp16.vp1.cp1.dp1.z0.mbs1.nosp.nogr"},
    {"Megatron-LM/examples/llama/train_llama3_8b_h100_fp8.sh", "1x8xh100", "tp1.pp1.vp1.cp1.dp8.z1.mbs1"},
    {"Megatron-LM/examples/megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh", "1x8xh100",
     "tp1.pp1.vp1.cp1.dp8.z3.mbs1"},
    {"Megatron-LM/examples/post_training/modelopt/conf/meta-llama/Llama-3.1-8B-Instruct.sh", "1x8xh100",
     "tp1.pp1.vp1.cp1.dp8.z0.mbs1.nogr"},
    {"Megatron-LM/examples/mixtral/train_mixtral_8x7b_distributed.sh", "8x8xh100",
     "refused: a mixture of experts"},
    {"Megatron-LM/examples/bert/train_bert_340m_distributed.sh", "1x8xh100", "refused: pretrain_bert.py"},
    {"Megatron-LM/examples/t5/train_t5_220m_distributed.sh", "1x8xh100", "refused: an encoder and a decoder"},
    {"Megatron-LM/examples/mamba/train.sh", "1x8xh100", "refused: "},
    {"torchtitan-0.2.2/torchtitan/models/llama3/train_configs/debug_model.toml", "1x8xh100",
     "tp1.pp1.vp1.cp1.dp8.z3.mbs8.full3"},
    {"torchtitan-0.2.2/torchtitan/models/llama3/train_configs/llama3_8b.toml", "1x8xh100",
     "tp1.pp1.vp1.cp1.dp8.z3.mbs1.sel"},
    {"torchtitan-0.2.2/torchtitan/models/llama3/train_configs/llama3_70b.toml", "8x8xa100-80gb",
     "tp8.pp1.vp1.cp1.dp8.z3.mbs8.full"},
    {"torchtitan-0.2.2/torchtitan/models/llama3/train_configs/llama3_405b.toml", "16x8xh100",
     "tp8.pp1.vp1.cp1.dp16.z3.mbs2.full.tpo"},
    {"torchtitan/torchtitan/models/llama3/config_registry.py:llama3_8b", "1x8xh100",
     "tp1.pp1.vp1.cp1.dp8.z3.mbs1.sel"},
    {"torchtitan/torchtitan/models/llama3/config_registry.py:llama3_405b", "16x8xh100",
     "tp8.pp1.vp1.cp1.dp16.z3.mbs2.full.tpo"},
    {"nanotron/examples/config_tiny_llama.yaml", "1x8xh100", "tp2.pp1.vp1.cp1.dp4.z0.mbs3.tpo"},
    {"nanotron/examples/config_qwen.yaml", "1x8xh100", "tp2.pp1.vp1.cp1.dp2.z0.mbs3.tpo"},
    {"nanotron/examples/doremi/configs/config_2.8b_llama.yaml", "2x8xh100",
     "tp2.pp1.vp1.cp1.dp8.z0.mbs64.tpo"},
    {"nanotron/examples/config_qwen_with_moe.yaml", "1x8xh100", "refused: a mixture of experts"},
    {"DeepSpeedExamples/applications/DeepSpeed-Chat/training/step1_supervised_finetuning/training_scripts/"
     "llama2/run_llama2_7b.sh",
     "1x8xa100-80gb", "tp1.pp1.vp1.cp1.dp8.z3.mbs4.full"},
    {"DeepSpeedExamples/training/DeepSpeed-ZenFlow/finetuning/zf_config.json", "1x8xa100-80gb",
     "tp1.pp1.vp1.cp1.dp8.z2.mbs1.oo100.nogr", "llama-2-7b"},
};

TEST(RealExamples, AreRead) {
  const char* folder = std::getenv("SEXTANT_EXAMPLES");
  if (!folder) GTEST_SKIP() << "SEXTANT_EXAMPLES names no folder with the frameworks' checkouts";
  for (const Example& e : kExamples) {
    std::string read;
    try {
      read = plan_key(*asked_from(std::filesystem::path(folder) / e.file, e.cluster, e.model).plan);
    } catch (const ConfigError& error) {
      const std::string wanted = e.key, words = wanted.substr(std::min<std::size_t>(9, wanted.size()));
      read = wanted.starts_with("refused: ") && std::string(error.what()).find(words) != std::string::npos
                 ? wanted
                 : std::string("refused: ") + error.what();
    }
    EXPECT_EQ(read, e.key) << e.file;
  }
}

}  // namespace
}  // namespace sextant::importing
