"""What a client of OpenClaw's gateway protocol is told of one session: its answers, word by word, and its tools."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection

from gofer.app import Platform
from gofer.store.events import Cursor
from gofer.store.tables import JobState
from gofer.web.chat.follow import follow, read_now
from gofer.web.chat.rooms import Room
from gofer.web.chat.timeline import Timeline
from gofer.web.protocols.gateway_frames import Frame
from gofer.web.protocols.gateway_runs import RunEnd, answered_by, runs_of, silent_ends
from gofer.web.protocols.reply_numbers import (
    NumberedReply,
    ReplyPlace,
    all_replies_after,
    last_place,
)

WITHOUT_NEWS = 3600.0
"""Seconds after which a session is looked at although nothing woke it."""
MAX_TEXT = 200_000
"""Characters of what is being said that are repeated with each delta."""
MAX_REMEMBERED = 1000
"""Runs and tool calls that a follower remembers having reported."""
ERROR_KINDS = {
    "limit.time": "timeout",
    "model.timeout": "timeout",
    "model.retryable": "rate_limit",
    "model.context": "context_length",
}
"""The kinds of errors for the reasons of jobs that failed; any other one is `unknown`."""
BEGUN, ENDED = "start", "result"


def now_ms() -> int:
    """The time as the protocol tells it."""
    return int(time.time() * 1000)


def message_of(text: str, role: str = "assistant", at: float | None = None, **more: Any) -> Frame:
    """A message as clients know it."""
    stamp = now_ms() if at is None else int(at * 1000)
    return {"role": role, "content": [{"type": "text", "text": text}], "timestamp": stamp, **more}


@dataclass(frozen=True, slots=True)
class _More:
    """What is read of a session with the news of it."""

    runs: dict[int, list[str]]
    """Of the jobs that are not over."""
    replies: list[tuple[NumberedReply, RunEnd]]
    silent: list[RunEnd]
    """Of jobs that have ended without a word."""


class SessionFollower:
    """Tells one client of one session for as long as it is connected."""

    def __init__(
        self,
        platform: Platform,
        room: Room,
        key: str,
        version: int,
        send_event: Callable[[str, Frame], Awaitable[None]],
    ) -> None:
        self.room = room
        self.key = key
        """What this client calls the session."""
        self.wants_messages = False
        """Whether it asked to be told every message and tool, beside its runs."""
        self._platform = platform
        self._version = version
        self._send_event = send_event
        self._place = ReplyPlace()
        self._cursor = Cursor()
        self._runs: dict[int, list[str]] = {}
        """Of the jobs that are not over."""
        self._begun: set[int] = set()
        self._ended: dict[str, None] = {}
        self._calls: dict[str, str] = {}
        self._texts: dict[int, str] = {}
        self._numbers: Counter[str] = Counter()

    async def begin(self) -> None:
        """Stand where the session is now: what comes after this is told."""
        self._place, now, runs = await self._platform.database.read(
            partial(_stand, platform=self._platform, room=self.room)
        )
        self._cursor = now.cursor
        await self._begin_runs(now, runs)

    async def tell(self) -> None:
        """Tell what happens, for ever."""
        async for news in follow(
            self._platform, self.room.id, self._cursor, look_anyway=WITHOUT_NEWS, more=self._read_more
        ):
            if not isinstance(news, Timeline):
                await self._say(news)
                continue
            more: _More = news.more
            await self._begin_runs(news, more.runs)
            for item in news.items:
                await self._show(item)
            for reply, ends in more.replies:
                await self._answer(reply, ends)
                self._place = reply.place
            await self._end_silent(more.silent)

    def _read_more(self, connection: Connection, news: Timeline) -> _More:
        """What was answered, and which runs the jobs answer that are at work or were a moment ago."""
        shown = {item["job"] for item in news.items if item["kind"] == "step"}
        replies = all_replies_after(
            connection, self._platform.vault, self._platform.redactor, self.room.id, self._place
        )
        return _More(
            runs_of(connection, self.room, news.at_work.jobs | shown),
            [(each, answered_by(connection, self.room, each)) for each in replies],
            silent_ends(connection, self.room, set(self._runs) - news.at_work.jobs),
        )

    async def _begin_runs(self, news: Timeline, runs: dict[int, list[str]]) -> None:
        """Tell of runs that have begun; more may be said while they go on."""
        self._runs = runs
        self._texts = {job: text for job, text in self._texts.items() if job in self._runs}
        self._begun &= set(self._runs)
        for job_id in set(self._runs) - self._begun if news.state == "working" else ():
            self._begun.add(job_id)
            for run in self._open_runs(job_id):
                await self._agent(run, "lifecycle", {"phase": "start", "startedAt": now_ms()})

    def _open_runs(self, job_id: int) -> list[str]:
        return [run for run in self._runs.get(job_id, ()) if run not in self._ended]

    # Words and tools.

    async def _say(self, frame: Frame) -> None:
        if frame["type"] == "text":
            await self._say_text(int(frame["job"]), frame["text"], frame["whole"])
        else:
            _, job, call = frame["item"].split("-", 2)
            for run in self._open_runs(int(job)):
                data = {"phase": "update", "toolCallId": call, "partialResult": frame["text"]}
                await self._agent(run, "tool", data)

    async def _say_text(self, job_id: int, text: str, whole: bool) -> None:
        said = text if whole else self._texts.get(job_id, "") + text
        self._texts[job_id] = said = said[-MAX_TEXT:]
        for run in self._open_runs(job_id):
            await self._agent(run, "assistant", {"text": said, "delta": text})
            replace = {"replace": True} if whole else {}
            await self._chat(run, "delta", deltaText=text, message=message_of(said), **replace)

    async def _show(self, item: Frame) -> None:
        if item["kind"] == "said" and self.wants_messages:
            message = message_of(item["text"], "user", item["at"], idempotencyKey=item["client_id"])
            told = {"sessionKey": self.key, "message": message, "messageSeq": item["seq"]}
            await self._send_event("session.message", told)
        if item["kind"] == "step":
            await self._show_call(item)

    async def _show_call(self, item: Frame) -> None:
        """Tell once that a tool was called, and once that it has ended."""
        id_, done = item["id"], item["status"] not in ("asked", "running")
        if id_ not in self._calls:
            self._calls[id_] = BEGUN
            await self._call(item, BEGUN)
        if done and self._calls[id_] != ENDED:
            self._calls[id_] = ENDED
            await self._call(item, ENDED)

    async def _call(self, item: Frame, phase: str) -> None:
        data: Frame = {"phase": phase, "name": item["name"], "toolCallId": item["call"]}
        shown = {"title": item["title"], "code": item["code"]}
        if phase == BEGUN:
            data["args"] = shown
        else:
            data |= {"result": item["output"], "isError": item["status"] not in ("ok", "done")}
            data["durationMs"] = int(item["took_ms"] or 0)
        if self._version == 3:  # clients of that time know other names
            data |= {"tool": item["name"], "input": shown, "output": item["output"]}
            data["phase"] = "call" if phase == BEGUN else phase
        for run in self._open_runs(item["job"]) or [job_run(item["job"])]:
            await self._agent(run, "tool", data)
        if self.wants_messages:
            await self._send_event(
                "session.tool", {"sessionKey": self.key, "runId": job_run(item["job"]), **data}
            )

    # Answers.

    async def _answer(self, reply: NumberedReply, ends: RunEnd) -> None:
        message = message_of(reply.text, at=reply.at)
        if self.wants_messages:
            told = {"sessionKey": self.key, "message": message, "messageId": f"reply-{reply.id}"}
            await self._send_event("session.message", told)
        if reply.kind == "note" and ends.agents and not reply.question:
            return  # a word in between; the answer is still to come
        open_runs = [run for run in ends.runs if run not in self._ended]
        for run in open_runs or ([] if ends.runs else [job_run(reply.job_id)]):
            await self._end(run, ends, reply, message)
        self._texts.pop(reply.job_id, None)

    async def _end(self, run: str, ends: RunEnd, reply: NumberedReply, message: Frame) -> None:
        self._remember_end(run)
        if reply.kind != "error":
            why = "question" if reply.question else "stop"
            await self._chat(run, "final", message=message, stopReason=why)
            await self._agent(run, "lifecycle", {"phase": "end", "endedAt": now_ms()})
        elif ends.state == JobState.CANCELLED:
            await self._abort(run, message)
        else:
            await self._fail(run, reply.text, reply.stopped_by or reply.reason, message)

    async def _abort(self, run: str, message: Frame | None = None) -> None:
        said = {} if message is None else {"message": message}
        await self._chat(run, "aborted", stopReason="aborted", **said)
        await self._agent(run, "lifecycle", {"phase": "end", "endedAt": now_ms(), "aborted": True})

    async def _fail(self, run: str, text: str, reason: str, message: Frame) -> None:
        kind = ERROR_KINDS.get(reason, "unknown")
        failed = {**message, "error": text}
        await self._chat(run, "error", message=failed, errorMessage=text or reason, errorKind=kind)
        await self._agent(run, "lifecycle", {"phase": "error", "error": text or reason, "endedAt": now_ms()})

    async def _end_silent(self, silent: list[RunEnd]) -> None:
        """End the runs of jobs that have ended without a word."""
        for ends in silent:
            for run in [each for each in ends.runs if each not in self._ended]:
                self._remember_end(run)
                if ends.state == JobState.DONE:
                    await self._chat(run, "final", message=message_of(""))
                elif ends.state == JobState.CANCELLED:
                    await self._abort(run)
                else:
                    await self._fail(run, "", ends.reason or "failed", message_of(""))

    def _remember_end(self, run: str) -> None:
        self._ended[run] = None
        for known in (self._ended, self._calls, self._numbers):
            for oldest in list(known)[:-MAX_REMEMBERED]:
                del known[oldest]

    # Events.

    async def _chat(self, run: str, state: str, **more: Any) -> None:
        self._numbers[run] += 1
        named = {"runId": run, "sessionKey": self.key, "seq": self._numbers[run], "state": state}
        await self._send_event("chat", {**named, **more})

    async def _agent(self, run: str, stream: str, data: Frame) -> None:
        self._numbers[run] += 1
        told = {"runId": run, "seq": self._numbers[run], "stream": stream, "ts": now_ms()}
        await self._send_event("agent", {**told, "data": {**data, "sessionKey": self.key}})


def job_run(job_id: int) -> str:
    """The run of something that no client asked for, such as what a schedule has an agent say."""
    return f"job-{job_id}"


def _stand(
    connection: Connection, platform: Platform, room: Room
) -> tuple[ReplyPlace, Timeline, dict[int, list[str]]]:
    now = read_now(connection, platform, room.id)
    return last_place(connection, room.id), now, runs_of(connection, room, now.at_work.jobs)
