"""What a group of benchmarks returns, and how it is shown.

A group is a module with `async def main(quick: bool) -> list[Row]`, named in `benchmarks.__main__.GROUPS`.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of ours, what it is held against, and the target."""

    group: str
    name: str
    value: float
    unit: str
    against: str = ""
    """What the reference is: a raw floor, a peer, or the same run without something. Empty for none."""
    reference: float | None = None
    """The same thing measured in the same run, in the same unit."""
    at_least: float | None = None
    """The target: of value / reference when there is a reference, of the value itself when not."""
    at_most: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """The figure as a multiple of what it is held against."""
        return self.value / self.reference if self.reference else None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None when there is none."""
        if self.at_least is None and self.at_most is None:
            return None
        held = self.value if self.ratio is None else self.ratio
        return (self.at_least is None or held >= self.at_least) and (
            self.at_most is None or held <= self.at_most
        )

    @property
    def target(self) -> str:
        """The target in words."""
        times = "" if self.reference is None else "×"
        bounds = [
            f"{sign} {bound:g}{times}"
            for sign, bound in (("≥", self.at_least), ("≤", self.at_most))
            if bound is not None
        ]
        return " and ".join(bounds)


def number(value: float | None) -> str:
    """Three digits that matter."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


HEAD = ("group", "figure", "Gofer", "unit", "against", "reference", "ratio", "target", "met")


def table(rows: Iterable[Row]) -> str:
    """The rows as text, columns aligned."""
    lines = [HEAD] + [
        (
            row.group,
            row.name,
            number(row.value),
            row.unit,
            row.against,
            number(row.reference),
            "" if row.ratio is None else f"{row.ratio:.2f}×",
            row.target,
            {True: "yes", False: "NO", None: ""}[row.met],
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def write_json(path: Path, rows: Iterable[Row]) -> None:
    """The rows as data, with the machine they are of."""
    machine = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }
    figures = [{**asdict(row), "ratio": row.ratio, "target": row.target, "met": row.met} for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "figures": figures}, indent=2, ensure_ascii=False) + "\n")
