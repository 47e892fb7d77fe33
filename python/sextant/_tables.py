"""Rows as a pandas frame, as HTML for notebooks, and as a chart. What is not installed is asked for by name when it is needed."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


def frame_of(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """A column for each key, in the order of the first row."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("frames need pandas, which is not installed: pip install pandas; the same values are in .raw") from error
    return pandas.DataFrame([dict(row) for row in rows])


def html_table(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """A table as notebooks show it, the title above."""
    heads = "".join(f"<th>{html.escape(str(name))}</th>" for name in (rows[0] if rows else {}))
    lines = ("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row.values()) + "</tr>" for row in rows)
    return f"<table><caption>{html.escape(title)}</caption><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


class Chart:
    """A drawn chart, which a notebook shows: matplotlib's `axes` and `figure`, to be changed or saved (chart.figure.savefig("steps.pdf"))."""

    def __init__(self, axes: Any, shown_by_others: bool) -> None:
        self.axes = axes
        self.figure = axes.figure
        self._shown_by_others = shown_by_others

    def _repr_png_(self) -> bytes | None:
        if self._shown_by_others:  # whoever made the axes shows their figure
            return None
        file = io.BytesIO()
        self.figure.savefig(file, format="png")
        return file.getvalue()


def chart_of_times(rows: Sequence[tuple[str, float, float, float]], title: str, axes: Any = None) -> Chart:
    """Horizontal bars of (name, seconds, lower, upper), the first on top, on `axes` or new ones."""
    given = axes is not None
    if not given:
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("charts need matplotlib, which is not installed: pip install matplotlib") from error
        # A figure of its own: no window opens, and none is left behind.
        axes = Figure(figsize=(8, 1 + 0.4 * len(rows)), layout="constrained").add_subplot()
    names = [name for name, *_ in rows]
    at = list(range(len(rows)))
    below = [max(0.0, seconds - lower) for _, seconds, lower, _ in rows]
    above = [max(0.0, upper - seconds) for _, seconds, _, upper in rows]
    axes.barh(at, [seconds for _, seconds, *_ in rows], xerr=[below, above] if any(below) or any(above) else None, capsize=3)
    axes.set_yticks(at, names)
    axes.invert_yaxis()
    axes.set_xlabel("seconds of a step")
    axes.set_title(title)
    return Chart(axes, given)
