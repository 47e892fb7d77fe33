#!/usr/bin/env python3
"""Write tests/golden/operators/: every kernel forward and backward at awkward shapes, in float64.

An independent reference: plain formulas and PyTorch autograd, no code shared with the C++ side. Inputs are rounded to
float32 first (and stored so), so that fp32 kernels see exactly the same numbers; results stay float64.
Run:  /usr/bin/python3 tests/reference/make_fixtures.py   (Debian: python3-torch, python3-numpy)
Check only:  make_fixtures.py --check   exits 1 when a file differs from what would be written.
"""
import json
import math
import pathlib
import struct
import sys
import zlib

import numpy as np
import torch

SEED = 20240611
OUT = pathlib.Path(__file__).resolve().parent.parent / "golden" / "operators"
torch.set_num_threads(1)


def given(*shape, scale=1.0):
    """A random input whose values float32 holds exactly."""
    values = torch.randn(*shape, dtype=torch.float64) * scale
    return values.to(torch.float32).to(torch.float64).requires_grad_()


class Fixture:
    """Named tensors of several cases, and the parameters of each case."""

    def __init__(self):
        self.tensors, self.cases = {}, {}

    def case(self, name, parameters, inputs, results):
        self.cases[name] = parameters
        for key, value in inputs.items():
            array = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
            integer = np.issubdtype(array.dtype, np.integer)
            self.tensors[f"{name}.{key}"] = array.astype(np.int64 if integer else np.float32)
        for key, value in results.items():
            self.tensors[f"{name}.{key}"] = value.detach().to(torch.float64).numpy()

    def serialize(self):
        kinds = {"float64": "F64", "float32": "F32", "int64": "I64"}
        header, data = {"__metadata__": {"cases": json.dumps(self.cases, sort_keys=True)}}, b""
        for name, array in self.tensors.items():
            raw = np.ascontiguousarray(array).tobytes()
            header[name] = {"dtype": kinds[str(array.dtype)], "shape": list(array.shape),
                            "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + data


def gradients(output, upstream, inputs):
    return torch.autograd.grad((output * upstream).sum(), inputs)


def rmsnorm():
    f = Fixture()
    for rows, width, eps in [(1, 95, 1e-5), (7, 95, 1e-6), (64, 48, 1e-5), (129, 33, 1e-5), (3, 257, 1e-2)]:
        x, w, dy = given(rows, width), given(width), given(rows, width)
        y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * w
        dx, dw = gradients(y, dy, (x, w))
        f.case(f"r{rows}w{width}", {"eps": eps}, {"x": x, "weight": w, "dy": dy}, {"y": y, "dx": dx, "dweight": dw})
    return f


def rope_angles(d, theta, scaling):
    frequency = theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    if scaling is None:
        return frequency
    factor, low, high, original = scaling
    result = []
    for value in frequency.tolist():  # Llama 3.1, as published
        wavelength = 2 * math.pi / value
        if wavelength < original / high:
            result.append(value)
        elif wavelength > original / low:
            result.append(value / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            result.append((1 - smooth) * value / factor + smooth * value)
    return torch.tensor(result, dtype=torch.float64)


def rope():
    f = Fixture()
    positions = [0, 1, 2, 63, 64, 1000, 4095, 8191]
    for d, heads, theta, scaling in [(16, 3, 1e4, None), (64, 2, 1e4, None), (128, 1, 5e5, (8.0, 1.0, 4.0, 8192)),
                                     (64, 2, 5e5, (32.0, 1.0, 4.0, 64))]:
        x, dy = given(len(positions), heads * d), given(len(positions), heads * d)
        angle = torch.tensor(positions, dtype=torch.float64)[:, None] * rope_angles(d, theta, scaling)
        cos, sin = torch.cat([angle.cos()] * 2, -1)[:, None], torch.cat([angle.sin()] * 2, -1)[:, None]
        h = x.view(-1, heads, d)
        rotated = torch.cat([-h[..., d // 2:], h[..., :d // 2]], -1)
        y = (h * cos + rotated * sin).reshape(len(positions), heads * d)
        (dx,) = gradients(y, dy, (x,))
        f.case(f"d{d}h{heads}" + ("scaled" if scaling else ""), {"head_dim": d, "heads": heads, "theta": theta,
               "scaling": scaling}, {"x": x, "dy": dy, "positions": np.array(positions)}, {"y": y, "dx": dx})
    return f


def attention():
    f = Fixture()
    shapes = [(1, 1, 16, 4, 1), (2, 7, 64, 2, 2), (1, 7, 128, 2, 1), (2, 64, 16, 8, 1), (1, 65, 8, 3, 3),
              (1, 129, 16, 4, 1), (1, 129, 64, 1, 1), (1, 33, 128, 1, 1), (2, 20, 24, 8, 2)]
    for batch, seq, d, heads, kv_heads in shapes:
        q, k, v = given(batch, seq, heads, d), given(batch, seq, kv_heads, d), given(batch, seq, kv_heads, d)
        dout = given(batch, seq, heads, d)
        share = heads // kv_heads
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(share, 2)) / math.sqrt(d)
        hidden = torch.ones(seq, seq, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
        out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.repeat_interleave(share, 2))
        dq, dk, dv = gradients(out, dout, (q, k, v))
        f.case(f"b{batch}s{seq}d{d}a{heads}kv{kv_heads}",
               {"batch": batch, "seq": seq, "head_dim": d, "heads": heads, "kv_heads": kv_heads},
               {"q": q, "k": k, "v": v, "dout": dout},
               {"out": out, "lse": scores.logsumexp(-1).permute(0, 2, 1), "dq": dq, "dk": dk, "dv": dv})
    return f


def swiglu():
    f = Fixture()
    for rows, width in [(1, 1), (7, 95), (64, 33)]:
        gate, up, dout = given(rows, width, scale=4), given(rows, width), given(rows, width)
        out = gate * torch.sigmoid(gate) * up
        dgate, dup = gradients(out, dout, (gate, up))
        f.case(f"r{rows}w{width}", {}, {"gate": gate, "up": up, "dout": dout}, {"out": out, "dgate": dgate, "dup": dup})
    extreme = torch.tensor([[-1e4, -100.0, -88.0, -20.0, 0.0, 20.0, 88.0, 100.0, 1e4]], dtype=torch.float64)
    gate, up, dout = extreme.requires_grad_(), given(1, 9), given(1, 9)
    out = gate * torch.sigmoid(gate) * up
    dgate, dup = gradients(out, dout, (gate, up))
    f.case("extreme", {}, {"gate": gate, "up": up, "dout": dout}, {"out": out, "dgate": dgate, "dup": dup})
    return f


def linear():
    f = Fixture()
    for tokens, n_in, n_out in [(1, 1, 1), (7, 95, 48), (64, 33, 129), (129, 64, 7)]:
        x, w, dy, before = given(tokens, n_in), given(n_out, n_in), given(tokens, n_out), given(n_out, n_in)
        y = x @ w.t()
        dx, dw = gradients(y, dy, (x, w))
        f.case(f"t{tokens}i{n_in}o{n_out}", {}, {"x": x, "weight": w, "dy": dy, "before": before},
               {"y": y, "dx": dx, "dweight": before + dw})
    return f


def embedding():
    f = Fixture()
    for vocab, width, tokens in [(11, 7, 1), (37, 95, 64), (5, 3, 129)]:
        table, dout = given(vocab, width), given(tokens, width)
        ids = torch.randint(0, vocab, (tokens,))
        out = table[ids]
        (dtable,) = gradients(out, dout, (table,))
        f.case(f"v{vocab}w{width}t{tokens}", {}, {"table": table, "ids": ids.numpy(), "dout": dout},
               {"out": out, "dtable": dtable})
    return f


def cross_entropy():
    f = Fixture()
    for tokens, vocab, padded, scale in [(1, 2, 2, 1.0), (7, 211, 256, 3.0), (64, 33, 40, 1.0), (5, 100, 128, 1e4)]:
        logits = given(tokens, padded, scale=scale)
        targets = torch.randint(0, vocab, (tokens,))
        targets[::3] = -100 if tokens > 1 else targets[0]
        keep = targets != -100
        lse = logits[:, :vocab].logsumexp(-1)
        loss = (lse[keep] - logits[keep, targets[keep]]).sum()
        factor = 1.0 / 17
        (dlogits,) = torch.autograd.grad(loss * factor, (logits,))
        f.case(f"t{tokens}v{vocab}p{padded}", {"vocab": vocab, "scale": factor},
               {"logits": logits, "targets": targets.numpy()}, {"loss": loss.reshape(1), "dlogits": dlogits})
    return f


def adamw():
    f = Fixture()
    for name, decay in [("decay", 0.1), ("plain", 0.0)]:
        n, steps, rate = 67, 20, 1e-2
        p = given(n).detach()
        start, m, v = p.clone(), torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
        gradient = given(steps, n).detach()
        for t in range(steps):
            g = gradient[t]
            m = 0.9 * m + 0.1 * g
            v = 0.95 * v + 0.05 * g * g
            p = p - rate * decay * p
            p = p - rate * (m / (1 - 0.9 ** (t + 1))) / ((v / (1 - 0.95 ** (t + 1))).sqrt() + 1e-8)
        f.case(name, {"rate": rate, "decay": decay}, {"start": start, "gradients": gradient},
               {"parameter": p, "moment1": m, "moment2": v})
    return f


def main():
    check = "--check" in sys.argv[1:]
    OUT.mkdir(parents=True, exist_ok=True)
    manifest = {"seed": SEED, "made_by": "tests/reference/make_fixtures.py",
                "torch": torch.__version__, "numpy": np.__version__, "files": {}}
    different = []
    for make in (rmsnorm, rope, attention, swiglu, linear, embedding, cross_entropy, adamw):
        torch.manual_seed(SEED)  # each file alone: changing one operator leaves the others' files alone
        raw = make().serialize()
        path = OUT / f"{make.__name__}.safetensors"
        manifest["files"][path.name] = {"bytes": len(raw), "crc32": zlib.crc32(raw)}
        if check and (not path.exists() or path.read_bytes() != raw):
            different.append(path.name)
        if not check:
            path.write_bytes(raw)
    if not check:
        (OUT / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    print(*different, sep="\n", end="")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
