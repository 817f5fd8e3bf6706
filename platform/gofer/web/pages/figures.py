"""Figures in words: times, sums of money, sizes."""

from __future__ import annotations

import time
from datetime import UTC, datetime, tzinfo

from markupsafe import Markup, escape

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def ago(at: float | None, *, zone: tzinfo = UTC) -> Markup | str:
    """A moment relative to now, with the date and time on hover."""
    if not at:
        return "–"
    moment = datetime.fromtimestamp(at, UTC)
    machine = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    exact = moment.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S %Z")
    return Markup('<time class="nowrap" datetime="{}" title="{}" data-relative>{}</time>').format(
        machine, exact, relative(time.time() - at)
    )


def relative(seconds: float) -> str:
    """`3 min ago`, `in 2 h`, `now`."""
    size = abs(seconds)
    if size < 1:
        return "now"
    length, unit = next((length, unit) for length, unit in _UNITS if size >= length)
    text = f"{int(size // length)} {unit}"
    return f"in {text}" if seconds < 0 else f"{text} ago"


def span(seconds: float | None) -> str:
    """A length of time: `85 ms`, `4.2 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    if seconds < 86400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds // 86400:.0f} d {seconds % 86400 // 3600:.0f} h"


def money(dollars: float | None) -> str:
    """Dollars, with as many places as small sums need."""
    if dollars is None:
        return "–"
    return f"${dollars:,.2f}" if dollars == 0 or dollars >= 1 else f"${dollars:.4f}"


def size(count: float | None) -> str:
    """Bytes."""
    if count is None:
        return "–"
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def count(number: int, one: str, many: str = "") -> str:
    """`1 run`, `3 runs`."""
    return str(escape(f"{number:,} {one if number == 1 else many or one + 's'}"))
