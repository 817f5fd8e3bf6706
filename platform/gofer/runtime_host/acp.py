"""Agents that speak the Agent Client Protocol: processes of the host, with everything they say bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import deque
from collections.abc import Awaitable
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from gofer.runtime_host.configuration import AcpSettings
from gofer.runtime_host.interfaces import (
    MAX_ANSWER,
    MAX_SESSION,
    OVER,
    Adapter,
    HostReport,
    NotDelivered,
    OrderRun,
    RuntimeLook,
    cut,
    words_of,
)
from gofer.runtime_host.state import RuntimeState
from gofer.sanitize import clean, gist
from gofer_sandbox import processes

if TYPE_CHECKING:
    from acp.client import ClientSideConnection
    from acp.schema import InitializeResponse, PermissionOption, RequestPermissionResponse, ToolCallUpdate

T = TypeVar("T")

MAX_LINE = 4 * 1024 * 1024
"""Bytes of one message. A longer one is thrown away piece by piece, as if it had not been sent."""
MAX_NONSENSE = 1000
"""Lines that are no messages, after which a process is given up."""
MAX_CHOICES = 8
MAX_CHOICE = 60
CUT = "\n\n(The rest of this answer is left out: it was longer than 32 KiB.)"
CANCEL_TIMEOUT = 5.0
"""Seconds for an agent to end a turn that was cancelled."""
END_TIMEOUT = 2.0
"""Seconds for a process to end by itself once its input is closed."""
LOOK_PAUSE = 1.0
MAX_COMPLAINT = 2000
"""Bytes of what a process wrote to stderr last that are kept."""


class BoundedMessages:
    """Messages of an agent's stdout and to its stdin: the transport of the library, with bounds."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self.nonsense = 0
        self.ended = False
        """Nothing more comes."""

    async def send(self, message: dict[str, Any]) -> None:
        """Write one message; the caller bounds the time."""
        self._stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        await self._stdin.drain()

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end, or when there is too much nonsense."""
        while self.nonsense <= MAX_NONSENSE:
            try:
                line = await self._stdout.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                self.ended = True
                return None
            except asyncio.LimitOverrunError as error:
                await self._discard(error.consumed)
                self.nonsense += 1
                continue
            with contextlib.suppress(ValueError, RecursionError):
                message = json.loads(line)
                if isinstance(message, dict) and isinstance(message.get("id", 0), int | str | None):
                    return message
            self.nonsense += bool(line.strip())
        return None

    async def _discard(self, size: int) -> None:
        """Read on to the end of a line that is too long."""
        while True:
            await self._stdout.readexactly(size)
            try:
                await self._stdout.readuntil(b"\n")
            except asyncio.LimitOverrunError as error:
                size = error.consumed
            except asyncio.IncompleteReadError:
                return
            else:
                return

    async def close(self) -> None:
        """Close the agent's input, which asks it to end."""
        self._stdin.close()


class PromptTurn:
    """One prompt and what came back so far."""

    def __init__(self, run: OrderRun) -> None:
        self.run = run
        self._parts: list[str] = []
        self._room = 2 * MAX_ANSWER
        self.taken = asyncio.Event()
        """The agent has said anything at all."""
        self.asked = 0.0
        """Seconds for which people were asked; they do not count."""

    def hear(self, text: str) -> None:
        """Take a piece of the answer, as long as there is room."""
        self.taken.set()
        piece = text[: self._room]
        self._room -= len(piece)
        if piece:
            self._parts.append(piece)

    @property
    def answer(self) -> str:
        """What the agent has said."""
        whole = clean("".join(self._parts)).strip()
        kept = cut(whole, MAX_ANSWER - len(CUT))
        return kept if kept == whole and self._room > 0 else kept + CUT


class GoferClient:
    """Our side of the protocol: hears updates, passes permission requests on. It offers neither files nor terminals."""

    def __init__(self) -> None:
        self.turn: PromptTurn | None = None
        self.session = ""

    async def session_update(self, session_id: str, update: Any, **more: Any) -> None:
        """Hear what the agent does; its words are kept, the rest shows that it is at work."""
        turn = self.turn
        if turn is None or session_id != self.session:
            return
        turn.taken.set()
        if getattr(update, "session_update", "") == "agent_message_chunk":
            turn.hear(getattr(update.content, "text", ""))

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **more: Any
    ) -> RequestPermissionResponse:
        """Ask people; without an answer nothing is allowed."""
        from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

        turn = self.turn
        chosen = None
        if turn is not None and session_id == self.session and options:
            turn.taken.set()
            chosen = await self._choice(turn, tool_call, options[:MAX_CHOICES])
        if chosen is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen))

    async def _choice(
        self, turn: PromptTurn, tool_call: ToolCallUpdate, options: list[PermissionOption]
    ) -> str | None:
        names: dict[str, str] = {}
        for number, option in enumerate(options, 1):
            name = gist(option.name, MAX_CHOICE - 4) or str(option.kind)
            names[name if name not in names else f"{name} ({number})"] = option.option_id
        began = asyncio.get_running_loop().time()
        try:
            answer = await turn.run.ask(
                f"The agent asks for permission: {gist(tool_call.title or 'a tool', 400)}", list(names)
            )
        finally:
            turn.asked += asyncio.get_running_loop().time() - began
        return names.get(answer or "")


class AgentProcess:
    """A process that speaks the protocol."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        from acp.client import ClientSideConnection

        self.process = process
        self.messages = BoundedMessages(process)
        self.client = GoferClient()
        self.connection: ClientSideConnection = ClientSideConnection(self.client, self.messages)  # type: ignore[arg-type] # it offers no files and no terminals
        self.can_load = False
        self._complaints: deque[bytes] = deque(maxlen=8)
        self._stderr = asyncio.create_task(self._hear_complaints())

    @classmethod
    async def start(cls, settings: AcpSettings) -> AgentProcess:
        """Start the program of the file, in a process group of its own; raises OSError."""
        process = await asyncio.create_subprocess_exec(
            *settings.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=settings.cwd,
            env=settings.environment(os.environ),
            limit=MAX_LINE,
            start_new_session=True,
        )
        return cls(process)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.returncode is None

    @property
    def complaint(self) -> str:
        """What it wrote to stderr last."""
        return gist(b"".join(self._complaints)[-MAX_COMPLAINT:].decode("utf-8", "replace"), 300)

    async def greet(self) -> None:
        """Agree on the protocol."""
        from acp import PROTOCOL_VERSION
        from acp.schema import ClientCapabilities, Implementation

        told: InitializeResponse = await self.connection.initialize(
            protocol_version=PROTOCOL_VERSION,
            client_capabilities=ClientCapabilities(),
            client_info=Implementation(name="gofer", version=metadata.version("gofer")),
        )
        if told.protocol_version != PROTOCOL_VERSION:
            raise NotDelivered(
                "runtime.nonsense", f"It speaks version {told.protocol_version} of the protocol."
            )
        self.can_load = bool(told.agent_capabilities and told.agent_capabilities.load_session)

    async def see_end(self) -> None:
        """Wait a moment for a process whose output has ended: it is known a little later that it has ended, too."""
        if self.messages.ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_TIMEOUT):
                    await self.process.wait()

    async def end(self) -> None:
        """End it and everything that it started: first by closing its input, then by force."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(END_TIMEOUT):
                await self.connection.close()
                await self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        self._stderr.cancel()

    async def _hear_complaints(self) -> None:
        assert self.process.stderr is not None
        while data := await self.process.stderr.read(1024):
            self._complaints.append(data)


class AcpAdapter(Adapter):
    """One agent that speaks the protocol."""

    kind = "acp"
    can_spawn = True

    def __init__(self, name: str, settings: AcpSettings, state: RuntimeState) -> None:
        self._name = name
        self._settings = settings
        self._state = state
        self._agent: AgentProcess | None = None
        self._ended: AgentProcess | None = None
        self._starting = asyncio.Lock()

    @property
    def can_resume(self) -> bool:  # type: ignore[override] # it changes with the process
        """There is a session, and the agent can load one."""
        return self._state.can_load and bool(self._state.session)

    async def open(self) -> None:
        """End what an earlier host has left behind, whose output nobody reads, and start the agent anew."""
        left = self._state.process
        if left and processes.start_time(left[0]) == left[1]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(left[0], signal.SIGKILL)
        with contextlib.suppress(NotDelivered):
            await self._restart("resume" if self.can_resume else "spawn")

    async def recover(self, tail: str) -> HostReport | None:
        """A turn ends with the host that heard it: nobody will say what came of it."""
        return HostReport(status="failed", reason="host.restarted")

    async def look(self) -> RuntimeLook:
        """See whether the process runs, and whether it is at work."""
        agent = self._agent
        if agent is None or not agent.alive:
            self._count_crash()
            return RuntimeLook(alive=False, reason="runtime.gone", session=self._state.session)
        busy = agent.client.turn is not None
        return RuntimeLook(
            alive=True,
            reason="runtime.busy" if busy else "",
            program=os.path.basename(self._settings.command[0]),
            session=agent.client.session,
            idle=not busy,
        )

    async def carry_out(self, run: OrderRun) -> HostReport:
        """Have the agent take a turn, in its session, in the one before, or in a new one."""
        action = run.order.action
        seen = await self.look()
        if action == "look":
            return HostReport(status="delivered" if seen.alive else "failed", reason=seen.reason)
        words = words_of(run.order)
        if action in ("deliver", "prompt"):
            if seen.reason:
                raise NotDelivered(seen.reason)
            await run.begin()
        else:
            if action == "resume" and not self.can_resume:
                raise NotDelivered("resume.failed", "The agent has no session that it could load.")
            await run.begin()
            await self._restart(action)
        assert self._agent is not None
        return await self._take_turn(self._agent, run, words)

    async def close(self) -> None:
        """End the process."""
        agent, self._agent = self._agent, None
        if agent is not None:
            await agent.end()
            self._state.forget_process()

    def _count_crash(self) -> None:
        """Count a process that has ended by itself, once."""
        agent = self._agent
        if agent is not None and not agent.alive and agent is not self._ended:
            self._ended = agent
            self.crashes += 1

    # Turns.

    async def _take_turn(self, agent: AgentProcess, run: OrderRun, words: str) -> HostReport:
        from acp.helpers import text_block

        run.check()
        turn = agent.client.turn = PromptTurn(run)
        asking = asyncio.ensure_future(
            agent.connection.prompt(session_id=agent.client.session, prompt=[text_block(words)])
        )
        tell = asyncio.create_task(self._tell_when_taken(turn))
        try:
            if not await self._wait(asking, turn):
                return await self._give_up(agent, asking, OVER if run.over.is_set() else "runtime.silent")
            if asking.exception() is not None:
                await agent.see_end()
                self._count_crash()
            return self._report(agent, turn, asking)
        finally:
            agent.client.turn = None
            for task in (asking, tell):
                task.cancel()
            await asyncio.gather(asking, tell, return_exceptions=True)

    async def _tell_when_taken(self, turn: PromptTurn) -> None:
        await turn.taken.wait()
        await turn.run.report(HostReport(status="acknowledged"))

    async def _wait(self, asking: asyncio.Future[Any], turn: PromptTurn) -> bool:
        """Until the turn ends; False when its order is over, or when the agent shows no sign of having begun, or takes
        too long, not counting the time for which people were asked."""
        loop, order = asyncio.get_running_loop(), turn.run.order
        began = loop.time()
        while True:
            within = order.answer_within + turn.asked if turn.taken.is_set() else order.ack_within
            left = began + within - loop.time()
            if asking.done() or left <= 0 or turn.run.over.is_set():
                return asking.done()
            await asyncio.wait([asking], timeout=min(left, LOOK_PAUSE))

    async def _give_up(self, agent: AgentProcess, asking: asyncio.Future[Any], why: str) -> HostReport:
        """Cancel a turn for which nobody waits any more; an agent that does not even end that is ended itself."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CANCEL_TIMEOUT):
                await agent.connection.cancel(session_id=agent.client.session)
                await asyncio.wait([asking], timeout=CANCEL_TIMEOUT)
        if not asking.done():
            self._ended = agent
            await agent.end()
        return HostReport(status="failed", reason=why, session=agent.client.session)

    def _report(self, agent: AgentProcess, turn: PromptTurn, asking: asyncio.Future[Any]) -> HostReport:
        session = agent.client.session
        if asking.exception() is not None:
            return HostReport(status="failed", reason=_reason(agent, "runtime.crashed"), session=session)
        ended = asking.result().stop_reason
        if ended in ("refusal", "cancelled"):
            reason = "runtime.refused" if ended == "refusal" else "runtime.cancelled"
            return HostReport(status="failed", reason=reason, session=session)
        if not turn.answer:
            # One that has posted with Gofer's tools has ended the hop already, and this says nothing new.
            return HostReport(status="failed", reason="runtime.no_words", session=session)
        return HostReport(status="answered", session=session, text=turn.answer)

    # Starting.

    async def _restart(self, action: str) -> None:
        """Start the program again, with its old session or with a new one."""
        async with self._starting:
            self._count_crash()
            await self.close()
            try:
                agent = await AgentProcess.start(self._settings)
            except OSError as error:
                raise NotDelivered(f"{action}.failed", str(error)) from None
            self._agent = agent
            self._state.keep_process(agent.process.pid, processes.start_time(agent.process.pid) or 0)
            try:
                await _within(self._settings.ready_within, self._enter(agent, action), agent)
            except NotDelivered as error:
                await agent.see_end()
                self._count_crash()
                await self.close()
                raise NotDelivered(f"{action}.failed", f"{error} {agent.complaint}".strip()) from None

    async def _enter(self, agent: AgentProcess, action: str) -> None:
        await agent.greet()
        if action == "resume" and agent.can_load:
            session = self._state.session
            await agent.connection.load_session(cwd=self._settings.cwd, session_id=session, mcp_servers=[])
        else:
            made = await agent.connection.new_session(cwd=self._settings.cwd, mcp_servers=[])
            session = made.session_id
        if not session or len(session) > MAX_SESSION or not session.isprintable():
            raise NotDelivered("runtime.nonsense", "The name of its session cannot be one.")
        agent.client.session = session
        self._state.keep_session(session, can_load=agent.can_load)


async def _within(seconds: float, work: Awaitable[T], agent: AgentProcess) -> T:
    """The result of something that an agent does, in time; raises NotDelivered for whatever it does instead."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except NotDelivered:
        raise
    except TimeoutError:
        raise NotDelivered(_reason(agent, "runtime.silent"), "It did not answer in time.") from None
    except Exception as error:  # noqa: BLE001 # the library raises what the agent makes it raise
        raise NotDelivered(
            _reason(agent, "runtime.crashed"), gist(f"{type(error).__name__}: {error}")
        ) from None


def _reason(agent: AgentProcess, otherwise: str) -> str:
    """Why an agent does not answer: what came was no protocol, or else as the caller saw it."""
    return "runtime.nonsense" if agent.messages.nonsense else otherwise
