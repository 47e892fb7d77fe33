"""Trains the LLaMA of settings.py under DeepSpeed with ds_config.json: transformers' model, DeepSpeed's pipeline of its layers where
the plan has stages.

torchrun or deepspeed starts it (launch.sh). Options:
  --steps N  steps to train, 100 by default
  --tiny     the same ranks with a small model, also on CPUs (gloo): does the layout run at all?
Tokens and weights are random: batches() and model() are yours, as are learning rate and checkpoints.
"""
import argparse
import itertools
import json
import os
import time

import deepspeed
import torch
import torch.nn.functional as F
from deepspeed.accelerator import get_accelerator
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

import settings as S

CONFIG = json.load(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "ds_config.json")))
ZERO = CONFIG["zero_optimization"]


def tiny():
    """The same layout with as few channels and tokens as it takes, and no more layers than stages need."""
    S.HEAD_DIM, S.FFN, S.VOCAB, S.SEQ_LEN = 8, 32 * S.TP, 64 * S.TP, 32
    S.HIDDEN = S.HEADS * S.HEAD_DIM
    if len(S.STAGES) == 1:
        S.LAYERS, S.STAGES = 4, [4]
    for name in ("reduce_bucket_size", "allgather_bucket_size"):
        ZERO[name] = min(ZERO[name], 1000000)


def config():
    rope = {"rope_type": "default", "rope_theta": S.ROPE_THETA}
    if S.ROPE_SCALING:
        factor, low, high, original = S.ROPE_SCALING
        rope |= {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                 "original_max_position_embeddings": original}
    return LlamaConfig(
        hidden_size=S.HIDDEN, num_hidden_layers=S.LAYERS, intermediate_size=S.FFN, vocab_size=S.VOCAB,
        num_attention_heads=S.HEADS, num_key_value_heads=S.KV_HEADS, head_dim=S.HEAD_DIM, rms_norm_eps=S.NORM_EPS,
        max_position_embeddings=max(S.SEQ_LEN, S.MAX_POSITIONS), attention_bias=S.BIASES, mlp_bias=S.BIASES,
        tie_word_embeddings=S.TIED, rope_parameters=rope, attn_implementation="sdpa", use_cache=False)


class Embedding(torch.nn.Embedding):
    def __init__(self, c):
        super().__init__(c.vocab_size, c.hidden_size)
        torch.nn.init.normal_(self.weight, std=0.02)


class Block(LlamaDecoderLayer):
    """One decoder layer of a pipeline stage: tokens' states in, tokens' states out."""

    def __init__(self, c, index):
        super().__init__(c, index)
        self.rotary = LlamaRotaryEmbedding(c)

    def forward(self, x):
        positions = torch.arange(x.shape[1], device=x.device)[None]
        return super().forward(x, position_ids=positions, position_embeddings=self.rotary(x, positions))


class Norm(LlamaRMSNorm):
    def __init__(self, c):
        super().__init__(c.hidden_size, c.rms_norm_eps)


class Head(torch.nn.Linear):
    def __init__(self, c):
        super().__init__(c.hidden_size, c.vocab_size, bias=False)


def logits(embedding, x):
    return F.linear(x, embedding.weight)


def loss_of(logits, tokens):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class Stages(PipelineModule):
    """Stages of as many layers as the plan gives them; the embedding is in the first, norm and head are in the last."""

    def _partition_layers(self, method=None):
        self.parts = [0, *(1 + end for end in itertools.accumulate(S.STAGES[:-1])), len(self._layer_specs)]
        here = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[here], stop=self.parts[here + 1])


def pipeline():
    c = config()
    blocks = [LayerSpec(Block, c, i) for i in range(S.LAYERS)]
    first, last = LayerSpec(Embedding, c), LayerSpec(Head, c)
    if S.TIED:
        first = TiedLayerSpec("embedding", Embedding, c)
        last = TiedLayerSpec("embedding", Embedding, c, forward_fn=logits)
    return Stages([first, *blocks, LayerSpec(Norm, c), last], num_stages=len(S.STAGES), loss_fn=loss_of,
                  activation_checkpoint_interval=1 if S.RECOMPUTE == "full" else 0, checkpointable_layers=["Block"])


def model():
    """Yours: from_pretrained() inside the same context, for weights that exist."""
    dtype = getattr(torch, S.DTYPE)
    with deepspeed.zero.Init(config_dict_or_path=CONFIG, enabled=ZERO["stage"] == 3 and S.TP == 1):  # AutoTP splits whole matrices
        built = LlamaForCausalLM._from_config(config(), dtype=dtype)
    if S.RECOMPUTE == "full":
        built.gradient_checkpointing_enable({"use_reentrant": False})
        if S.ACTIVATION_OFFLOAD:  # DeepSpeed's own, which keeps the layers' inputs on the host
            deepspeed.checkpointing.configure(None, deepspeed_config=CONFIG)
            for part in built.modules():
                if hasattr(part, "_gradient_checkpointing_func"):
                    part._gradient_checkpointing_func = deepspeed.checkpointing.checkpoint
    return built


def build():
    """DeepSpeed's engine of the plan."""
    built = pipeline() if len(S.STAGES) > 1 else model()
    engine, *_ = deepspeed.initialize(model=built, model_parameters=[p for p in built.parameters() if p.requires_grad], config=CONFIG)
    return engine


def batches(replica, device):
    """Yours: micro-batches of this replica, once as input and once as what is to be predicted."""
    generator = torch.Generator().manual_seed(replica)
    while True:
        tokens = torch.randint(S.VOCAB, (S.MICRO_BATCH, S.SEQ_LEN), generator=generator).to(device)
        yield tokens, tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    args = parser.parse_args()
    if args.tiny:
        tiny()
    accelerator = get_accelerator()
    accelerator.set_device(args.local_rank)
    deepspeed.init_distributed()
    torch.manual_seed(1)
    engine = build()
    rank, device = deepspeed.comm.get_rank(), accelerator.current_device_name()
    # Ranks: those that split matrices beside each other, then replicas, then stages.
    data = batches(rank // S.TP % S.DP, device)
    for step in range(args.steps):
        start = time.perf_counter()
        if len(S.STAGES) > 1:
            loss = engine.train_batch(data_iter=data)
        else:
            losses = []
            for _ in range(S.MICRO_BATCHES):
                tokens, targets = next(data)
                loss = engine(tokens, labels=targets).loss
                engine.backward(loss)
                engine.step()
                losses.append(loss.detach())
            loss = torch.stack(losses).mean()
        norm = engine.get_global_grad_norm()
        if rank == 0:
            memory = f"{accelerator.max_memory_allocated() / 2**30:.1f} GiB" if accelerator.device_name() == "cuda" else "on CPU"
            print(f"step {step + 1} loss {float(loss):.4f} grad_norm {float(norm or 0):.4f} {time.perf_counter() - start:.3f} s {memory}",
                  flush=True)
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    main()
