#include "planner/calibration/log_megatron.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "planner/calibration/log_model.hpp"
#include "planner/calibration/log_settled.hpp"
#include "planner/calibration/log_text.hpp"

namespace sextant {

namespace {

// "  hidden_size ..................................... 4096", Megatron's print of its arguments.
struct Argument {
  std::string_view key;
  const char* column;
};
constexpr std::array kArguments = {
    Argument{"num_layers", "layers"},
    Argument{"hidden_size", "hidden"},
    Argument{"num_attention_heads", "heads"},
    Argument{"ffn_hidden_size", "ffn_hidden"},
    Argument{"seq_length", "seq_len"},
    Argument{"micro_batch_size", "micro_batch"},
    Argument{"global_batch_size", "global_batch"},
    Argument{"tensor_model_parallel_size", "tp"},
    Argument{"pipeline_model_parallel_size", "pp"},
    Argument{"context_parallel_size", "cp"},
    Argument{"data_parallel_size", "dp"},
    Argument{"world_size", "gpus"},
    Argument{"sequence_parallel", "sequence_parallel"},
    Argument{"use_distributed_optimizer", "zero_stage"},
    Argument{"num_layers_per_virtual_pipeline_stage", "layers_per_chunk"},
    Argument{"virtual_pipeline_model_parallel_size", "virtual_stages"},
    Argument{"num_virtual_stages_per_pipeline_rank", "virtual_stages"},
    Argument{"use_megatron_fsdp", "megatron_fsdp"},
    Argument{"use_custom_fsdp", "megatron_fsdp"},
    Argument{"use_torch_fsdp2", "torch_fsdp2"},
    Argument{"encoder_seq_length", "seq_len"},
    Argument{"num_experts", "experts"},
    Argument{"overlap_grad_reduce", "overlap_grad_reduce"},
    Argument{"overlap_param_gather", "overlap_param_gather"},
    Argument{"tp_comm_overlap", "overlap_tp"},
    Argument{"decoder_first_pipeline_num_layers", "first_stage_layers"},
    Argument{"num_layers_in_first_pipeline_stage", "first_stage_layers"},
    Argument{"decoder_last_pipeline_num_layers", "last_stage_layers"},
    Argument{"num_layers_in_last_pipeline_stage", "last_stage_layers"},
    Argument{"account_for_embedding_in_pipeline_split", "embedding_as_layer"},
    Argument{"account_for_loss_in_pipeline_split", "loss_as_layer"},
    Argument{"cpu_offloading_num_layers", "activation_offload"},
    Argument{"cpu_offloading_weights", "weights_offload"},
    Argument{"use_tp_pp_dp_mapping", "tp_pp_dp"},
};

// Gradients are summed in the format of the parameters unless they are in fp32: fp16 by default, bf16 only with --grad-reduce-in-bf16
// (arguments.py, validate_args; DistributedDataParallelConfig.grad_reduce_in_fp32).
void choose_gradient(RunLog& log) {
  const auto sums = log.says.find("sums_in_fp32");
  if (sums == log.says.end()) return;
  if (sums->second == 1) {
    log.gradient = Dtype::fp32;
    if (log.reduction != Dtype::bf16) log.reduction = Dtype::fp32;
    return;
  }
  const bool fp16 = log.says.contains("fp16") && log.says.at("fp16") == 1;
  if (fp16 || log.reduction == Dtype::bf16) log.gradient = log.reduction = fp16 ? Dtype::fp16 : Dtype::bf16;
}

void read_setting(std::string_view key, std::string_view value, RunLog& log) {
  const bool yes = value == "True" || value == "true", no = value == "False" || value == "false";
  const auto known =
      std::find_if(kArguments.begin(), kArguments.end(), [&](const Argument& a) { return a.key == key; });
  if (known != kArguments.end()) {
    if (const auto x = whole_number(value))
      log.says[known->column] = *x;
    else if (yes || no)
      log.says[known->column] = yes ? 1 : 0;
  }
  if (key == "recompute_granularity")
    log.says["recompute"] = value == "full" ? 2 : value == "selective" ? 1 : 0;
  // "block": the first N layers of each chunk; "uniform": all of them, N at a time.
  if (key == "recompute_method") log.says["recompute_block"] = value == "block" ? 1 : 0;
  if (key == "recompute_num_layers")
    if (const auto n = whole_number(value)) log.says["recompute_layers"] = *n;
  if (key == "data_parallel_sharding_strategy")
    log.says["fsdp_stage"] = value == "optim_grads_params" ? 3
                             : value == "optim_grads"      ? 2
                             : value == "optim"            ? 1
                                                           : 0;
  // Megatron-DeepSpeed, whose stage counts where DeepSpeed is on.
  if (key == "deepspeed") log.says["deepspeed"] = yes ? 1 : 0;
  if (const auto on = log.says.find("deepspeed");
      key == "zero_stage" && on != log.says.end() && on->second == 1)
    if (const auto stage = number_after(value, "")) log.says["zero_stage"] = std::llround(*stage);
  if (key == "name" && value == "distributed_fused_adam") log.says["zero_stage"] = 1;  // NeMo's optim.name
  if (key == "devices" || key == "num_nodes")
    if (const auto n = whole_number(value)) log.says[key == "devices" ? "gpus_of_node" : "nodes"] = *n;
  if (key == "precision" ||
      key == "mixed_precision") {  // NeMo: "bf16-mixed", 16; Megatron-Bridge: "bf16_mixed"
    if (value.starts_with("bf16")) log.compute = Dtype::bf16;
    if (value.starts_with("16") || value.starts_with("fp16")) log.compute = Dtype::fp16;
  }
  // In the order that they are printed, by name: bf16, fp16, fp8, params_dtype.
  if (key == "params_dtype" && log.compute != Dtype::fp8) {
    if (value.ends_with("bfloat16")) log.compute = Dtype::bf16;
    if (value.ends_with("float16") && !value.ends_with("bfloat16")) log.compute = Dtype::fp16;
    if (value.ends_with("float32")) log.compute = Dtype::fp32;
  }
  if (key == "bf16" && yes) log.compute = Dtype::bf16;
  if (key == "fp16" && (yes || no)) log.says["fp16"] = yes ? 1 : 0;
  if (key == "fp16" && yes) log.compute = Dtype::fp16;
  if (key == "fp8" && (value == "hybrid" || value == "e4m3")) log.compute = Dtype::fp8;
  if (key == "accumulate_allreduce_grads_in_fp32" && (yes || no)) log.says["sums_in_fp32"] = yes ? 1 : 0;
  if (key == "grad_reduce_in_bf16" && yes) log.reduction = Dtype::bf16;
  if (key == "grad_reduce_in_fp32" && (yes || no)) {  // Megatron-Bridge, whose sections may repeat it
    log.says["sums_in_fp32"] = yes ? 1 : 0;
    log.reduction = yes ? Dtype::fp32 : Dtype::bf16;
  }
  if (key == "optimizer_cpu_offload") log.says["optimizer_offload"] = yes ? 1 : 0;
  if (key == "optimizer_offload_fraction")
    if (const auto share = number_after(value, "")) log.offload_share = *share;
  if (key == "pipeline_model_parallel_layout" && value != "None" && value != "null")
    log.pipeline_layout = value;
  read_model_setting(key, value, log);
  choose_gradient(log);
  read_kernel_argument(key, value, log.kernels);
}

void read_argument(std::string_view line, RunLog& log) {
  const std::size_t dots = line.find(" ..");
  if (dots == std::string_view::npos) return;
  const std::size_t value = std::min(line.find_first_not_of('.', dots + 1), line.size());
  read_setting(last_word(line.substr(0, dots)), without_blanks(line.substr(value)), log);
}

// "consumed samples: 2048 | consumed tokens: 4194304 | ... | samples per second: 33.0 | tokens per gpu per second (tgs): 1056.1"; of
// tokens and below Megatron-DeepSpeed only.
void read_consumed(std::string_view line, int at, std::optional<std::int64_t> number, StepLines& steps,
                   RunLog& log) {
  const auto samples = number_after(line, "consumed samples:"),
             tokens = number_after(line, "consumed tokens:");
  if (number && samples) steps.consumed(*number, *samples, tokens, at);
  if (const auto length = number_after(line, "actual seqlen:"); length && *length >= 1)
    settle(log, "seq_len", {*length, *length}, "actual seqlen of its steps", at);
  const auto rate = range_after(line, "samples per second:", 4),
             of_gpu = range_after(line, "tokens per gpu per second (tgs):", 4),
             length = range_after(line, "actual seqlen:", 9);
  if (rate && of_gpu && length)
    settle(log, "gpus", quotient(product(*rate, *length), *of_gpu), "tokens/s over tokens/s of a GPU", at);
}

}  // namespace

void read_yaml_setting(std::string_view line, RunLog& log) {
  const std::size_t colon = line.find(": ");
  if (colon == std::string_view::npos || line.find('|') != std::string_view::npos) return;
  const std::string_view key = last_word(line.substr(0, colon));
  // Sections repeat names with other meanings.
  if (without_blanks(line.substr(0, colon)) == key)
    read_setting(key, without_blanks(line.substr(colon + 1)), log);
}

void read_megatron(std::string_view line, int at, StepLines& steps, RunLog& log) {
  if (line.find("- arguments -") != std::string_view::npos) steps.starts();
  // "using world size: 64, data-parallel size: 16, tensor-model-parallel size: 2", until 2023 "data-parallel-size: 16".
  if (line.find("using world size:") != std::string_view::npos)
    for (const auto& [label, column] : {std::pair{"using world size:", "gpus"},
                                        {"data-parallel size:", "dp"},
                                        {"data-parallel-size:", "dp"},
                                        {"context-parallel size:", "cp"},
                                        {" tensor-model-parallel size:", "tp"},
                                        {" pipeline-model-parallel size:", "pp"}})
      if (const auto n = number_after(line, label); n && *n >= 1) log.says[column] = std::llround(*n);
  if (line.find("using torch.") != std::string_view::npos &&
      line.find("for parameters") != std::string_view::npos)
    log.compute = line.find("torch.bfloat16") != std::string_view::npos  ? Dtype::bf16
                  : line.find("torch.float16") != std::string_view::npos ? Dtype::fp16
                                                                         : Dtype::fp32;
  const auto number = step_of_total(line, "iteration ");
  if (number || line.find(steps.label()) != std::string_view::npos) {
    steps.read(line, at, number);
    if (const auto batch = number_after(line, "global batch size:"))
      log.says["global_batch"] = std::llround(*batch);
    read_consumed(line, at, number, steps, log);
  }
  if (line.find("memory (MB)") != std::string_view::npos)
    if (const auto mb = number_after(line, "max allocated:")) {
      keep_largest(log.peak_memory_GiB, *mb / 1024);  // Megatron's MB are MiB
      log.memory_kind = "torch_allocated";
      if (const auto rank = count_after(line, "[Rank ")) log.memory_ranks.insert(*rank);
    }
  read_argument(line, log);
  if (log.format == LogFormat::megatron_bridge) read_yaml_setting(line, log);
}

}  // namespace sextant
