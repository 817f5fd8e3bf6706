"""A run's story from its events: a waterfall of spans, and a transcript of words and tool cards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_TEXT = 20_000
"""Characters of one text that a page shows."""

Event = Mapping[str, Any]


@dataclass(slots=True)
class Span:
    """One bar of the waterfall."""

    name: str
    kind: str
    """turn, model, tool or wait."""
    start: float
    end: float | None = None
    bad: bool = False
    note: str = ""


@dataclass(slots=True)
class Card:
    """One entry of the transcript."""

    kind: str
    """heard, said, thought, tool, asked, note, end or trouble."""
    at: float
    text: str = ""
    name: str = ""
    data: dict[str, Any] = field(default_factory=dict)


def spans(events: Iterable[Event], now: float) -> list[dict[str, Any]]:
    """The bars in the order they began, as shares of the whole (0 to 1000)."""
    found = _spans(events)
    if not found:
        return []
    begin = min(span.start for span in found)
    end = max(span.end if span.end is not None else now for span in found)
    whole = max(end - begin, 0.001)
    return [_drawn(span, begin, whole, now) for span in found]


def _drawn(span: Span, begin: float, whole: float, now: float) -> dict[str, Any]:
    seconds = (span.end if span.end is not None else now) - span.start
    return {
        "name": span.name,
        "kind": span.kind,
        "bad": span.bad,
        "note": span.note,
        "open": span.end is None,
        "seconds": seconds,
        "x": round((span.start - begin) / whole * 1000, 1),
        "width": max(round(seconds / whole * 1000, 1), 2),
    }


def _spans(events: Iterable[Event]) -> list[Span]:
    found: list[Span] = []
    model: Span | None = None
    tools: dict[str, Span] = {}
    waiting: Span | None = None
    for event in events:
        kind, data, at = event["kind"], event["data"], event["at"]
        if kind == "attempt.started":
            waiting = _closed(waiting, at)
        elif kind == "turn.started":
            model = Span(f"turn {data.get('turn', '')}", "model", at)
            found.append(model)
        elif kind in ("turn.finished", "turn.failed") and model is not None:
            _end_turn(model, kind, data, at)
        elif kind == "tool.started":
            tools[data["call_id"]] = Span(data["name"], "tool", at)
            found.append(tools[data["call_id"]])
        elif kind == "tool.delayed":
            _closed(tools.pop(data["call_id"], None), at)
        elif kind == "tool.finished":
            _end_tool(found, tools.pop(data["call_id"], None), data, at)
        elif kind in ("attempt.finished", "attempt.lost"):
            _close_all(model, tools, at)
            if data.get("outcome") == "waiting":
                waiting = Span("waits for a person", "wait", at)
                found.append(waiting)
    return found


def _closed(span: Span | None, at: float) -> Span | None:
    if span is not None and span.end is None:
        span.end = at
    return None


def _close_all(model: Span | None, tools: dict[str, Span], at: float) -> None:
    """A try that ended leaves nothing running, whether or not its end was written."""
    _closed(model, at)
    for span in tools.values():
        _closed(span, at)


def _end_turn(model: Span, kind: str, data: Event, at: float) -> None:
    model.end = at
    model.bad = kind == "turn.failed"
    usage = data.get("usage") or {}
    tokens = sum(int(usage.get(name) or 0) for name in usage)
    model.note = str(data.get("model", "")) + (f", {tokens:,} tokens" if tokens else "")
    if model.bad:
        model.note = f"{data.get('reason', '')} {model.note}".strip()


def _end_tool(found: list[Span], span: Span | None, data: Event, at: float) -> None:
    if span is None:  # refused before it began
        span = Span(str(data["name"]), "tool", at)
        found.append(span)
    span.end = at
    span.bad = bool(data.get("is_error")) or data.get("exit_code") not in (None, 0)
    code = data.get("exit_code")
    span.note = (
        f"exit code {code}" if code not in (None, 0) else ("" if not span.bad else str(data["status"]))
    )


def cards(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The transcript, in order."""
    found: list[Card] = []
    calls: dict[str, Card] = {}
    for event in events:
        maker = _MAKERS.get(event["kind"])
        if maker is not None:
            found += maker(event, calls)
    return [
        {"kind": card.kind, "at": card.at, "text": _cut(card.text), "name": card.name, **card.data}
        for card in found
        if card.text or card.kind == "tool"
    ]


def _heard(event: Event, _: dict[str, Card]) -> list[Card]:
    texts = [block["text"] for block in event["data"].get("input", ()) if block.get("type") == "text"]
    return [Card("heard", event["at"], "\n\n".join(texts))] if texts else []


def _said(event: Event, calls: dict[str, Card]) -> list[Card]:
    data, made = event["data"], []
    for block in data.get("content", ()):
        if block["type"] == "text":
            made.append(Card("said", event["at"], block["text"], str(data.get("model", ""))))
        elif block["type"] == "thinking":
            made.append(Card("thought", event["at"], block.get("thinking", "")))
        elif block["type"] == "tool_use":
            card = Card("tool", event["at"], "", block["name"], _asked_for(block))
            calls[block["id"]] = card
            made.append(card)
    return made


def _asked_for(block: Event) -> dict[str, Any]:
    given = block.get("input")
    command = given.get("command") if isinstance(given, dict) else None
    return {
        "command": _cut(command) if isinstance(command, str) else "",
        "input": None if isinstance(command, str) and len(given or {}) == 1 else given,
        "status": "not started",
        "exit_code": None,
        "is_error": False,
        "took": None,
        "timed_out": False,
        "truncated": False,
        "more": "",
        "diff": "",
        "images": 0,
    }


def _began(event: Event, calls: dict[str, Card]) -> list[Card]:
    card = calls.get(event["data"]["call_id"])
    if card is not None:
        card.data |= {"status": "running", "tier": event["data"].get("tier", "")}
    return []


def _ended(event: Event, calls: dict[str, Card]) -> list[Card]:
    data = event["data"]
    card = calls.get(data["call_id"])
    if card is not None:
        card.text = str(data.get("content", ""))
        card.data |= {
            "status": data["status"],
            "exit_code": data.get("exit_code"),
            "is_error": bool(data.get("is_error")),
            "took": data.get("took_ms", 0) / 1000,
            "timed_out": bool(data.get("timed_out")),
            "truncated": bool(data.get("truncated")),
            "more": str(data.get("more", "")),
            "diff": _cut(str((data.get("details") or {}).get("diff", ""))),
            "images": len(data.get("images", ())),
        }
    return []


def _asked(event: Event, calls: dict[str, Card]) -> list[Card]:
    card = calls.get(event["data"].get("call_id", ""))
    if card is not None:
        card.data["status"] = "waiting"
    return [Card("asked", event["at"], event["data"].get("text", ""))]


def _stopped(event: Event, _: dict[str, Card]) -> list[Card]:
    data = event["data"]
    return [Card("trouble", event["at"], f"{data.get('sentence', '')}\n\n{data.get('text') or ''}".strip())]


def _failed(event: Event, _: dict[str, Card]) -> list[Card]:
    data = event["data"]
    return [
        Card(
            "trouble",
            event["at"],
            f"{data.get('model', '')}: {data.get('reason', '')}. {data.get('detail', '')}",
        )
    ]


def _warned(event: Event, _: dict[str, Card]) -> list[Card]:
    return [Card("note", event["at"], event["data"].get("sentence", ""))]


def _delayed(event: Event, _: dict[str, Card]) -> list[Card]:
    data = event["data"]
    text = f"{data.get('name')} has to wait {data.get('after', 0):.0f} s: {data.get('detail', '')}"
    return [Card("note", event["at"], text)]


def _shortened(event: Event, _: dict[str, Card]) -> list[Card]:
    return [Card("note", event["at"], "The context was shortened." if event["kind"] == "context.cleared"
                 else "What came before was summarised:\n\n" + str(event["data"].get("summary", "")))]  # fmt: skip


def _lost(event: Event, _: dict[str, Card]) -> list[Card]:
    return [Card("note", event["at"], "The worker went silent; another took over from here.")]


def _slow(event: Event, _: dict[str, Card]) -> list[Card]:
    return [Card("note", event["at"], f"The model had not said a word after {event['data']['seconds']:g} s.")]


_MAKERS = {
    "turn.started": _heard,
    "turn.finished": _said,
    "turn.slow": _slow,
    "turn.failed": _failed,
    "tool.started": _began,
    "tool.finished": _ended,
    "tool.delayed": _delayed,
    "run.asked": _asked,
    "run.warned": _warned,
    "run.stopped": _stopped,
    "context.cleared": _shortened,
    "context.checkpoint": _shortened,
    "attempt.lost": _lost,
}


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}\n… {len(text) - MAX_TEXT:,} more characters; the raw events have them."
