#include "tools/import/import_megatron.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>

#include "core/base/decimal.hpp"
#include "core/base/error.hpp"
#include "core/base/words.hpp"
#include "core/plan/megatron_layout.hpp"
#include "tools/import/megatron_options.hpp"

namespace sextant {

namespace {

constexpr std::array kTelling = {"--tensor-model-parallel-size",
                                 "--pipeline-model-parallel-size",
                                 "--num-attention-heads",
                                 "--micro-batch-size",
                                 "--use-distributed-optimizer",
                                 "--num-layers",
                                 "--hidden-size",
                                 "--max-position-embeddings"};

struct OtherModel {
  const char* option;
  const char* is;
};
constexpr std::array kOtherModels = {
    OtherModel{"--num-experts", "a mixture of experts"},
    OtherModel{"--multi-latent-attention", "multi-latent attention"},
    OtherModel{"--hybrid-layer-pattern", "a hybrid of attention and state-space layers"},
    OtherModel{"--hybrid-override-pattern", "a hybrid of attention and state-space layers"},
    OtherModel{"--is-hybrid-model", "a hybrid of attention and state-space layers"},
    OtherModel{"--heterogeneous-layers-config-path", "layers of several shapes"},
    OtherModel{"--mtp-num-layers", "multi-token prediction"},
    OtherModel{"--decoder-seq-length", "an encoder and a decoder"},
    OtherModel{"--squared-relu", "an MLP with a squared ReLU"}};
constexpr std::array kOtherPrograms = {"bert", "t5",    "mamba", "vlm",  "vision",
                                       "ict",  "retro", "rl",    "mimo", "hybrid"};

void refuse_other_models(const CommandFlags& command, const MegatronOptions& o) {
  for (const OtherModel& other : kOtherModels)
    if (command.has(other.option))
      o.wrong(other.option, other.is, "a decoder of equal layers, as LLaMA and GPT have",
              "sextant plans no other models");
  for (const char* other : kOtherPrograms)
    if (command.program.starts_with("pretrain_" + std::string(other)) ||
        command.program.starts_with("train_" + std::string(other)))
      o.wrong("", command.program, "a program that trains a decoder: pretrain_gpt.py",
              "sextant plans no other models");
}

struct KnownTokenizer {
  const char* sign;
  int vocabulary;
};
// Without padding; signs in small letters, of the tokenizer's type or of the model that it is named after.
constexpr std::array kTokenizers = {
    KnownTokenizer{"llama-3", 128256}, KnownTokenizer{"llama3", 128256},
    KnownTokenizer{"llama-2", 32000},  KnownTokenizer{"llama2tokenizer", 32000},
    KnownTokenizer{"llama2", 32000},   KnownTokenizer{"gpt2bpetokenizer", 50257}};

// The size of the vocabulary as stated, or as the tokenizer has it; 0: nothing says it.
int vocabulary(MegatronOptions& o, ImportedRun& run) {
  if (const auto stated = o.number("--vocab-size")) return *stated;
  if (const auto padded = o.number("--padded-vocab-size")) return *padded;
  const std::string type = lower(o.text("--tokenizer-type").value_or("")),
                    model = lower(o.text("--tokenizer-model").value_or(""));
  for (const KnownTokenizer& t : kTokenizers)
    if (type == t.sign || model.find(t.sign) != std::string::npos) {
      run.assumed.push_back(
          fmt::format("a vocabulary of {} ({})", t.vocabulary, model.empty() ? type : model));
      return t.vocabulary;
    }
  return 0;
}

ModelSpec read_model(MegatronOptions& o, ImportedRun& run) {
  ModelSpec m;
  m.n_layers = o.required("--num-layers");
  m.hidden = o.required("--hidden-size");
  m.n_heads = o.required("--num-attention-heads");
  m.n_kv_heads = o.flag("--group-query-attention") ? o.number("--num-query-groups").value_or(1) : m.n_heads;
  m.head_dim = o.number("--kv-channels").value_or(m.hidden / m.n_heads);
  m.gated_mlp = o.flag("--swiglu");
  const auto ffn = o.number("--ffn-hidden-size");
  m.ffn_hidden =
      ffn.value_or(m.gated_mlp ? static_cast<int>(4LL * m.hidden * 2 / 3 / 64) * 64 : 4 * m.hidden);
  m.vocab_size = vocabulary(o, run);
  m.tied_embeddings = !o.flag("--untie-embeddings-and-output-weights");
  m.linear_bias = !o.flag("--disable-bias-linear");
  m.qkv_bias = m.linear_bias || o.flag("--add-qkv-bias");
  m.output_bias = m.mlp_bias = m.linear_bias;
  m.norm = o.text("--normalization").value_or("LayerNorm") == "RMSNorm" ? NormKind::rms : NormKind::layer;
  m.norm_eps = o.real("--norm-epsilon").value_or(1e-5);
  m.qk_norm = o.flag("--qk-layernorm") ? QkNorm::head : QkNorm::none;
  const std::string position = o.text("--position-embedding-type").value_or("learned_absolute");
  const bool rotary = position == "rope" || o.flag("--use-rotary-position-embeddings");
  if (!rotary && position != "learned_absolute")
    o.wrong("--position-embedding-type", position, "rope or learned_absolute");
  m.position = rotary ? PositionKind::rope : PositionKind::learned;
  m.rope_theta = o.real("--rotary-base").value_or(10000);
  if (o.flag("--use-rope-scaling")) {
    m.rope_scaling = RopeScaling{};
    m.rope_scaling->factor = o.real("--rope-scaling-factor").value_or(8);
  }
  if (o.flag("--window-size") && !o.values("--window-size").empty())
    m.window = static_cast<int>(parse_count(o.values("--window-size").front(), 1 << 27).value_or(-1)) + 1;
  m.max_positions = o.number("--max-position-embeddings").value_or(o.number("--seq-length").value_or(2048));
  return m;
}

// Layers of each chunk, where the options cut them unequally; and the virtual stages.
void read_pipeline(MegatronOptions& o, ImportedRun& run) {
  ParallelPlan& p = run.plan;
  const int layers = run.model ? run.model->n_layers : 0;
  const auto per_chunk = o.number("--num-layers-per-virtual-pipeline-stage");
  p.vp = o.number("--num-virtual-stages-per-pipeline-rank").value_or(1);
  const auto layout = o.text("--pipeline-model-parallel-layout");
  if (per_chunk && p.pp > 1 && layers > 0) {
    if (layers % (p.pp * *per_chunk) != 0)
      o.wrong("--num-layers-per-virtual-pipeline-stage", std::to_string(*per_chunk),
              fmt::format("a divisor of the {} layers of a stage", layers / p.pp));
    p.vp = layers / (p.pp * *per_chunk);
  }
  const bool embedding = o.flag("--account-for-embedding-in-pipeline-split"),
             head = o.flag("--account-for-loss-in-pipeline-split");
  const int first = o.number("--decoder-first-pipeline-num-layers").value_or(0),
            last = o.number("--decoder-last-pipeline-num-layers").value_or(0);
  o.flag("--microbatch-group-size-per-virtual-pipeline-stage");
  if (p.pp == 1) {
    p.vp = 1;
    return;
  }
  std::optional<std::vector<int>> chunks;
  std::string stated;
  if (layout) {
    chunks = layout_layers(*layout);
    stated = "--pipeline-model-parallel-layout";
    if (chunks && static_cast<int>(chunks->size()) % p.pp == 0)
      p.vp = static_cast<int>(chunks->size()) / p.pp;
  } else if (embedding || head) {
    chunks = accounted_layers(layers, p.pp * p.vp, {.embedding = embedding, .head = head});
    stated = embedding ? "--account-for-embedding-in-pipeline-split" : "--account-for-loss-in-pipeline-split";
  } else if (first > 0 || last > 0) {
    chunks = first_last_layers(layers, p.pp, p.vp, first, last);
    stated = "--decoder-first-pipeline-num-layers";
  }
  const bool cut = chunks && static_cast<int>(chunks->size()) == p.pp * p.vp &&
                   std::accumulate(chunks->begin(), chunks->end(), 0) == layers;
  if (!stated.empty() && !cut)
    o.wrong(stated, layout.value_or("its number"),
            fmt::format("the {} layers cut into chunks for {} stages", layers, p.pp));
  if (chunks) {
    p.chunks = chunks_of(*chunks);
    if (equal_chunks(p, layers)) p.chunks.clear();
  }
  if (p.vp > 1) p.schedule = PipelineSchedule::interleaved;
}

void read_sharding(MegatronOptions& o, ImportedRun& run) {
  ParallelPlan& p = run.plan;
  const bool distributed = o.flag("--use-distributed-optimizer");
  p.zero_stage = distributed ? 1 : 0;
  const std::string strategy = o.text("--data-parallel-sharding-strategy").value_or("no_shard");
  if (o.flag("--use-megatron-fsdp") || o.flag("--use-custom-fsdp")) {
    p.zero_stage = strategy == "optim_grads_params" ? 3
                   : strategy == "optim_grads"      ? 2
                   : strategy == "optim"            ? 1
                                                    : 0;
    if (o.text("--outer-dp-sharding-strategy").value_or("no_shard") != "no_shard")
      run.unread.push_back("--outer-dp-sharding-strategy optim");
  }
  if (o.flag("--use-torch-fsdp2")) p.zero_stage = o.flag("--torch-fsdp2-no-reshard-after-forward") ? 2 : 3;
  run.state_copies = o.number("--num-distributed-optimizer-instances").value_or(1);
  p.overlap_grad_reduce = o.flag("--overlap-grad-reduce");
  const bool gather = o.flag("--overlap-param-gather");
  p.overlap_param_gather = p.zero_stage == 0 || gather;
  p.bucket_elements = o.number("--ddp-bucket-size").value_or(0);
  if (o.flag("--optimizer-cpu-offload"))
    p.optimizer_offload = o.real("--optimizer-offload-fraction").value_or(1.0);
  if (p.optimizer_offload < 0 || p.optimizer_offload > 1)
    o.wrong("--optimizer-offload-fraction", decimal(p.optimizer_offload), "a share from 0 to 1");
  o.flag("--overlap-cpu-optimizer-d2h-h2d");
}

void read_recompute(MegatronOptions& o, ImportedRun& run) {
  Recompute& r = run.plan.recompute;
  const std::string granularity = o.text("--recompute-granularity").value_or("");
  const bool old_full = o.flag("--checkpoint-activations") || o.flag("--activations-checkpoint-method");
  const std::string method = o.text("--recompute-method").value_or("uniform");
  const auto layers = o.number("--recompute-num-layers");
  if (o.flag("--recompute-activations") || granularity == "selective") r.kind = RecomputeKind::selective;
  if (granularity == "full" || old_full) r.kind = RecomputeKind::full;
  if (!granularity.empty() && r.kind == RecomputeKind::none)
    o.wrong("--recompute-granularity", granularity, "selective or full");
  if (r.kind == RecomputeKind::full && method == "block") r.layers = layers.value_or(1);
  if (r.kind == RecomputeKind::full && method == "uniform" && layers.value_or(1) > 1)
    run.unread.push_back(fmt::format("--recompute-num-layers {} with uniform: taken as 1", *layers));
  if (o.flag("--recompute-modules")) {
    const auto& modules = o.values("--recompute-modules");
    if (modules != std::vector<std::string>{"core_attn"})
      run.unread.push_back(
          fmt::format("--recompute-modules {}: taken as core_attn", fmt::join(modules, " ")));
  }
  if (o.flag("--distribute-saved-activations")) run.unread.push_back("--distribute-saved-activations");
  run.plan.activation_offload = o.number("--cpu-offloading-num-layers", 0).value_or(0);
}

std::optional<Dtype> read_format(MegatronOptions& o, const std::string& name) {
  const auto value = o.text(name);
  if (!value) return std::nullopt;
  const auto format = dtype_from_name(*value);
  if (!format) o.wrong(name, *value, "fp32, bf16, fp16 or fp8");
  return format;
}

void read_formats(MegatronOptions& o, ImportedFormats& f) {
  const bool bf16 = o.flag("--bf16"), fp16 = o.flag("--fp16");
  f.parameter = bf16 ? Dtype::bf16 : fp16 ? Dtype::fp16 : Dtype::fp32;
  f.compute = o.text("--fp8-format") || o.flag("--fp8") ? Dtype::fp8 : *f.parameter;
  Dtype sums = Dtype::fp32;  // arguments.py: bf16 accumulates in fp32 unless it reduces in bf16
  if (bf16 && o.flag("--grad-reduce-in-bf16")) sums = Dtype::bf16;
  if (fp16 && !o.flag("--accumulate-allreduce-grads-in-fp32")) sums = Dtype::fp16;
  f.gradient = f.reduction = sums;
  f.optimizer_state = Dtype::fp32;
  const bool aware = o.flag("--use-precision-aware-optimizer");
  const auto first = read_format(o, "--exp-avg-dtype"), second = read_format(o, "--exp-avg-sq-dtype");
  if (aware && first) f.optimizer_state = first;
  if (aware && first && second && *first != *second)
    o.wrong("--exp-avg-sq-dtype", std::string(name(*second)), "the format of --exp-avg-dtype");
}

}  // namespace

bool is_megatron_command(const CommandFlags& command) {
  const auto told = std::ranges::count_if(kTelling, [&](const char* name) { return command.has(name); });
  return told >= (command.program.starts_with("pretrain_") ? 1 : 2);
}

ImportedRun import_megatron(const CommandFlags& command, const std::string& file) {
  MegatronOptions o(command, file);
  ImportedRun run;
  run.file = file;
  run.what = "a Megatron-LM command line";
  run.stack = "megatron-core";
  run.overlap_stated = true;
  run.gpus = command.gpus;
  refuse_other_models(command, o);
  if (command.has("--num-layers")) run.model = read_model(o, run);
  run.seq_len = o.number("--seq-length");
  run.global_batch = o.number("--global-batch-size");
  for (const char* growing : {"--step-batch-size-schedule", "--rampup-batch-size"})
    if (o.flag(growing) && run.global_batch)
      run.assumed.push_back(fmt::format("the batch of {} at which {} ends", *run.global_batch, growing));
  ParallelPlan& p = run.plan;
  p.micro_batch = o.number("--micro-batch-size").value_or(1);
  if (!run.global_batch) run.accumulation = 1;  // the default: one micro-batch a replica
  p.tp = o.number("--tensor-model-parallel-size").value_or(1);
  p.pp = o.number("--pipeline-model-parallel-size").value_or(1);
  p.cp = o.number("--context-parallel-size").value_or(1);
  if (p.tp > kMaxDegree || p.pp > kMaxDegree || p.cp > kMaxDegree || p.micro_batch > kMaxDegree)
    o.wrong("", "a degree", fmt::format("at most {}", kMaxDegree));
  const bool sequence = o.flag("--sequence-parallel"), tp_overlap = o.flag("--tp-comm-overlap");
  p.sequence_parallel = sequence && p.tp > 1;
  p.overlap_tp = tp_overlap && p.tp > 1;
  if (const std::string kind = o.text("--cp-comm-type").value_or("p2p"); kind != "p2p" && p.cp > 1)
    run.unread.push_back(fmt::format("--cp-comm-type {}: taken as p2p", kind));
  if (o.flag("--use-tp-pp-dp-mapping")) p.axis_order = {Axis::tp, Axis::cp, Axis::pp, Axis::dp};
  read_pipeline(o, run);
  read_sharding(o, run);
  read_recompute(o, run);
  read_formats(o, run.formats);
  for (const auto& [option, usual] :
       {std::pair{"--optimizer", "adam"}, {"--transformer-impl", "transformer_engine"}})
    if (const auto value = o.text(option); value && *value != usual)
      run.unread.push_back(fmt::format("{} {}: taken as {}", option, *value, usual));
  if (const auto kernel = o.text("--attention-backend"); kernel == "unfused" || kernel == "local")
    run.unread.push_back(fmt::format("--attention-backend {}: taken as fused", *kernel));
  for (std::string& option : o.unread()) run.unread.push_back(std::move(option));
  return run;
}

}  // namespace sextant
