"""Plans, simulates and validates LLaMA training layouts.

    import sextant
    answer = sextant.plan(model="llama-2-13b", cluster="8x8xa100-80gb", seq_len=4096, global_batch=1024)
    answer.recommended.key, answer.recommended.step_time_s
    answer.frame()      # recommended layout and alternatives, with pandas

Every option of the command (sextant VERB --help) is a keyword: --max-oom-chance 0.05 is max_oom_chance=0.05; `from_` is --from. What the program
refuses raises SextantError with its exit code and message. `ask` returns any verb's JSON answer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Union

from ._answers import Layout, Layouts, Plan, Simulation, Validation
from ._program import SextantError, ask, program
from ._tables import Chart

__all__ = [
    "Chart",
    "Layout",
    "Layouts",
    "Plan",
    "SextantError",
    "Simulation",
    "Validation",
    "ask",
    "plan",
    "program",
    "simulate",
    "validate",
]

PathLike = Union[str, "os.PathLike[str]"]


def plan(
    model: PathLike | None = None,
    cluster: PathLike | None = None,
    *,
    seq_len: int | None = None,
    global_batch: int | None = None,
    stack: PathLike | None = None,
    precision: str | None = None,
    fix: Mapping[str, Any] | str | None = None,
    limit: Sequence[str] | str | None = None,
    set: Mapping[str, Any] | Sequence[str] | str | None = None,
    output: PathLike | None = None,
    **options: Any,
) -> Plan:
    """The layout to run, with alternatives. output: where to write it as a plan file.

    Raises SextantError; with exit code 4 where nothing fits, whose `answer` says what would.
    """
    return Plan.of(
        ask(
            "plan",
            model=model,
            cluster=cluster,
            seq_len=seq_len,
            global_batch=global_batch,
            stack=stack,
            precision=precision,
            fix=fix,
            limit=limit,
            set=set,
            output=output,
            **options,
        )
    )


def simulate(
    plan: PathLike | Layout,
    model: PathLike | None = None,
    cluster: PathLike | None = None,
    *,
    seq_len: int | None = None,
    global_batch: int | None = None,
    stack: PathLike | None = None,
    set: Mapping[str, Any] | Sequence[str] | str | None = None,
    trace: PathLike | None = None,
    **options: Any,
) -> Simulation:
    """One layout in detail: a plan key, a plan file (which states model and cluster itself) or a Layout of plan().

    A layout that does not fit is answered all the same (prediction.fits); SextantError for one that the stack cannot run.
    """
    key = plan.key if isinstance(plan, Layout) else plan
    answer = ask(
        "simulate",
        accept=frozenset({4}),
        plan=key,
        model=model,
        cluster=cluster,
        seq_len=seq_len,
        global_batch=global_batch,
        stack=stack,
        set=set,
        trace=trace,
        **options,
    )
    return Simulation.of(answer)


def validate(*files: PathLike, held_out: bool = False, calibration: PathLike | None = None, **options: Any) -> Validation:
    """Predictions of the runs of CSV files (docs/json.md: sextant.validate), and their errors where runs were measured."""
    return Validation.of(ask("validate", *(os.fspath(f) for f in files), held_out=held_out, calibration=calibration, **options))
