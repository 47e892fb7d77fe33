#!/usr/bin/env python3
"""Writes docs/stacks.md from the presets of software stacks: which version of which framework can do what, and where its code says
so. With --check it writes nothing and fails where the page is stale.

    tools/dev/print_stacks.py [--check] [--presets tools/presets/stacks] [--page docs/stacks.md]
"""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

HEAD = """# What each software stack can do

Made from the presets by `tools/dev/print_stacks.py`; a test holds this page to them. A row is a framework at the version in its
second column: a stack offers what that version had and refuses what it asserts. The lists under the tables say where each ability was
read. What a list does not name has the source of its base: every "yes" that of a base which is the same code at another version or
with other settings, never that of another framework.

TP > KV heads: TP beyond the number of KV heads, which copies them. From PP: the fewest stages that interleave. ZeRO with PP: the
highest ZeRO stage beside pipeline stages. Part of the replicas: state is sharded over fewer ranks than there are replicas (hybrid sharding).
Always over CP: CP ranks share the state whatever is asked for, so that there is no ZeRO 0 beside CP.

Uneven stages: any cut of the layers; `per stage` any number for each stage, virtual stages share out the rest by a formula; `ends`
the first and the last stage alone may differ, those between are alike (or embedding and LM head count as a layer); the others are the
framework's own rules, which its user cannot change: DeepSpeed's `partition method` over Megatron's layers, Paddle's `seg method`,
nanotron's `block compute costs`. A layout that states no layers (no `L` in its key) takes what such a rule makes; one that states
others is refused, and `plan` proposes none. torchtitan takes any cut, and where it is told none counts embedding and LM head as a layer each
(`usual_end_layers`): a key without `L` means equal stages there too, and the answer reports which torchtitan would make; its logs and
files are read by its own rule.

Order of ranks: axes from the innermost out, which decides which ranks share a node; the first is the usual one. A layout in another
order (`ax-...` in its key) is refused, axes of one rank aside. Any: the launcher takes all 24.
"""

# Stacks that are the code of their base, at another version or with other settings: its sources are theirs.
SAME_CODE = {
    "colossal-gemini", "llm-foundry", "megatron-deepspeed-bloom-bf16", "megatron-deepspeed-zero3", "megatron-llama-2023-plain",
    "megatron-lm-2024", "modalities", "nemo-2024", "nemo-dgxc", "torchtitan-eager",
}
# This project's own runtime: its tests are its source.
OWN = {"sextant"}

# Head of a column, the ability, and how its value is printed where it is not yes or no.
TABLES = {
    "Parallelism": [
        ("TP", "tensor_parallel"),
        ("TP > KV heads", "copies_kv_heads"),
        ("SP", "sequence_parallel"),
        ("CP", "context_parallel"),
        ("PP", "pipeline_parallel"),
        ("interleaved", "interleaved"),
        ("from PP", "interleaved_from_pp"),
        ("micro-batches", "interleaved_microbatches"),
        ("GPipe", "gpipe"),
        ("zero-bubble", "zero_bubble"),
        ("uneven stages", "uneven_stages"),
        ("order of ranks", "axis_orders"),
    ],
    "State and memory": [
        ("ZeRO", "zero_stages"),
        ("ZeRO with PP", "max_zero_with_pp"),
        ("part of the replicas", "shard_degree"),
        ("always over CP", "context_parallel_shards"),
        ("selective recompute", "recompute_selective"),
        ("full", "recompute_full"),
        ("some layers", "recompute_layers"),
        ("optimizer on host", "optimizer_offload"),
        ("parameters on host", "parameter_offload"),
        ("activations on host", "activation_offload"),
    ],
    "Overlap and formats": [
        ("gradient reduction", "overlap_grad_reduce"),
        ("parameter gather", "overlap_param_gather"),
        ("TP collectives", "overlap_tp"),
        ("bucket size", "bucket_size"),
        ("fp8", "fp8"),
    ],
}
# What an ability is where neither the preset nor a base of it says so (core/plan/stack_spec.hpp).
UNSTATED = {"interleaved_from_pp": 2, "interleaved_microbatches": "any", "axis_orders": "any"}
NEEDS = {
    "interleaved_from_pp": "interleaved",
    "interleaved_microbatches": "interleaved",
    "interleaved": "pipeline_parallel",
    "gpipe": "pipeline_parallel",
    "uneven_stages": "pipeline_parallel",
    "max_zero_with_pp": "pipeline_parallel",
    "sequence_parallel": "tensor_parallel",
    "copies_kv_heads": "tensor_parallel",
    "overlap_tp": "tensor_parallel",
    "context_parallel_shards": "context_parallel",
    "recompute_layers": "recompute_full",
}


def value_of(stated: object) -> object:
    return stated["value"] if isinstance(stated, dict) else stated


def resolved(presets: dict[str, dict], name: str, part: str) -> dict[str, object]:
    """The abilities of a stack over those of its base, and so on."""
    own = presets[name]
    base = resolved(presets, own["base"], part) if "base" in own else {}
    return {**base, **{key: value_of(stated) for key, stated in own.get(part, {}).items()}}


def cell(can: dict[str, object], ability: str) -> str:
    needed = NEEDS.get(ability)
    while needed:
        if not can.get(needed, True):
            return "-"
        needed = NEEDS.get(needed)
    value = can.get(ability, UNSTATED.get(ability, False))
    if ability == "axis_orders" and not (can.get("tensor_parallel", True) or can.get("pipeline_parallel", True)):
        return "-"
    if ability == "max_zero_with_pp":
        value = min(value, max(can["zero_stages"])) or False
    if isinstance(value, bool):
        return "yes" if value else "-"
    if value == "none":
        return "-"
    if isinstance(value, list):
        if value and isinstance(value[0], list):
            return ", ".join("-".join(v) for v in value)
        return " ".join(str(v) for v in value)
    return str(value).replace("_", " ")


def unsourced(presets: dict[str, dict]) -> dict[str, dict[str, object]]:
    """By stack, abilities with their values that it offers or states, though neither it nor a base of the same code says where they
    were read."""
    out: dict[str, dict[str, object]] = {}
    for name in presets.keys() - OWN:
        can = resolved(presets, name, "can")
        for _, ability in (column for columns in TABLES.values() for column in columns):
            if cell(can, ability) == "-" or (ability not in can and ability in UNSTATED):
                continue
            at = name
            while ability not in presets[at].get("can", {}) and at in SAME_CODE:
                at = presets[at]["base"]
            stated = presets[at].get("can", {}).get(ability)
            if not (isinstance(stated, dict) and stated.get("source")):
                out.setdefault(name, {})[ability] = can.get(ability)
        # What a preset itself states has a source whatever it is: limits of an ability stand in no table, and bind all the same.
        for ability, stated in presets[name].get("can", {}).items():
            if not (isinstance(stated, dict) and stated.get("source")):
                out.setdefault(name, {})[ability] = value_of(stated)
    return dict(sorted(out.items()))


def without_source(path: pathlib.Path, abilities: dict[str, object]) -> str:
    """What to write where, of the abilities of one stack."""
    lines = [f"{path}: under `can` these have no source of their own; state what was read in its code (value, place, month):"]
    for ability, value in sorted(abilities.items()):
        origin = {"value": value, "origin": "D", "source": "REPOSITORY COMMIT, FILE LINE", "date": "YYYY-MM"}
        lines.append(f'    "{ability}": {json.dumps(origin)},')
    lines.append("or, where the stack is its base's code at another version, name it in SAME_CODE of tools/dev/print_stacks.py")
    return "\n".join(lines)


def unnamed(presets: dict[str, dict]) -> list[str]:
    """What a preset says of itself, which it has from no base."""
    return [f"{name}: {key} is missing" for name, preset in presets.items() for key in ("title", "version", "source")
            if key not in preset]


def page(presets: dict[str, dict]) -> str:
    out = [HEAD]
    for title, columns in TABLES.items():
        out.append(f"## {title}\n")
        out.append("| stack | version | " + " | ".join(head for head, _ in columns) + " |")
        out.append("|---" * (len(columns) + 2) + "|")
        for name, preset in presets.items():
            can = resolved(presets, name, "can")
            out.append(f"| {name} | {preset['version']} | " + " | ".join(cell(can, a) for _, a in columns) + " |")
        out.append("")
    out.append("## Sources\n")
    for name, preset in presets.items():
        base = f", builds on `{preset['base']}`" if "base" in preset else ""
        out.append(f"### {name}\n")
        out.append(f"{preset['title']}, {preset['version']}{base}. {preset['source'].rstrip('.')}.")
        if "about" in preset:
            out.append(f"\n{preset['about'].rstrip('.')}.")
        lines = []
        for key, stated in preset.get("can", {}).items():
            if isinstance(stated, dict):
                lines.append(f"- `{key}` {json.dumps(stated['value'])}: {stated['source']}")
        if lines:
            out.append("")
            out += lines
        out.append("")
    return "\n".join(out).rstrip("\n") + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--presets", type=pathlib.Path, default=ROOT / "tools/presets/stacks")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/stacks.md")
    options = parser.parse_args()
    presets = {path.stem: json.loads(path.read_text()) for path in sorted(options.presets.glob("*.json"))}
    for name, abilities in (missing := unsourced(presets)).items():
        print(without_source(options.presets / f"{name}.json", abilities), file=sys.stderr)
    for missed in (nameless := unnamed(presets)):
        print(missed, file=sys.stderr)
    if missing or nameless:
        return 1
    text = page(presets)
    if not options.check:
        options.page.write_text(text)
        return 0
    if not options.page.exists() or options.page.read_text() != text:
        print(f"{options.page} is stale: run tools/dev/print_stacks.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
