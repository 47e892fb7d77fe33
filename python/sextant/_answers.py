"""Answers as dataclasses: what is asked for most by name, everything else in `raw`, as docs/json.md describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from ._tables import Chart, chart_of_times, frame_of, html_table

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")


def _take(cls: type[T], values: Mapping[str, Any], **more: Any) -> T:
    """The dataclass of those of the values that it has fields for; what is absent keeps its default."""
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    return cls(**{**{k: v for k, v in values.items() if k in known}, **more})


@dataclass(frozen=True)
class Layout:
    """A layout and its prediction. Times in seconds, memory in GiB of the fullest GPU; lower and upper hold nine of ten cases."""

    key: str
    step_time_s: float
    step_time_s_lower: float
    step_time_s_upper: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    peak_memory_GiB: float
    peak_memory_GiB_lower: float
    peak_memory_GiB_upper: float
    available_memory_GiB: float
    chance_of_overflow: float
    fits: bool
    uncertainty: str = ""
    slower_share: float = 0.0
    usd_per_million_tokens: float = 0.0
    layout: str = ""
    kind: str = ""
    why: str = ""
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, values: Mapping[str, Any], **more: Any) -> Layout:
        return _take(cls, values, **more, raw=dict(values))

    @property
    def plan(self) -> dict[str, Any]:
        """The fields of the layout: tp, pp, micro_batch, ..."""
        return dict(self.raw["plan"])

    def row(self) -> dict[str, Any]:
        """As a row of a table, with the degrees that are asked for most."""
        plan = self.raw["plan"]
        degrees = {name: plan[name] for name in ("tp", "cp", "pp", "vp", "dp", "zero_stage", "micro_batch", "recompute")}
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {"kind": self.kind, "layout": self.layout, "key": self.key, **degrees, **numbers}

    def _repr_html_(self) -> str:
        return html_table([_shown(self)], self.layout or self.key)


_NUMBERS = (
    "step_time_s",
    "step_time_s_lower",
    "step_time_s_upper",
    "tokens_per_s_per_gpu",
    "mfu",
    "peak_memory_GiB",
    "chance_of_overflow",
)


def _shown(layout: Layout) -> dict[str, Any]:
    return {
        "": layout.kind,
        "layout": layout.layout or layout.key,
        "step s": f"{layout.step_time_s:.3f}",
        "from": f"{layout.step_time_s_lower:.3f}",
        "to": f"{layout.step_time_s_upper:.3f}",
        "tokens/s/GPU": f"{layout.tokens_per_s_per_gpu:.0f}",
        "MFU": f"{layout.mfu:.1%}",
        "GiB": f"{layout.peak_memory_GiB:.1f} of {layout.available_memory_GiB:.1f}",
        "OOM": f"{layout.chance_of_overflow:.0%}",
    }


class Layouts(Sequence[Layout]):
    """Layouts with their predictions, in the program's order: a sequence, a frame, a table of a notebook, a chart."""

    def __init__(self, layouts: Sequence[Layout], title: str) -> None:
        self._layouts = list(layouts)
        self._title = title

    def __len__(self) -> int:
        return len(self._layouts)

    def __getitem__(self, at: Any) -> Any:
        return self._layouts[at]

    def __repr__(self) -> str:
        return f"{self._title}: " + ", ".join(f"{x.key} {x.step_time_s:.3f} s" for x in self._layouts)

    def frame(self) -> pandas.DataFrame:
        """A row for each layout; needs pandas."""
        return frame_of([x.row() for x in self._layouts])

    def chart(self, axes: Any = None) -> Chart:
        """Step times with their intervals, on new axes or these of matplotlib; needs matplotlib."""
        return chart_of_times(
            [(x.layout or x.key, x.step_time_s, x.step_time_s_lower, x.step_time_s_upper) for x in self._layouts], self._title, axes
        )

    def _repr_html_(self) -> str:
        return html_table([_shown(x) for x in self._layouts], self._title)


@dataclass(frozen=True)
class Plan:
    """The answer to plan(). Without a feasible layout plan() raises SextantError with exit code 4, and this stands in its `answer` as JSON."""

    model: str
    parameters: int
    cluster: str
    gpus: int
    stack: str
    seq_len: int
    global_batch: int
    objective: str
    recommended: Layout | None  # with pareto the fastest of these; None where the question has no such answer: scale
    alternatives: Layouts
    ranked: Layouts  # the fastest on paper, best first
    pareto: Layouts  # with pareto=True
    exact: bool  # no other layout of the space is faster than the first of ranked, proved
    search_time_s: float
    notes: list[str] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Plan:
        title = f"{answer['model']} on {answer['cluster']}"
        layouts = {
            name: Layouts([Layout.of(x) for x in answer.get(name, [])], f"{title}, {name}") for name in ("alternatives", "ranked", "pareto")
        }
        first: Layout | None = None
        if "recommended" in answer:
            first = Layout.of({"kind": "recommended", **answer["recommended"]})
        elif layouts["pareto"]:
            first = layouts["pareto"][0]
        defaults = {"exact": False, "search_time_s": 0.0}
        return _take(cls, {**defaults, **answer}, recommended=first, **layouts, raw=dict(answer))

    @property
    def layouts(self) -> Layouts:
        """The recommended one, then the alternatives; with pareto its layouts; with scale the best of each size."""
        title = f"{self.model} on {self.cluster}, {self.stack}"
        if "scale" in self.raw:
            sizes = [size for size in self.raw["scale"] if size["best"]]
            return Layouts([Layout.of({"kind": f"{size['gpus']} GPUs", **size["best"]}) for size in sizes], title)
        if self.pareto or not self.recommended:
            return Layouts(list(self.pareto or self.ranked), title)
        return Layouts([self.recommended, *self.alternatives], title)

    def frame(self) -> pandas.DataFrame:
        """A row for each of layouts; needs pandas."""
        return self.layouts.frame()

    def chart(self, axes: Any = None) -> Chart:
        """Their step times with intervals; needs matplotlib."""
        return self.layouts.chart(axes)

    def _repr_html_(self) -> str:
        return self.layouts._repr_html_()


@dataclass(frozen=True)
class Simulation:
    """The answer to simulate(): one layout in detail. Where it does not fit, prediction.fits is False."""

    prediction: Layout
    breakdown_s: dict[str, float]
    stragglers_and_host_s: float
    stages: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Simulation:
        return _take(cls, answer, prediction=Layout.of(answer["prediction"]), raw=dict(answer))

    def causes(self) -> dict[str, float]:
        """Seconds of the step by cause, mean over stages; they sum to prediction.step_time_s."""
        return {**self.breakdown_s, "stragglers_and_host": self.stragglers_and_host_s}

    def frame(self) -> pandas.DataFrame:
        """A row for each stage: seconds by cause (time_s.*) and GiB by category at its peak (memory_GiB.*); needs pandas."""
        rows = []
        for stage in self.stages:
            row = {"stage": stage["stage"]}
            for part in ("time_s", "memory_GiB"):
                row.update({f"{part}.{name}": value for name, value in stage[part].items()})
            rows.append(row)
        return frame_of(rows)

    def chart(self, axes: Any = None) -> Chart:
        """Where the step's time goes, longest first; needs matplotlib."""
        parts = sorted(((n, s) for n, s in self.causes().items() if s > 1e-9), key=lambda part: -part[1])
        return chart_of_times([(name, seconds, seconds, seconds) for name, seconds in parts], self.prediction.key, axes)

    def _repr_html_(self) -> str:
        step = self.prediction.step_time_s
        parts = [(n, s) for n, s in self.causes().items() if s > 1e-9]
        rows = [{"cause": name, "s": f"{s:.3f}", "share": f"{s / step:.1%}"} for name, s in parts]
        return html_table(rows, f"{self.prediction.key}: step {step:.3f} s, {self.prediction.peak_memory_GiB:.1f} GiB")


@dataclass(frozen=True)
class Validation:
    """The answer to validate(): errors by source, and the prediction of each run."""

    sources: list[dict[str, Any]]
    runs: list[dict[str, Any]]
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Validation:
        return _take(cls, {"sources": [], "runs": [], **answer}, raw=dict(answer))

    def frame(self) -> pandas.DataFrame:
        """A row for each run: predicted step and memory with their intervals; what could not be predicted is NaN, its reason in note."""
        return frame_of(self.runs)

    def source_frame(self) -> pandas.DataFrame:
        """A row for each source: its number of runs and their errors in percent."""
        return frame_of(self.sources)

    def _repr_html_(self) -> str:
        rows = [
            {
                "source": s["source"],
                "runs": s["rows"],
                "error": f"{s['mean_absolute_error_percent']:.1f} %",
                "bias": f"{s['bias_percent']:+.1f} %",
            }
            for s in self.sources
        ]
        return html_table(rows, f"{len(self.runs)} runs")
