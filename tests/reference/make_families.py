#!/usr/bin/env python3
"""Write tests/golden/families/: a tiny random model of each Hugging Face family, and what is computed with it.

Run: python3 tests/reference/make_families.py [NAME...]     (torch and transformers; written with torch 2.15, transformers 5.24)

Models are transformers' own classes, on the CPU, saved by save_pretrained. InternLM2 and Baichuan are no part of transformers
(their code lies beside their checkpoints and is not run here): `Decoder` below is a reference of our own, written after that
code, which saves tensors under their names and in their order.

A folder holds the checkpoint and expected.safetensors, everything under LLaMA's names, packed tensors taken apart:
  ids, targets [B, S] int64    one batch; targets are the ids one further, or -100
  logits [B, S, V], loss [1]   mean over targets
  grad.NAME                    gradient of every parameter
  tokens [20, B, S + 1]        a training of twenty steps as in shared/reference: AdamW 0.9, 0.95, 1e-8, decay 0.1 on matrices,
  losses, norms, final.NAME    clipping to 1, rate 5e-3 with 4 steps of warm-up and a cosine to a tenth
No case has a pad_token_id, whose row of the embedding torch gives no gradient (ours is a token as others).
Sums are float64, but for norms and rotary angles, which transformers takes in float32 whatever the model's format.
"""
import json
import math
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

OUT = pathlib.Path(__file__).resolve().parent.parent / "golden" / "families"
SHAPE = dict(vocab_size=37, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False)
BATCH, LENGTH, STEPS, WARMUP, RATE = 4, 16, 20, 4, 5e-3
torch.set_num_threads(1)


# ---- A decoder of our own, for families that are no part of transformers.

def rotate(x, positions, theta=10000.0):
    half = x.shape[-1] // 2
    angle = positions[:, None].double() * theta ** (-torch.arange(half).double() / half)
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def alibi_slopes(heads):
    """Press et al. 2022, with their rule for a number of heads that is no power of two."""
    def of_power(n):
        return [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]
    closest = 2 ** math.floor(math.log2(heads))
    rest = of_power(2 * closest)[0::2][:heads - closest]
    return torch.tensor((of_power(closest) + rest), dtype=torch.float64)


class Decoder(nn.Module):
    """Pre-norm, SwiGLU, causal. `names`: what its tensors are called; `split`: qkv as its product gives them, to heads."""

    def __init__(self, c, names, split, alibi=False, normalized_head=False):
        super().__init__()
        self.c, self.names, self.split, self.alibi, self.normalized_head = c, names, split, alibi, normalized_head
        h, f, v, kv = c["hidden_size"], c["intermediate_size"], c["vocab_size"], c["num_key_value_heads"]
        self.d = h // c["num_attention_heads"]
        rows = {"qkv": (h + 2 * kv * self.d, h), "o": (h, h), "gate": (f, h), "up": (f, h), "down": (h, f),
                "norm1": (h,), "norm2": (h,)}
        shapes = {names["embedding"]: (v, h), names["norm"]: (h,), names["head"]: (v, h)}
        for layer in range(c["num_hidden_layers"]):
            shapes.update({names["layer"].format(layer, names[key]): shape for key, shape in rows.items()})
        self.weights = {name: nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for name, shape in shapes.items()}

    def named_parameters(self, *_, **__):
        return iter(self.weights.items())

    def w(self, key, layer=None):
        return self.weights[self.names[key] if layer is None else self.names["layer"].format(layer, self.names[key])]

    def rms(self, x, weight):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.c["rms_norm_eps"]) * weight

    def forward(self, ids):
        c, length = self.c, ids.shape[1]
        heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
        positions = torch.arange(length)
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.w("embedding")[ids]
        for layer in range(c["num_hidden_layers"]):
            q, k, v = self.split(self.rms(x, self.w("norm1", layer)) @ self.w("qkv", layer).t(), heads, kv, self.d)
            if not self.alibi:
                q, k = rotate(q, positions), rotate(k, positions)
            k, v = k.repeat_interleave(heads // kv, 1), v.repeat_interleave(heads // kv, 1)
            scores = q @ k.transpose(-1, -2) / math.sqrt(self.d)
            if self.alibi:
                distance = (positions[None, :] - positions[:, None]).double()
                scores = scores + alibi_slopes(heads)[:, None, None] * distance
            core = scores.masked_fill(mask, -math.inf).softmax(-1) @ v
            x = x + core.transpose(1, 2).flatten(2) @ self.w("o", layer).t()
            y = self.rms(x, self.w("norm2", layer))
            inner = F.silu(y @ self.w("gate", layer).t()) * (y @ self.w("up", layer).t())
            x = x + inner @ self.w("down", layer).t()
        head = F.normalize(self.w("head")) if self.normalized_head else self.w("head")
        return self.rms(x, self.w("norm")) @ head.t()


def split_by_key_head(qkv, heads, kv, d):
    """InternLM2: for each key head its queries, the key, the value."""
    grouped = qkv.unflatten(-1, (kv, heads // kv + 2, d))
    return [part.transpose(1, 2) for part in (grouped[..., :-2, :].flatten(2, 3), grouped[..., -2, :], grouped[..., -1, :])]


def split_stacked(qkv, heads, kv, d):
    """Baichuan: all queries, all keys, all values."""
    parts = qkv.split([heads * d, kv * d, kv * d], -1)
    return [part.unflatten(-1, (-1, d)).transpose(1, 2) for part in parts]


INTERNLM2 = {"embedding": "model.tok_embeddings.weight", "norm": "model.norm.weight", "head": "output.weight",
             "layer": "model.layers.{}.{}.weight", "qkv": "attention.wqkv", "o": "attention.wo", "gate": "feed_forward.w1",
             "up": "feed_forward.w3", "down": "feed_forward.w2", "norm1": "attention_norm", "norm2": "ffn_norm"}
BAICHUAN = {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight",
            "layer": "model.layers.{}.{}.weight", "qkv": "self_attn.W_pack", "o": "self_attn.o_proj",
            "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj", "norm1": "input_layernorm",
            "norm2": "post_attention_layernorm"}


# ---- Under LLaMA's names.

def taken_apart(name, t, c):
    """(our name, tensor) of a stored tensor, or of its gradient."""
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    d = c.get("head_dim") or c["hidden_size"] // heads
    if "qkv_proj" in name or "W_pack" in name:
        packed = "qkv_proj" if "qkv_proj" in name else "W_pack"
        return [(name.replace(packed, part), piece)
                for part, piece in zip(("q_proj", "k_proj", "v_proj"), t.split([heads * d, kv * d, kv * d]))]
    if "gate_up_proj" in name:
        return list(zip((name.replace("gate_up_proj", part) for part in ("gate_proj", "up_proj")), t.chunk(2)))
    if "attention.wqkv" in name:
        grouped = t.unflatten(0, (kv, heads // kv + 2, d))
        pieces = (grouped[:, :-2], grouped[:, -2], grouped[:, -1])
        return [(name.replace("attention.wqkv", f"self_attn.{part}_proj"), piece.reshape(-1, t.shape[-1]))
                for part, piece in zip("qkv", pieces)]
    if c["model_type"] == "olmo2":
        name = name.replace("post_attention_layernorm", "input_layernorm")
        return [(name.replace("post_feedforward_layernorm", "post_attention_layernorm"), t)]
    if c["model_type"] == "internlm2":
        for theirs, ours in (("tok_embeddings", "embed_tokens"), ("output.weight", "lm_head.weight"),
                             ("attention.wo", "self_attn.o_proj"), ("feed_forward.w1", "mlp.gate_proj"),
                             ("feed_forward.w3", "mlp.up_proj"), ("feed_forward.w2", "mlp.down_proj"),
                             ("attention_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")):
            name = name.replace(theirs, ours)
    return [(name, t)]


def stored(prefix, tensors, c):
    return {f"{prefix}.{ours}": piece.detach().float().contiguous()
            for name, t in tensors.items() for ours, piece in taken_apart(name, t, c)}


# ---- What is computed.

def loss_of(model, ids, targets):
    logits = model(ids)
    logits = getattr(logits, "logits", logits)
    flat = targets.flatten()
    return F.cross_entropy(logits.flatten(0, 1).double(), flat, ignore_index=-100), logits


def gradients(model, ids, targets):
    parameters = dict(model.named_parameters())
    loss, logits = loss_of(model, ids, targets)
    return loss, logits, dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values()))))


def rate_of(step):
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    return RATE * (0.1 + 0.9 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2)


def train(model, tokens):
    parameters = dict(model.named_parameters())
    first = {n: torch.zeros_like(p) for n, p in parameters.items()}
    second = {n: torch.zeros_like(p) for n, p in parameters.items()}
    losses, norms = [], []
    for step in range(STEPS):
        loss, _, g = gradients(model, tokens[step, :, :-1], tokens[step, :, 1:])
        norm = math.sqrt(sum(float((x * x).sum()) for x in g.values()))
        factor = 1 / (norm + 1e-6) if norm > 1 else 1.0
        losses.append(loss.item()), norms.append(norm)
        with torch.no_grad():
            for name, p in parameters.items():
                x = g[name] * factor
                first[name].mul_(0.9).add_(x, alpha=0.1)
                second[name].mul_(0.95).addcmul_(x, x, value=0.05)
                if p.ndim > 1:
                    p.mul_(1 - rate_of(step) * 0.1)
                step_size = first[name] / (1 - 0.9 ** (step + 1))
                p.sub_(rate_of(step) * step_size / ((second[name] / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8))
    return losses, norms


def of_transformers(config):
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model.double().eval(), None


def long_phi3(original):
    return transformers.Phi3Config(
        **SHAPE, num_key_value_heads=2, pad_token_id=None, sliding_window=None, original_max_position_embeddings=original,
        rope_parameters={"rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.0, 1.25, 1.5],
                         "long_factor": [1.1, 2.3, 5.7]})


CASES = {
    "qwen2": lambda: of_transformers(transformers.Qwen2Config(**SHAPE, num_key_value_heads=2)),
    "qwen2-tied": lambda: of_transformers(
        transformers.Qwen2Config(**{**SHAPE, "tie_word_embeddings": True}, num_key_value_heads=4)),
    "llama-biases": lambda: of_transformers(
        transformers.LlamaConfig(**SHAPE, num_key_value_heads=2, attention_bias=True, mlp_bias=True)),
    "seed-oss": lambda: of_transformers(
        transformers.SeedOssConfig(**SHAPE, num_key_value_heads=2, head_dim=8, pad_token_id=None)),
    # Rotary scalings that act within the sixteen tokens; of llama3's pairs one is left alone, one is stretched in part, one in full.
    "llama-linear": lambda: of_transformers(transformers.LlamaConfig(**SHAPE, num_key_value_heads=2, rope_parameters={
        "rope_type": "linear", "rope_theta": 100.0, "factor": 4.0})),
    "llama-llama3": lambda: of_transformers(transformers.LlamaConfig(**SHAPE, num_key_value_heads=2, rope_parameters={
        "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32})),
    "llama-yarn": lambda: of_transformers(transformers.LlamaConfig(**SHAPE, num_key_value_heads=2, rope_parameters={
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16,
        "beta_fast": 4.0, "beta_slow": 0.5})),
    "llama-dynamic": lambda: of_transformers(transformers.LlamaConfig(
        **{**SHAPE, "max_position_embeddings": 8}, num_key_value_heads=2,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0})),
    # Longer and shorter than the first training; the second states its magnitude and its factor.
    "phi3-longrope": lambda: of_transformers(long_phi3(8)),
    "phi3-longrope-short": lambda: of_transformers(long_phi3(16)),
    "llama-longrope": lambda: of_transformers(transformers.LlamaConfig(**SHAPE, num_key_value_heads=2, rope_parameters={
        "rope_type": "longrope", "rope_theta": 100.0, "factor": 3.0, "original_max_position_embeddings": 15,
        "attention_factor": 1.3, "short_factor": [1.0, 1.25, 1.5], "long_factor": [1.1, 2.3, 5.7]})),
    # transformers has no class of its own for it, but LLaMA's.
    "internlm3": lambda: of_transformers(transformers.InternLM3Config(
        **{**SHAPE, "max_position_embeddings": 8}, num_key_value_heads=2, head_dim=8, pad_token_id=None,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 6.0})),
    "qwen3": lambda: of_transformers(transformers.Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=8)),
    "olmo2": lambda: of_transformers(transformers.Olmo2Config(**SHAPE, num_key_value_heads=2, pad_token_id=None)),
    "phi3": lambda: of_transformers(
        transformers.Phi3Config(**SHAPE, num_key_value_heads=2, pad_token_id=None, sliding_window=None)),
    "mistral-window": lambda: of_transformers(
        transformers.MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=5)),
    "internlm2": lambda: own_model(INTERNLM2, split_by_key_head, model_type="internlm2", num_key_value_heads=2,
                                   architectures=["InternLM2ForCausalLM"], bias=False),
    "baichuan2-7b": lambda: own_model(BAICHUAN, split_stacked, normalized_head=True, model_type="baichuan",
                                      num_key_value_heads=4, architectures=["BaichuanForCausalLM"], z_loss_weight=0),
    # Their code adds ALiBi from hidden size 5120 on; the tests read this one, of six heads, as if it did.
    "baichuan2-alibi": lambda: own_model(BAICHUAN, split_stacked, alibi=True, normalized_head=True, model_type="baichuan",
                                         num_attention_heads=6, num_key_value_heads=6,
                                         architectures=["BaichuanForCausalLM"], z_loss_weight=0),
    "baichuan-7b": lambda: own_model(BAICHUAN, split_stacked, model_type="baichuan", num_key_value_heads=4,
                                     architectures=["BaiChuanForCausalLM"]),
}


def own_model(names, split, alibi=False, normalized_head=False, **config):
    c = {**SHAPE, "hidden_act": "silu", **config}
    return Decoder(c, names, split, alibi, normalized_head), c


def save(model, own_config, folder):
    """As from_pretrained reads it; returns the configuration."""
    if own_config is None:
        model.float().save_pretrained(folder)
        model.double()
        return json.loads((folder / "config.json").read_text())
    tensors = {name: t.detach().float().contiguous() for name, t in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    written = {k: v for k, v in own_config.items()}
    if written["model_type"] == "baichuan":
        written["model_max_length"] = written.pop("max_position_embeddings")
        del written["num_key_value_heads"]
    (folder / "config.json").write_text(json.dumps({**written, "torch_dtype": "float32"}, indent=2) + "\n")
    return own_config


def main():
    for name in sys.argv[1:] or CASES:
        torch.manual_seed(20261126)
        model, own_config = CASES[name]()
        with torch.no_grad():
            for p_name, p in model.named_parameters():
                norm = "norm" in p_name and p.ndim == 1
                values = torch.randn(p.shape, dtype=torch.float64)
                p.copy_((1 + 0.1 * values if norm else 0.25 * values).float().double())
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        c = save(model, own_config, folder)
        c = {**c, "num_key_value_heads": c.get("num_key_value_heads", c["num_attention_heads"])}
        text = torch.randint(0, SHAPE["vocab_size"], (BATCH, LENGTH + 1))
        ids, targets = text[:, :-1].clone(), text[:, 1:].clone()
        targets[:, ::5] = -100
        loss, logits, g = gradients(model, ids, targets)
        tokens = torch.randint(0, SHAPE["vocab_size"], (STEPS, BATCH, LENGTH + 1))
        expected = {"ids": ids, "targets": targets, "logits": logits.detach().float(), "loss": loss.detach().reshape(1),
                    "tokens": tokens, **stored("grad", g, c)}
        losses, norms = train(model, tokens)
        expected.update(losses=torch.tensor(losses, dtype=torch.float64), norms=torch.tensor(norms, dtype=torch.float64),
                        **stored("final", dict(model.named_parameters()), c))
        save_file({k: v.contiguous() for k, v in expected.items()}, folder / "expected.safetensors")
        for file in folder.iterdir():
            file.chmod(0o644)
            if file.name == "generation_config.json":
                file.unlink()
        print(f"{name}: loss {float(loss):.4f}, {sum(p.numel() for _, p in model.named_parameters())} parameters")


if __name__ == "__main__":
    main()
