"""What an agent's files say of its heartbeat: `[heartbeat]` in its settings, and the list in HEARTBEAT.md.

Everything here is plain reading: no clock but the moment that is given, no store.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gofer.runs.layers import LayerError, read_text
from gofer.sanitize import clean, gist

HEARTBEAT_FILE = "HEARTBEAT.md"
MAX_ITEMS = 100
MAX_ITEM = 500
"""Characters of one item."""
MAX_PROBLEMS = 20
"""Bad lines that are named; of more it is said how many there are."""
MINUTE, HOUR, DAY = 60, 3600, 86400
MIN_INTERVAL = 5 * MINUTE
MAX_INTERVAL = 366 * DAY
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_UNITS = {"m": MINUTE, "h": HOUR, "d": DAY}
_HOURS = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})")
_ASIDES = re.compile(
    r"<!--.*?(?:-->|\Z)|^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.S | re.M
)
_ITEM = re.compile(r"\s{0,3}[-*+]\s+(\S.*)")
_EVERY = re.compile(r"every\s+(\d{1,6})\s*([mhd])", re.I)
_AT = re.compile(r"(?:(\S+)\s+)?(\d{1,2}):(\d{2})", re.I)
HOW = 'write "- every 2h: text", "- 09:00: text", "- mon,thu 09:00: text" or "- 2026-12-24 09:00: text"'


def minutes_of(hours: str, minutes: str) -> int:
    """Minutes since midnight; raises ValueError for a time that no day has."""
    found = int(hours) * 60 + int(minutes)
    if int(minutes) > 59 or found > 24 * 60:
        raise ValueError(f"{hours}:{minutes} is no time of a day")
    return found


class HeartbeatSettings(BaseModel):
    """When an agent looks after its conversations by itself, and what that may cost."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = False
    every: int = Field(default=30, ge=5, le=24 * 60)
    """Minutes between two looks."""
    hours: str = "08:00-20:00"
    """The hours of the day in which it looks and writes, in the workspace's time zone; they may cross midnight."""
    budget: float = Field(default=0.5, ge=0, le=1000, allow_inf_nan=False)
    """Dollars a day for its runs, of the agent's budget for the background. With 0 it only records what it finds."""
    research: bool = True
    """Whether it may have a worker run look into something by itself, within its budget."""
    conversation: str = Field(default="", max_length=100)
    """Where it tells of what belongs to no conversation; by default the owner's last private one with this agent."""

    @field_validator("hours")
    @classmethod
    def _hours(cls, given: str) -> str:
        found = _HOURS.fullmatch(given.strip())
        if found is None:
            raise ValueError("should be two times of the day, such as 08:00-20:00")
        start, end = minutes_of(found[1], found[2]), minutes_of(found[3], found[4])
        if start == end or start == 24 * 60:
            raise ValueError("should begin and end at different times; the whole day is 00:00-24:00")
        return given.strip()

    def span(self) -> tuple[int, int]:
        """The hours as minutes since midnight; the second is the smaller one when they cross midnight."""
        found = _HOURS.fullmatch(self.hours)
        assert found is not None
        return minutes_of(found[1], found[2]), minutes_of(found[3], found[4])

    def is_time(self, at: float, timezone: str) -> bool:
        """Whether a moment is within the hours, by the clock on the wall."""
        return self.covers(_minute(datetime.fromtimestamp(at, ZoneInfo(timezone))))

    def covers(self, minute: int) -> bool:
        """Whether a minute of the day is within the hours."""
        start, end = self.span()
        return start <= minute < end if start < end else minute >= start or minute < end


def _minute(local: datetime) -> int:
    return local.hour * 60 + local.minute


@dataclass(frozen=True, slots=True)
class HeartbeatItem:
    """One line of HEARTBEAT.md: what to look at, and when."""

    text: str
    interval: int = 0
    """Seconds; 0 for an item with a time of the day."""
    minute: int = 0
    """Of the day."""
    weekdays: tuple[int, ...] = ()
    """Those on which it is due; none stands for every day."""
    day: date | None = None
    """The one day on which it is due."""

    @property
    def id(self) -> str:
        """What it is known by in the store, which keeps no words of the file."""
        whole = repr((self.text, self.interval, self.minute, self.weekdays, self.day))
        return hashlib.sha256(whole.encode()).hexdigest()[:24]

    def period(self, at: float, timezone: str) -> str | None:
        """The name of the period for which it is due at a moment, which it is once; None when it is not.

        An item with a time is due from then until the day ends. Intervals are counted from a fixed midnight. Only the
        clock on the wall is looked at, so an hour that a change of daylight saving takes away or repeats makes no item
        fall out or come twice.
        """
        local = datetime.fromtimestamp(at, ZoneInfo(timezone))
        today = local.date()
        if self.interval:
            wall = today.toordinal() * DAY + _minute(local) * MINUTE
            return f"{self.interval}:{wall // self.interval}"
        wanted = today == self.day if self.day else not self.weekdays or today.weekday() in self.weekdays
        return today.isoformat() if wanted and _minute(local) >= self.minute else None


@dataclass(frozen=True, slots=True)
class HeartbeatList:
    """What HEARTBEAT.md says."""

    items: tuple[HeartbeatItem, ...] = ()
    problems: tuple[str, ...] = ()
    """What of it is not in force, and why."""


def read_items(folder: Path | None, settings: HeartbeatSettings, today: date | None = None) -> HeartbeatList:
    """The list in an agent's folder; whatever is wrong with it is said, and stops nothing."""
    path = folder / HEARTBEAT_FILE if folder is not None else None
    if folder is None or path is None or not (path.is_symlink() or path.exists()):
        return HeartbeatList()
    try:
        text = read_text(path, folder)
    except LayerError as error:
        return HeartbeatList(problems=(f"{HEARTBEAT_FILE} {error}",))
    return parse_items(text, settings, today)


def parse_items(text: str, settings: HeartbeatSettings, today: date | None = None) -> HeartbeatList:
    """The items of a list. Lines that are no list items are comments, as is what stands in an HTML comment or a code
    fence; an item that makes no sense is a problem.

    With `today`, an item for a day that is over is a problem, too.
    """
    items: dict[str, HeartbeatItem] = {}
    problems: list[str] = []
    for number, line in enumerate(_without_asides(text).splitlines(), 1):
        found = _ITEM.fullmatch(line.rstrip())
        if found is None:
            continue
        try:
            item = _item(found[1])
            _check_comes(item, settings, today)
            if item.id in items:
                raise ValueError("it stands there twice")
            if len(items) >= MAX_ITEMS:
                raise ValueError(f"a list has at most {MAX_ITEMS} items")
        except ValueError as error:
            problems.append(f"{HEARTBEAT_FILE} line {number} is not in force: {error} ({gist(found[1], 60)})")
            continue
        items[item.id] = item
    if len(problems) > MAX_PROBLEMS:
        more = len(problems) - MAX_PROBLEMS
        problems = [*problems[:MAX_PROBLEMS], f"{HEARTBEAT_FILE} has {more} more lines that are not in force"]
    return HeartbeatList(tuple(items.values()), tuple(problems))


def _without_asides(text: str) -> str:
    """A Markdown text with the lines of its HTML comments and code fences emptied, so that lines keep their numbers.
    One that is never closed goes on to the end."""
    return _ASIDES.sub(lambda found: "\n" * len(found[0].splitlines()[1:]), "\n".join(text.splitlines()))


def _item(line: str) -> HeartbeatItem:
    when, separator, text = _split(line)
    text = " ".join(clean(text).split())
    if not separator or not text:
        raise ValueError(HOW)
    if len(text) > MAX_ITEM:
        raise ValueError(f"an item has at most {MAX_ITEM} characters")
    if (every := _EVERY.fullmatch(when)) is not None:
        return HeartbeatItem(text, interval=_interval(int(every[1]), every[2].lower()))
    at = _AT.fullmatch(when)
    if at is None:
        raise ValueError(HOW)
    minute = minutes_of(at[2], at[3])
    if minute == 24 * 60:
        raise ValueError("24:00 never comes; write 00:00")
    if not at[1]:
        return HeartbeatItem(text, minute=minute)
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", at[1]):
        return HeartbeatItem(text, minute=minute, day=_day(at[1]))
    return HeartbeatItem(text, minute=minute, weekdays=_weekdays(at[1].lower()))


def _split(line: str) -> tuple[str, str, str]:
    """When, and what: at the first colon that is not within a time of the day."""
    found = re.match(r"(?:[^:]{0,60}?\d{1,2}:\d{2}|[^:]{0,60})(?=:)", line)
    return (found[0].strip(), ":", line[found.end() + 1 :].strip()) if found else (line, "", "")


def _interval(count: int, unit: str) -> int:
    seconds = count * _UNITS[unit]
    if not MIN_INTERVAL <= seconds <= MAX_INTERVAL:
        raise ValueError("an interval has at least 5 minutes and at most 366 days")
    if seconds > DAY and seconds % DAY:
        raise ValueError("an interval of more than a day is a number of days, such as every 3d")
    return seconds


def _day(given: str) -> date:
    try:
        return date.fromisoformat(given)
    except ValueError:
        raise ValueError(f"{given} is no day of the calendar, so it never comes") from None


def _weekdays(given: str) -> tuple[int, ...]:
    if given == "weekdays":
        return (0, 1, 2, 3, 4)
    names = given.split(",")
    if unknown := [name for name in names if name not in WEEKDAYS]:
        raise ValueError(f"{gist(unknown[0], 20)!r} is no day: use {', '.join(WEEKDAYS)} or weekdays")
    return tuple(sorted({WEEKDAYS.index(name) for name in names}))


def _check_comes(item: HeartbeatItem, settings: HeartbeatSettings, today: date | None) -> None:
    """Raise ValueError for an item that is never due: its day is over, or no look falls after its time."""
    if item.day is not None and today is not None and item.day < today:
        raise ValueError(f"{item.day.isoformat()} is over")
    # It is looked for from its time until midnight: a minute of the hours has to lie in between.
    if item.interval == 0 and not any(settings.covers(minute) for minute in range(item.minute, 24 * 60)):
        raise ValueError(f"its time never comes within the hours {settings.hours}")


def next_opening(settings: HeartbeatSettings, at: float, timezone: str) -> float:
    """Seconds until the hours begin, at most a day; 0 within them. It is rounded up to whole minutes."""
    zone = ZoneInfo(timezone)
    for minutes in range(0, 25 * 60, 5):
        if settings.covers(_minute(datetime.fromtimestamp(at, zone) + timedelta(minutes=minutes))):
            return float(minutes * MINUTE)
    return float(DAY)


def with_switch(toml: str, *, enabled: bool) -> str:
    """An agent's settings with its heartbeat switched on or off; everything else stays as it is written."""
    word = f"enabled = {'true' if enabled else 'false'}"
    lines = toml.splitlines()
    header = next(
        (n for n, line in enumerate(lines) if re.fullmatch(r"\s*\[\s*heartbeat\s*\]\s*(#.*)?", line)), None
    )
    if header is None:
        kept = toml.rstrip("\n")
        return f"{kept}\n\n[heartbeat]\n{word}\n" if kept else f"[heartbeat]\n{word}\n"
    end = next((n for n in range(header + 1, len(lines)) if lines[n].lstrip().startswith("[")), len(lines))
    for number in range(header + 1, end):
        if re.match(r"\s*enabled\s*=", lines[number]):
            lines[number] = word
            break
    else:
        lines.insert(header + 1, word)
    return "\n".join(lines) + "\n"


def due_items(items: Sequence[HeartbeatItem], at: float, timezone: str) -> list[tuple[HeartbeatItem, str]]:
    """The items that are due at a moment, each with its period."""
    return [(item, period) for item in items if (period := item.period(at, timezone)) is not None]
