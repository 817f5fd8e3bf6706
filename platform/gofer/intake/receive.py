"""From a request to a commit: verify the raw bytes, read them, record them. Webhooks, polls and replays alike."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import structlog

from gofer.connections.context import LoadedConnection, LoadedConnections
from gofer.crash import crash_point
from gofer.errors import GoferError, Malformed, NotFound, Refused, TooBusy
from gofer.intake.admit import StrangerLimit
from gofer.intake.arrival import Arrival, Source, Taken
from gofer.intake.transaction import take_in
from gofer.integration import Incoming, Parsed, Request
from gofer.jobs.notifications import EVENTS, JOBS, Signals
from gofer.sanitize import clean
from gofer.store.database import Database
from gofer.store.encryption import body_digest
from gofer.store.ids import new_id
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Redactor

log = structlog.get_logger()

SECRET_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "x-api-key", "x-hub-signature", "x-hub-signature-256"}
)
CONNECTION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_ID = 500
"""Characters of a delivery's id or a conversation's reference: both are looked up by index."""
LARGE = 16_384
"""Bytes from which a body is parsed in a thread: a large one can be made to parse slowly."""
HUGE = 1024 * 1024
"""Bytes from which bodies are taken in one after the other: each is in memory several times while it is read,
searched and sealed."""
REPLAY = "replay 1"
"""The purpose of the key that digests the ids of messages."""
MAX_AT_ONCE = 512
"""Requests that may wait for their commit; further ones get 503."""

TOO_MANY = "a stranger's, who wrote too much within the hour: not read. Redeliver it to have it read."


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that changed nothing. No body is kept."""

    at: float
    connection: str
    status: int
    reason: str
    client: str


class Refusals:
    """The last hundred refused requests, in memory, and how many there were of each kind."""

    def __init__(self) -> None:
        self.recent: deque[Refusal] = deque(maxlen=100)
        self.counts: Counter[int] = Counter()

    def add(self, connection: str, status: int, reason: str, client: str = "") -> None:
        """Add a refusal."""
        self.recent.append(Refusal(time.time(), connection[:64], status, reason[:200], client))
        self.counts[status] += 1


class Gate:
    """Sheds load before it hurts: lets a request in only while there is room to record it."""

    def __init__(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self.most_at_once = MAX_AT_ONCE
        self.waiting = 0
        """Unfinished jobs, as last counted, and those made here since."""
        self.inside = 0

    def __enter__(self) -> None:
        """Let a request in until it is recorded; raises TooBusy when no more should come."""
        if self.inside >= self.most_at_once:
            raise TooBusy("Too many requests are being recorded at this moment.", retry_after=1)
        if self.waiting + self.inside >= self.max_waiting:
            raise TooBusy(f"{self.waiting} jobs are waiting already.", retry_after=10)
        self.inside += 1

    def __exit__(self, *_: object) -> None:
        self.inside -= 1


@dataclass(eq=False, kw_only=True)
class Intake:
    """Verifies requests, reads them and records them."""

    database: Database
    vault: Vault
    accounts: LoadedConnections
    signals: Signals
    gate: Gate
    redactor: Redactor
    strangers: StrangerLimit = field(default_factory=StrangerLimit)

    def __post_init__(self) -> None:
        self._huge = asyncio.Lock()
        self.outdated: dict[str, str] = {}
        """What the senders of connections should change, by the connection's id."""

    async def connected(self, connection_id: str) -> LoadedConnection:
        """A connection as it is now; raises NotFound."""
        return await self.accounts.get(connection_id)

    async def receive(self, connection_id: str, request: Request) -> Taken:
        """A webhook: verified before anything in it is read. Durable when this returns."""
        with self.gate:
            connected = await self.expect(connection_id)
            self._verify(connected, request)
            return await self.take(connected, request, "webhook")

    async def expect(self, connection_id: str) -> LoadedConnection:
        """The connection that a webhook is for; raises NotFound, and Refused when it takes none."""
        if not CONNECTION_ID.fullmatch(connection_id):
            raise NotFound("There is no such connection.")
        connected = await self.accounts.get(connection_id)
        if not connected.enabled:
            raise Refused("The connection is switched off.")
        return connected

    async def take(
        self, connected: LoadedConnection, request: Request, source: Source, *, again: bool = False
    ) -> Taken:
        """A request that is known to be genuine: verified, polled by ourselves, or replayed by the owner.

        With `again` it counts as new although it came before.
        """
        if len(request.body) < HUGE:
            return await self._take(connected, request, source, again=again)
        async with self._huge:
            return await self._take(connected, request, source, again=again)

    async def _take(
        self, connected: LoadedConnection, request: Request, source: Source, *, again: bool
    ) -> Taken:
        integration = connected.integration
        parsed = await self._read(connected, request)
        if again:
            parsed = dataclasses.replace(parsed, delivery_id=f"{parsed.delivery_id[:400]}~{new_id('again')}")
        elif parsed.message is not None and await self._one_too_many(connected, parsed.message):
            parsed = dataclasses.replace(parsed, message=None, note=TOO_MANY)
        hidden = SECRET_HEADERS | integration.secret_headers
        headers = tuple(
            (name, value.decode("latin-1")) for name, value in request.headers if name not in hidden
        )
        body = request.body
        if await self._tells_a_secret(request.body, headers, parsed.message):
            headers = tuple((name, self.redactor.redact(value)) for name, value in headers)
            body = self._masked(body)
            if parsed.message is not None:
                parsed = dataclasses.replace(parsed, message=self._without_secrets(parsed.message))
        arrival = Arrival(
            workspace_id=connected.workspace_id,
            connection_id=connected.account.id,
            integration=integration.name,
            source=source,
            parsed=parsed,
            body=body,
            body_hash=body_digest(self.vault, request.body),
            headers=headers,
            same_body_window=0 if again else integration.same_body_window,
            message_digest=None if again else self._digest(connected, parsed),
            settings=_renamed_settings(connected, parsed),
        )
        crash_point("intake.before_record")
        taken = await self.database.write(lambda connection: take_in(connection, self.vault, arrival))
        crash_point("intake.committed")
        if arrival.settings is not None:
            self.accounts.forget()
        if taken.woke:
            self.gate.waiting += 1
            self.signals.wake(JOBS)
        self.signals.wake(EVENTS)
        return taken

    def _digest(self, connected: LoadedConnection, parsed: Parsed) -> str | None:
        if not parsed.message_id:
            return None
        return self.vault.mac_key(REPLAY).digest(connected.account.id, parsed.message_id)

    async def _one_too_many(self, connected: LoadedConnection, message: Incoming) -> bool:
        return message.addressed and await self.strangers.refuses(
            self.database,
            workspace_id=connected.workspace_id,
            integration=connected.integration.name,
            connection_id=connected.account.id,
            author=message.author.id,
        )

    def _verify(self, connected: LoadedConnection, request: Request) -> None:
        try:
            outdated = connected.integration.verify(request, connected.account)
        except GoferError:
            raise
        except Exception as error:
            # What cannot be checked is not verified.
            log.exception("intake.verify_failed", connection=connected.account.id)
            raise Refused from error
        known = self.outdated.pop(connected.account.id, None)
        if outdated:
            self.outdated[connected.account.id] = outdated
            if known is None:
                log.warning("intake.sender_outdated", connection=connected.account.id, change=outdated)

    async def _read(self, connected: LoadedConnection, request: Request) -> Parsed:
        if len(request.body) < LARGE:
            return self._parse(connected, request)
        return await asyncio.to_thread(self._parse, connected, request)

    def _parse(self, connected: LoadedConnection, request: Request) -> Parsed:
        try:
            parsed = connected.integration.parse(request, connected.account)
            _check_texts(parsed)
        except GoferError:
            raise
        except Exception as error:
            # An integration's oversight must not become a 500 that the service repeats for a day.
            log.exception("intake.parse_failed", connection=connected.account.id)
            raise Malformed("The request has a shape that was not expected.") from error
        if not _usable(parsed.delivery_id):
            raise Malformed("The delivery has no usable id.")
        if parsed.message is None:
            return parsed
        if not _usable(parsed.message.conversation):
            raise Malformed("The message does not say where it was written in a usable way.")
        legible = _legible(parsed.message)
        return parsed if legible is parsed.message else dataclasses.replace(parsed, message=legible)

    async def _tells_a_secret(
        self, body: bytes, headers: tuple[tuple[str, str], ...], message: Incoming | None
    ) -> bool:
        """Whether anything in it has to be masked: one search over everything, because almost nothing has. Large
        requests are searched text by text, in a thread."""
        texts, finds = _texts(body, headers, message), self.redactor.finds
        if len(body) < LARGE:
            return finds("\n \n".join(texts))
        return await asyncio.to_thread(lambda: any(map(finds, texts)))

    def _without_secrets(self, message: Incoming) -> Incoming:
        mask = self.redactor.redact
        author = dataclasses.replace(message.author, name=mask(message.author.name))
        return dataclasses.replace(
            message,
            text=mask(message.text),
            quoted=mask(message.quoted),
            title=mask(message.title),
            author=author,
        )

    def _masked(self, body: bytes) -> bytes:
        """The body as it is stored: as received, unless one of our own secrets is in it."""
        text = body.decode("utf-8", errors="surrogateescape")
        masked = self.redactor.redact(text)
        return body if masked == text else masked.encode("utf-8", errors="surrogateescape")


def _texts(body: bytes, headers: tuple[tuple[str, str], ...], message: Incoming | None) -> Iterator[str]:
    """Every text of a request that is stored. A text that the body contains word for word is left out."""
    whole = body.decode("utf-8", errors="surrogateescape")
    yield whole
    yield from (value for _, value in headers)
    if message is not None:
        yield from (text for text in (message.text, message.quoted) if f'"{text}"' not in whole)
        yield from (message.title, message.author.name)


def _legible(message: Incoming) -> Incoming:
    """The message with cleaned names: people choose their own and those of groups, and may imitate others."""
    author, title = message.author, message.title
    if author.name.isascii() and author.name.isprintable() and title.isascii() and title.isprintable():
        return message
    named = dataclasses.replace(author, name=_line(author.name))
    return dataclasses.replace(message, author=named, title=_line(title))


def _line(text: str) -> str:
    return " ".join(clean(text).split())


def _usable(id_: str) -> bool:
    # Postgres stores no NUL, and indexes nothing long.
    return 0 < len(id_) <= MAX_ID and "\x00" not in id_


def _check_texts(parsed: Parsed) -> None:
    """Check that every text of a parsed request is a string that can be stored; raises if not."""
    texts = [
        parsed.delivery_id,
        parsed.event,
        parsed.note,
        *(parsed.moved or ()),
        *((parsed.closed or ())[:1]),
    ]
    if (said := parsed.message) is not None:
        texts += [said.conversation, said.author.id, said.author.name, said.text, said.title, said.quoted]
        texts += [said.kind, said.event, said.trigger, said.agent, said.command, said.arguments]
        texts += [said.external_id, said.reply_to, said.replaces_id, said.group_id, said.stable_id]
    joined = "\n".join(texts)
    if not joined.isascii():
        joined.encode()
    if "\x00" in joined:
        raise Malformed("The message contains a NUL character.")


def _renamed_settings(connected: LoadedConnection, parsed: Parsed) -> dict[str, Any] | None:
    if parsed.moved is None:
        return None
    return connected.integration.rename_conversation(connected.account.settings, *parsed.moved)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of a batch."""

    new: int = 0
    last: str | None = None
    """The service's id of the last of them that is stored, now or before."""


async def take_batch(
    intake: Intake, connected: LoadedConnection, requests: list[Request], source: Source
) -> BatchResult:
    """Take in what a poll or a catch-up brought, in order."""
    new, last = 0, None
    for request in requests:
        try:
            taken = await intake.take(connected, request, source)
            new += taken.result == "accepted"
            last = taken.external_id
            if taken.moved:
                # What follows in the batch comes from the new place already.
                connected = await intake.connected(connected.account.id)
        except Malformed as error:
            # It will be as malformed next time; the poll must go on.
            log.warning("intake.skipped", connection=connected.account.id, error=str(error))
        await asyncio.sleep(0)
    return BatchResult(new, last)
