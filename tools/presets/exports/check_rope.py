"""What check.py compares of rotary positions: how far the frequencies that the model turns by lie below those of its theta."""
import math


def plain(model):
    """Angles a position, without scaling: theta^(-2i / head_dim) of each pair i."""
    return [model["rope_theta"] ** (-2 * i / model["head_dim"]) for i in range(model["head_dim"] // 2)]


def wanted(model):
    """The same as plan.json's model scales them (llama3: long waves by `factor`, short ones not, those between by both)."""
    scaling = model.get("rope_scaling")
    if not scaling:
        return plain(model)
    low, high, turns = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["original_max_positions"] / (2 * math.pi)
    kept = [min(1, max(0, (turns * f - low) / (high - low))) for f in plain(model)]
    return [f * (k + (1 - k) / scaling["factor"]) for f, k in zip(plain(model), kept)]


def words(frequencies, model):
    slower = [a / b for a, b in zip(plain(model), frequencies)]
    return f"{max(slower):.4g} times slower at most, {sum(slower) / len(slower):.4g} on average"


def read_and_wanted(frequencies, model):
    """What to print of `frequencies` (one of each pair) and of plan.json's; the same where each agrees to 1e-4."""
    other = wanted(model)
    same = len(frequencies) == len(other) and all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(frequencies, other))
    return words(other if same else frequencies, model), words(other, model)
