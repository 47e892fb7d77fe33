"""Trains the model of settings.py with PyTorch alone: fully_shard on a device mesh, tensor parallelism beside it.

torchrun starts it (launch.sh). Options:
  --steps N  steps to train, 100 by default
  --tiny     the same ranks with a small model, also on CPUs (gloo): does the layout run at all?
  --fake     all other ranks are faked: one step on one GPU shows its memory
Tokens are random: batches() is yours, as are learning rate and checkpoints.
"""
import argparse
import contextlib
import functools
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module)
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import settings as S


def tiny():
    """The same layout with as few layers, channels and tokens as it takes."""
    S.LAYERS, S.HEAD_DIM, S.FFN, S.VOCAB, S.SEQ_LEN = 4, 8, 16 * S.TP, 64 * S.TP, 16 * S.TP
    S.HIDDEN = S.HEADS * S.HEAD_DIM


def rotary_table(device):
    inverse = 1.0 / S.ROPE_THETA ** (torch.arange(0, S.HEAD_DIM, 2, device=device).float() / S.HEAD_DIM)
    if S.ROPE_SCALING:  # llama3: low frequencies are slowed, those between are blended
        factor, low, high, original = S.ROPE_SCALING
        blend = ((original * inverse / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        inverse = inverse * (blend + (1 - blend) / factor)
    angles = torch.outer(torch.arange(S.SEQ_LEN, device=device).float(), inverse)
    return angles.cos(), angles.sin()


def turn(x, cos, sin):
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        width, kv_width = S.HEADS * S.HEAD_DIM, S.KV_HEADS * S.HEAD_DIM
        self.q, self.k = nn.Linear(S.HIDDEN, width, bias=False), nn.Linear(S.HIDDEN, kv_width, bias=False)
        self.v, self.o = nn.Linear(S.HIDDEN, kv_width, bias=False), nn.Linear(width, S.HIDDEN, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (layer(x).unflatten(-1, (-1, S.HEAD_DIM)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=S.HEADS != S.KV_HEADS)
        return self.o(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(S.HIDDEN, S.FFN, bias=False), nn.Linear(S.HIDDEN, S.FFN, bias=False)
        self.down = nn.Linear(S.FFN, S.HIDDEN, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(S.HIDDEN, S.NORM_EPS), Attention()
        self.mlp_norm, self.mlp = nn.RMSNorm(S.HIDDEN, S.NORM_EPS), Mlp()

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(S.VOCAB, S.HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(S.LAYERS))
        self.norm = nn.RMSNorm(S.HIDDEN, S.NORM_EPS)
        self.head = nn.Linear(S.HIDDEN, S.VOCAB, bias=False)
        if S.TIED:
            self.head.weight = self.embedding.weight

    def chunk_loss(self, x, targets):
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), targets.flatten(), reduction="sum")

    def forward(self, tokens, targets, cos, sin):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        x = self.norm(x)
        if S.TP > 1:  # logits stay split over the vocabulary
            return F.cross_entropy(self.head(x).flatten(0, 1).float(), targets.flatten())
        parts = zip(x.chunk(8, dim=1), targets.chunk(8, dim=1))  # so that logits are never whole
        return sum(checkpoint(self.chunk_loss, a, b, use_reentrant=False) for a, b in parts) / targets.numel()

    def reset(self):
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                nn.init.ones_(parameter)
            else:
                nn.init.normal_(parameter, std=0.02)


def split_tensors(model, mesh):
    """Tensor parallelism; with sequence parallelism activations between the matrices are split over tokens."""
    tokens = Shard(1) if S.SEQUENCE_PARALLEL else Replicate()
    outside = {"embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens),
               "head": ColwiseParallel(input_layouts=tokens, output_layouts=Shard(-1), use_local_output=False)}
    block = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    block |= {f"mlp.{name}": ColwiseParallel() for name in ("gate", "up")}
    block |= {name: RowwiseParallel(output_layouts=tokens) for name in ("attention.o", "mlp.down")}
    if S.SEQUENCE_PARALLEL:
        outside["norm"] = SequenceParallel()
        block |= {name: SequenceParallel() for name in ("attention_norm", "mlp_norm")}
        block["attention"] = PrepareModuleInput(
            input_layouts=(tokens, None, None), desired_input_layouts=(Replicate(), None, None))
        block["mlp"] = PrepareModuleInput(input_layouts=(tokens,), desired_input_layouts=(Replicate(),))
    parallelize_module(model, mesh, outside)
    for layer in model.layers:
        parallelize_module(layer, mesh, block)
    if S.TIED:
        model.head.weight = model.embedding.weight


def keep_some(kept):
    """Selective recomputation: the attention core's output and every second GEMM are kept."""
    products = [0]

    def policy(context, operation, *_, **__):
        aten = torch.ops.aten
        if operation == aten.mm.default:
            products[0] += 1
            keep = products[0] % 2 == 0
        else:
            keep = operation in kept
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def recompute(layer):
    if S.RECOMPUTE == "full":
        return checkpoint_wrapper(layer)
    aten = torch.ops.aten
    kept = {aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_cudnn_attention.default,
            aten._scaled_dot_product_efficient_attention.default, aten._scaled_dot_product_flash_attention_for_cpu.default}
    return checkpoint_wrapper(layer, context_fn=functools.partial(keep_some, kept))


def build(device_type, compiled):
    """The model on the mesh of the plan, its parameters not yet anywhere."""
    mesh = init_device_mesh(device_type, (S.REPLICATE, S.SHARD, S.TP), mesh_dim_names=("replicate", "shard", "tp"))
    with torch.device("meta"):
        model = Llama()
    if S.TP > 1:
        split_tensors(model, mesh["tp"])
    for i in range(len(model.layers)):
        if S.RECOMPUTE != "none" and (S.RECOMPUTE_LAYERS < 0 or i < S.RECOMPUTE_LAYERS):
            model.layers[i] = recompute(model.layers[i])
        if compiled:
            model.layers[i].compile()
    param = getattr(torch, S.PARAM_DTYPE)
    options = {
        "mesh": mesh["replicate", "shard"],
        "mp_policy": MixedPrecisionPolicy(param_dtype=param, reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=device_type == "cuda") if S.CPU_OFFLOAD else OffloadPolicy(),
    }
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=S.RESHARD_AFTER_FORWARD, **options)
    fully_shard(model, reshard_after_forward=False, **options)
    return model, mesh


def clip(model, most=1.0):
    """Gradients of one mesh at a time: norms that TP does not split lie on another one."""
    meshes = {}
    for parameter in model.parameters():
        meshes.setdefault(parameter.grad.device_mesh, []).append(parameter)
    norms = [torch.nn.utils.get_total_norm([p.grad for p in group]).full_tensor() for group in meshes.values()]
    total = torch.stack([n.float() for n in norms]).norm()
    for group in meshes.values():
        torch.nn.utils.clip_grads_with_norm_(group, most, total)
    return total


def batches(replica, device):
    """Yours: micro-batches of this replica, tokens and the tokens that follow them."""
    generator = torch.Generator().manual_seed(replica)
    while True:
        tokens = torch.randint(S.VOCAB, (S.MICRO_BATCH, S.SEQ_LEN + 1), generator=generator).to(device)
        yield tokens[:, :-1], tokens[:, 1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--fake", action="store_true")
    args = parser.parse_args()
    if args.tiny:
        tiny()
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    if args.fake:
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=S.REPLICATE * S.SHARD * S.TP)
    else:
        dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
    device = torch.device(device_type, int(os.environ.get("LOCAL_RANK", 0))) if device_type == "cuda" else torch.device("cpu")
    if device_type == "cuda":
        torch.cuda.set_device(device)
    model, mesh = build(device_type, compiled=device_type == "cuda")
    model.to_empty(device="cpu" if S.CPU_OFFLOAD else device)
    torch.manual_seed(1)
    model.reset()
    cos, sin = rotary_table(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    replica = mesh["replicate"].get_local_rank() * S.SHARD + mesh["shard"].get_local_rank()
    data = batches(replica, device)
    for step in range(args.steps):
        start, losses = time.perf_counter(), []
        for _ in range(S.MICRO_BATCHES):
            with loss_parallel() if S.TP > 1 else contextlib.nullcontext():
                loss = model(*next(data), cos, sin) / S.MICRO_BATCHES
                loss.backward()
            losses.append(loss.detach().full_tensor() if hasattr(loss, "full_tensor") else loss.detach())
        norm = clip(model)
        optimizer.step()
        optimizer.zero_grad()
        loss = torch.stack(losses).sum().to(device)
        dist.all_reduce(loss, group=mesh["shard"].get_group())
        dist.all_reduce(loss, group=mesh["replicate"].get_group())
        loss = loss.item() / (S.REPLICATE * S.SHARD)
        if dist.get_rank() == 0:
            memory = f"{torch.cuda.max_memory_reserved() / 2**30:.1f} GiB" if device_type == "cuda" else "on CPU"
            print(f"step {step + 1} loss {loss:.4f} grad_norm {norm.item():.4f} {time.perf_counter() - start:.3f} s {memory}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
