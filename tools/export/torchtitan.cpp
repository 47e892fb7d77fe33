// Export to torchtitan: a Python module with one function that returns its Trainer.Config, chosen by --module and --config.
// Names: pytorch/torchtitan 0.3.0 and b5bcd76, config/configs.py, models/llama3/__init__.py, trainer.py; what they refuse:
// trainer.py (__post_init__, __init__), models/common/decoder.py, distributed/pipeline_parallel.py.
#include <algorithm>

#include <fmt/format.h>

#include "core/base/decimal.hpp"
#include "tools/export/export_target.hpp"

namespace sextant {
namespace {

TargetFeatures torchtitan_features(const std::string&, const StackCapabilities& can) {
  TargetFeatures t;
  t.can = can;
  t.without_grad_overlap = t.without_param_overlap = false;
  t.formats = {{Dtype::bf16, Dtype::bf16, Dtype::fp32, Dtype::fp32, Dtype::fp32},
               {Dtype::fp8, Dtype::bf16, Dtype::fp32, Dtype::fp32, Dtype::fp32},
               {Dtype::fp32, Dtype::fp32, Dtype::fp32, Dtype::fp32, Dtype::fp32}};
  t.own_head_dim = true;
  t.rope_scaling = {"llama3"};
  return t;
}

std::vector<Inexpressible> torchtitan_rules(const PlanFile& file, const std::string&) {
  std::vector<Inexpressible> found;
  const ParallelPlan& p = file.plan;
  if (p.zero_stage == 0 && p.cp > 1)
    found.push_back({"zero_stage",
                     "0",
                     "parameters are always sharded over cp (parallel_dims.py: fsdp is dp_shard * cp)",
                     {set_field("zero_stage 3, shard_degree cp",
                                [](ParallelPlan& q) {
                                  q.zero_stage = 3;
                                  q.shard_degree = q.cp;
                                }),
                      set_field("zero_stage 2, shard_degree cp", [](ParallelPlan& q) {
                        q.zero_stage = 2;
                        q.shard_degree = q.cp;
                      })}});
  if (p.zero_stage > 0 && p.shards() % p.cp != 0)
    found.push_back({"shard_degree",
                     fmt::format("{}", p.shards()),
                     fmt::format("state is sharded over whole groups of cp {}", p.cp),
                     {set_field("shard_degree 0", [](ParallelPlan& q) { q.shard_degree = 0; })}});
  if (file.model.tied_embeddings && p.pp > 1)
    found.push_back({"pp",
                     fmt::format("{}", p.pp),
                     "tied embeddings go with one pipeline stage (decoder.py)",
                     {set_field(fmt::format("pp 1, dp {}", p.dp * p.pp), [](ParallelPlan& q) {
                       q.dp *= q.pp;
                       q.pp = q.vp = 1;
                       q.schedule = PipelineSchedule::one_f_one_b;
                       q.chunks.clear();
                     })}});
  const int pieces = (p.sequence_parallel ? p.tp : 1) * (p.cp > 1 ? 2 * p.cp : 1);
  if (file.training.seq_len % pieces != 0)
    found.push_back({"training.seq_len",
                     fmt::format("{}", file.training.seq_len),
                     fmt::format("the sequence must be a multiple of {} (trainer.py)", pieces),
                     {}});
  return found;
}

const char* python(bool value) { return value ? "True" : "False"; }

std::string schedule_name(const ParallelPlan& p) {
  if (p.schedule == PipelineSchedule::interleaved) return "Interleaved1F1B";
  return p.schedule == PipelineSchedule::gpipe ? "GPipe" : "1F1B";
}

// Chunks in model order; torchtitan gives chunk c to stage c % pp as the plan does.
std::string chunk_list(const PlanFile& file) {
  const std::vector<LayerRange> chunks = layer_ranges(file.plan, file.model.n_layers);
  std::string text;
  for (std::size_t i = 0; i < chunks.size(); ++i)
    text += fmt::format("{}({}, {})", i > 0 ? ", " : "", chunks[i].first, chunks[i].first + chunks[i].count);
  return text;
}

// Layers that are recomputed whole where only some of each chunk are: the first of the chunk.
std::string recomputed_layers(const PlanFile& file) {
  std::vector<int> layers;
  for (const LayerRange& chunk : layer_ranges(file.plan, file.model.n_layers))
    for (int i = 0; i < std::min(chunk.count, file.plan.recompute.layers); ++i)
      layers.push_back(chunk.first + i);
  return fmt::format("{}", fmt::join(layers, ", "));
}

constexpr const char* kSomeLayers = R"py(

class SomeLayersAC(FullAC):
    """Recomputes whole layers, but only those listed."""

    @dataclass(kw_only=True, slots=True)
    class Config(FullAC.Config):
        layers: tuple[int, ...] = ()

    def _wrap_block(self, module, *, base_fqn=None):
        if int(base_fqn.rsplit(".", 1)[1]) not in self.config.layers:
            return module
        return FullAC._wrap_block(self, module, base_fqn=base_fqn)
)py";

constexpr const char* kModel = R"py(

def depth_init(layer):
    return {"weight": partial(nn.init.trunc_normal_, std=depth_scaled_std(0.02, layer)), "bias": nn.init.zeros_}


def model_spec():
    linear = {"weight": partial(nn.init.trunc_normal_, std=0.02), "bias": nn.init.zeros_}
    head = {"weight": partial(nn.init.trunc_normal_, std=DIM**-0.5), "bias": nn.init.zeros_}
    embedding = {"weight": skip_param_init if TIED else partial(nn.init.normal_, std=1.0)}

    def norm():
        return RMSNorm.Config(normalized_shape=DIM, eps=NORM_EPS, param_init={"weight": nn.init.ones_})

    layers = [
        Llama3TransformerBlock.Config(
            attention_norm=norm(),
            ffn_norm=norm(),
            attention=make_gqa_config(
                dim=DIM, n_heads=HEADS, n_kv_heads=KV_HEADS, head_dim=HEAD_DIM, fuse_qkv=True, rope=ROPE,
                wqkv_param_init=linear, wo_param_init=depth_init(i), inner_attention=get_attention_config("flex"),
            ),
            feed_forward=make_ffn_config(
                dim=DIM, hidden_dim=FFN, w1_param_init=linear, w2w3_param_init=depth_init(i)
            ),
        )
        for i in range(LAYERS)
    ]
    model = Llama3Model.Config(
        dim=DIM, vocab_size=VOCAB, enable_weight_tying=TIED, layers=layers, norm=norm(),
        tok_embeddings=Embedding.Config(num_embeddings=VOCAB, embedding_dim=DIM, param_init=embedding),
        lm_head=Linear.Config(in_features=DIM, out_features=VOCAB, param_init=head),
    )
@CONVERT@    return ModelSpec(
        name="llama3", flavor="sextant", model=model, parallelize_fn=parallelize_llama, pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None, state_dict_adapter=Llama3StateDictAdapter,
    )
)py";

constexpr const char* kConvert =
    R"py(    for converter in [Float8LinearConverter.Config(filter_fqns=["lm_head"], model_compile_enabled=@COMPILED@)]:
        model = converter.build().convert(model)
)py";

std::string imports(const PlanFile& file, bool head) {
  std::string text = "from dataclasses import dataclass\n";
  if (file.plan.recompute.layers < 0) text.clear();
  text +=
      "from functools import partial\n\n"
      "import torch.nn as nn\n\n"
      "from torchtitan.components.checkpointer.dcp import CheckpointManager\n"
      "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss\n"
      "from torchtitan.components.metrics import MetricsProcessor\n"
      "from torchtitan.components.optimizer import default_adamw\n";
  if (file.training.compute == Dtype::fp8)
    text += "from torchtitan.components.quantization import Float8LinearConverter\n";
  text +=
      "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig\n"
      "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC\n"
      "from torchtitan.distributed.pipeline_parallel import pipeline_llm\n";
  text += head ? "from torchtitan.models.llama3.config_registry import llama3_8b\n"
               : "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader\n";
  return text +
         "from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm\n"
         "from torchtitan.models.common.config_utils import get_attention_config, make_ffn_config, "
         "make_gqa_config\n"
         "from torchtitan.models.common.param_init import depth_scaled_std, skip_param_init\n"
         "from torchtitan.models.llama3 import Llama3Model, Llama3TransformerBlock, parallelize_llama\n"
         "from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter\n"
         "from torchtitan.protocols.model_spec import ModelSpec\n"
         "from torchtitan.trainer import Trainer\n";
}

std::string model_constants(const PlanFile& file, bool head) {
  const ModelSpec& m = file.model;
  std::string text = fmt::format("\nDIM, LAYERS, FFN, VOCAB = {}, {}, {}, {}\n", m.hidden, m.n_layers,
                                 m.ffn_hidden, m.vocab_size);
  text += fmt::format("HEADS, KV_HEADS, HEAD_DIM = {}, {}, {}\n", m.n_heads, m.n_kv_heads, m.head_dim);
  text += fmt::format("NORM_EPS, TIED = {}, {}\n", decimal(m.norm_eps), python(m.tied_embeddings));
  text += fmt::format("ROPE = ComplexRoPE.Config(\n    dim=HEAD_DIM, {}={}, theta={}",
                      head ? "max_context_length" : "max_seq_len",
                      std::max(m.max_positions, file.training.seq_len), decimal(m.rope_theta));
  if (m.rope_scaling)
    text += fmt::format(
        ", scaling=\"llama\",\n    scaling_factor={}, low_freq_factor={}, high_freq_factor={}, "
        "original_max_position_embeddings={}",
        decimal(m.rope_scaling->factor), decimal(m.rope_scaling->low_freq_factor),
        decimal(m.rope_scaling->high_freq_factor), m.rope_scaling->original_max_positions);
  return text + ",\n)\n";
}

std::string training_text(const PlanFile& file, bool head) {
  const ParallelPlan& p = file.plan;
  const TrainingSpec& t = file.training;
  std::string text = "        training=TrainingConfig(\n";
  const auto line = [&](const std::string& l) { text += "            " + l + ",\n"; };
  if (head) {
    line(fmt::format("num_tokens_per_microbatch_per_dp_rank={} * {}", p.micro_batch, t.seq_len));
    line(fmt::format("num_tokens_per_train_step={} * {}", t.global_batch, t.seq_len));
    line(fmt::format("max_context_length={}", t.seq_len));
  } else {  // with pipeline stages the local batch is cut into micro-batches, otherwise it is one of them
    line(fmt::format("local_batch_size={}", p.pp > 1 ? t.global_batch / p.dp : p.micro_batch));
    line(fmt::format("global_batch_size={}", t.global_batch));
    line(fmt::format("seq_len={}", t.seq_len));
  }
  line("dtype=\"float32\"");
  line(fmt::format("mixed_precision_param=\"{}\"", t.parameter == Dtype::bf16 ? "bfloat16" : "float32"));
  line("mixed_precision_reduce=\"float32\"");
  line(fmt::format("enable_cpu_offload={}", python(p.parameter_offload)));
  line("disable_cuda_graphs=True");
  line("steps=100");
  return text + "        ),\n";
}

std::string parallelism_text(const PlanFile& file, bool head) {
  const ParallelPlan& p = file.plan;
  // cp ranks shard as well: fsdp is dp_shard * cp.
  const int shard = p.zero_stage > 0 ? std::max(1, p.shards() / p.cp) : 1;
  std::string text = "        parallelism=ParallelismConfig(\n";
  const auto line = [&](const std::string& l) { text += "            " + l + ",\n"; };
  line(fmt::format("data_parallel_replicate_degree={}", p.dp / shard));
  line(fmt::format("data_parallel_shard_degree={}", shard));
  line(fmt::format("fsdp_reshard_after_forward=\"{}\"", p.zero_stage == 3 ? "always" : "never"));
  line(fmt::format("tensor_parallel_degree={}", p.tp));
  line(fmt::format("enable_sequence_parallel={}", python(p.tp > 1 && p.sequence_parallel)));
  line(fmt::format("context_parallel_degree={}", p.cp));
  line(fmt::format("pipeline_parallel_degree={}", p.pp));
  if (p.pp > 1) {
    line(fmt::format("pipeline_parallel_schedule=\"{}\"", schedule_name(p)));
    line(head ? fmt::format("num_pp_microbatches={}", microbatches(p, file.training))
              : fmt::format("pipeline_parallel_microbatch_size={}", p.micro_batch));
    line("module_fqns_per_model_part=model_parts()");
  }
  return text + "        ),\n";
}

std::string recompute_text_of(const ParallelPlan& p) {
  if (p.recompute.kind == RecomputeKind::none) return "None";
  if (p.recompute.kind == RecomputeKind::selective) return "SelectiveAC.Config()";
  return p.recompute.layers < 0 ? "FullAC.Config()" : "SomeLayersAC.Config(layers=RECOMPUTED)";
}

std::string module_text(const PlanFile& file, const std::string& version) {
  const ParallelPlan& p = file.plan;
  const bool head = version == "head";
  std::string text =
      fmt::format("# torchtitan {}: the plan {}.\n# Chosen by --module sextant_plan --config plan.\n",
                  version, plan_key(p));
  text += imports(file, head) + model_constants(file, head);
  if (p.pp > 1) text += fmt::format("CHUNKS = [{}]\n", chunk_list(file));
  if (p.recompute.layers >= 0)
    text += fmt::format("RECOMPUTED = ({},)\n", recomputed_layers(file)) + kSomeLayers;
  if (p.pp > 1)
    text +=
        "\n\ndef model_parts():\n"
        "    parts = [[f\"layers.{i}\" for i in range(*chunk)] for chunk in CHUNKS]\n"
        "    parts[0].insert(0, \"tok_embeddings\")\n"
        "    parts[-1] += [\"norm\", \"lm_head\"]\n"
        "    return parts\n";
  std::string model = kModel;
  model.replace(model.find("@CONVERT@"), 9, file.training.compute == Dtype::fp8 ? kConvert : "");
  // Eager where the plan was made for torchtitan's eager blocks; what another stack does says nothing about it.
  const bool compiled =
      file.stack.kernels.blocks == Blocks::compiled || !file.stack.name.starts_with("torchtitan");
  if (const std::size_t at = model.find("@COMPILED@"); at != std::string::npos)
    model.replace(at, 10, compiled ? "True" : "False");
  text += model +
          "\n\ndef plan() -> Trainer.Config:\n    return Trainer.Config(\n        model_spec=model_spec(),\n";
  text +=
      "        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=VOCAB)),\n";
  text += training_text(file, head) + parallelism_text(file, head);
  text += fmt::format("        activation_checkpoint={},\n", recompute_text_of(p));
  text += fmt::format("        compile=CompileConfig(enable={}{}),\n", compiled ? "True" : "False",
                      p.tp > 1 && p.overlap_tp ? ", enable_async_tensor_parallel=True" : "");
  text +=
      "        metrics=MetricsProcessor.Config(log_freq=1),\n"
      "        # Yours: data, tokenizer, learning rate and checkpoints.\n"
      "        hf_assets_path=\"./tokenizer\",\n";
  text += head ? "        dataloader=llama3_8b().dataloader,\n"
               : "        dataloader=HuggingFaceTextDataLoader.Config(dataset=\"c4\"),\n";
  return text +
         "        optimizer=default_adamw(lr=3e-4),\n"
         "        checkpoint=CheckpointManager.Config(interval=500),\n"
         "    )\n";
}

ExportContent write_torchtitan(const PlanFile& file, const std::string& version) {
  ExportContent out;
  out.files.push_back({"sextant_plan.py", module_text(file, version)});
  out.environment = {{"PYTORCH_ALLOC_CONF", "expandable_segments:True"}};
  out.setup = {"export PYTHONPATH=\"$PWD${PYTHONPATH:+:$PYTHONPATH}\""};
  out.program = "-m torchtitan.train --module sextant_plan --config plan";
  out.needs = version == "head" ? "torchtitan at b5bcd76 (2026-08-21) or later, with a nightly torch"
                                : fmt::format("torchtitan {} (pip install torchtitan=={})", version, version);
  if (file.training.compute == Dtype::fp8) out.needs += ", torchao";
  out.trial = fmt::format(
      "NGPU={0} WORLD_SIZE={0} RANK=0 LOCAL_RANK=0 python -m torchtitan.train --module sextant_plan --config "
      "plan "
      "--comm.mode fake_backend --training.steps 1",
      file.plan.world());
  out.trial_needs = "one GPU; collectives are faked";
  out.checker = "torchtitan";
  out.notes.push_back("hf_assets_path must hold your tokenizer; weights are initialised at random");
  if (file.training.seq_len > file.model.max_positions)
    out.notes.push_back("the rotary cache is made as long as the sequence");
  return out;
}

}  // namespace

ExportTarget torchtitan_target() {
  return {.name = "torchtitan",
          .title = "torchtitan",
          .versions = {"0.3.0", "head"},
          .package = "torchtitan",
          .stack = "torchtitan",
          .twin = "torchtitan-eager",
          .features = torchtitan_features,
          .rules = torchtitan_rules,
          .write = write_torchtitan};
}

}  // namespace sextant
