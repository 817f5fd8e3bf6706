"""A session outlives its server, its shell and its box, and says what it could not keep."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gofer_sandbox import (
    Box,
    Bubblewrap,
    InvalidInput,
    Limits,
    Record,
    Reference,
    Result,
    Sandbox,
    SandboxClosed,
    SandboxError,
    SandboxGone,
    SandboxOwned,
    StartFailed,
    Unconfined,
    processes,
    reap,
    records,
)
from gofer_sandbox.provider import Process, Spec
from gofer_sandbox.shell import outputs, scripts
from gofer_sandbox.shell.command import Ladder, Step
from gofer_sandbox.shell.control import ControlWire
from gofer_sandbox.shell.session import ENDED_ALONE, UNCOUNTED
from sandbox.leftovers import ASLEEP
from support.patience import eventually, patience

SERVER = Path(__file__).with_name("doomed_server.py")
STATE = f"export A=1; f() {{ echo f$1; }}; cd /tmp; sleep 4321 & {ASLEEP}"


@pytest.fixture
def base() -> Iterator[Path]:
    """Control files and records of these tests alone."""
    path = Path(tempfile.mkdtemp(prefix="survival-", dir="/dev/shm"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A session's directory; not pytest's, which other users cannot pass through."""
    path = Path(tempfile.mkdtemp(prefix="survival-"))
    path.chmod(0o711)
    yield path
    for record in records.every(Bubblewrap().base):  # which a test that failed has left
        if Path(record.directory).is_relative_to(path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.reference.pid, signal.SIGKILL)
    shutil.rmtree(path, ignore_errors=True)


class Server:
    """A process that has started a sandbox."""

    def __init__(self, base: Path, directory: Path, where: str, *commands: str) -> None:
        arguments = [sys.executable, str(SERVER), str(base), str(directory), where, *commands]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        self.record = Record.from_json(self.line())

    def line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def wait(self) -> None:
        self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()


async def test_rest_of_the_output_and_exit_code_after_kill_of_the_server(base: Path, directory: Path) -> None:
    loop = "for i in {1..10}; do echo line $i; sleep 0.02; done"
    server = Server(base, directory, "", STATE, f"{loop}; touch /workspace/on; seq 1 30000; (exit 42)")
    server.line()
    server.kill()
    await eventually((directory / "workspace" / "on").exists)
    await asyncio.sleep(0.1)  # meanwhile the command fills its FIFO and waits

    sandbox = await Sandbox.attach(server.record, Bubblewrap(base=base))
    result = await sandbox.pending()

    assert result is not None
    assert result.exit_code == 42
    everything = "".join(f"line {i}\n" for i in range(1, 11)) + "".join(f"{i}\n" for i in range(1, 30001))
    assert result.kept + result.dropped == len(everything)
    kept = sandbox.output(result.number, limit=1024 * 1024)
    assert kept.text == everything
    after = await sandbox.run("echo $A $(f 2) $PWD; jobs")
    assert after.output.startswith("1 f2 /tmp\n")
    assert "sleep 4321" in after.output
    assert after.background == ("sleep 4321",)
    await sandbox.close()


async def test_output_is_not_lost_between_reading_and_keeping_it(base: Path, directory: Path) -> None:
    server = Server(base, directory, "having read", "true", "echo begin; sleep 0.1; echo end")
    server.wait()
    sandbox = await Sandbox.attach(server.record, Bubblewrap(base=base))
    result = await sandbox.pending()
    assert result is not None
    assert (result.output, result.notes) == ("begin\nend\n", ())
    await sandbox.close()


async def test_output_is_kept_on_a_file_system_that_the_kernel_cannot_move_it_to(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object, **__: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "splice", cannot)
    async with Sandbox(directory=directory, limits=Limits(output=100)) as sandbox:
        result = await sandbox.run("seq 30000")
        assert result.dropped
        kept = sandbox.output(result.number, limit=1024 * 1024)
        assert kept.text == "".join(f"{n}\n" for n in range(1, 30001))


LATE = "(echo begin; sleep 0.3; echo late) &"


@pytest.mark.parametrize("where", ["", "with errors apart"])
async def test_what_was_printed_while_nobody_was_there_is_kept(
    base: Path, directory: Path, where: str
) -> None:
    """By the command, whose output goes past what the first two hold, and by those two, which end meanwhile."""
    both = "echo begin; sleep 0.3; echo end; echo bad >&2; exec 1>&- 2>&-; touch /workspace/ended"
    server = Server(base, directory, where, LATE, LATE, both)
    server.line()
    server.kill()
    await eventually((directory / "workspace" / "ended").exists)
    sandbox = await Sandbox.attach(server.record, Bubblewrap(base=base))
    result = await sandbox.pending()
    assert result is not None
    assert result.exit_code == 0
    assert (result.output, result.errors) == (
        ("begin\nend\n", "bad\n") if where else ("begin\nend\nbad\n", "")
    )
    assert result.notes == ()
    logs = [directory / "output" / f"{number}.background" for number in (1, 2)]
    await eventually(lambda: all(log.exists() and "late" in log.read_text() for log in logs))
    assert (await sandbox.run("echo next")).output == "next\n"
    await sandbox.close()


@pytest.mark.parametrize(
    ("where", "end", "lost"),
    [
        ("before recording", "(exit 43)", False),
        ("before recording", "exit 43", False),
        ("before recording the shell", "exit 43", False),
        ("before recording the shell", "(sleep 0.01; kill -43 $$) & exec sleep 9", True),
    ],
)
async def test_exit_code_is_not_lost_between_reading_and_recording_it(
    base: Path, directory: Path, where: str, end: str, lost: bool
) -> None:
    server = Server(base, directory, where, STATE, "A=0; exit 0", "A=1", f"echo out; B=2; {end}")
    server.wait()
    sandbox = await Sandbox.attach(server.record, Bubblewrap(base=base))
    result = await sandbox.pending()
    assert result is not None
    assert (result.exit_code, result.output, result.cwd) == (171 if lost else 43, "out\n", "/tmp")
    assert (result.state_lost, result.notes) == (lost, ())
    assert (await sandbox.run("echo $A$B")).output == ("1\n" if lost else "12\n")
    await sandbox.close()


async def test_shell_that_died_while_nobody_was_there_comes_back(base: Path, directory: Path) -> None:
    server = Server(base, directory, "", STATE, "echo begin; sleep 0.2; B=2; exit 5")
    server.line()
    server.kill()
    keeper = server.record.reference.pid
    await eventually(lambda: not any("rcfile" in one.command for one in processes.below(keeper)))
    sandbox = await Sandbox.attach(server.record, Bubblewrap(base=base))
    result = await sandbox.pending()
    assert result is not None
    assert (result.exit_code, result.output, result.restarted) == (5, "begin\n", True)
    assert result.cwd == "/tmp"
    assert result.duration > 0.2, "from its own beginning, not from the attach"
    assert (await sandbox.run("echo $A $B $(f 3) $PWD")).output == "1 2 f3 /tmp\n"
    await sandbox.close()


async def test_deadline_holds_across_servers(base: Path, directory: Path) -> None:
    server = Server(base, directory, "with a deadline", STATE, "echo begin; sleep 77; echo NO")
    server.line()
    server.kill()
    sandbox = await Sandbox.attach(server.record, Bubblewrap(base=base))
    result = await sandbox.pending()
    assert result is not None
    assert result.timed_out
    assert result.killed == ("sleep 77",)
    assert result.output == "begin\n"
    assert (await sandbox.run("echo $A")).background == ("sleep 4321",)
    await sandbox.close()


async def test_a_session_has_one_owner(base: Path, directory: Path) -> None:
    server = Server(base, directory, "", "true", "echo begin; sleep 1; echo end")
    with pytest.raises(SandboxOwned):
        await Sandbox.attach(server.record, Bubblewrap(base=base))
    with pytest.raises(SandboxOwned):
        await Sandbox.restore(server.record, Bubblewrap(base=base))
    server.kill()
    sandbox = await Sandbox.attach(server.record, Bubblewrap(base=base))
    with pytest.raises(SandboxOwned):
        await Sandbox.attach(server.record, Bubblewrap(base=base))
    await sandbox.close()


async def test_sandboxes_with_providers_of_their_own_can_start_at_once(base: Path) -> None:
    sandboxes = [Sandbox(Bubblewrap(base=base)) for _ in range(4)]
    await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
    assert len({sandbox.capabilities for sandbox in sandboxes}) == 1
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))


HELD = """
import asyncio, os
from gofer_sandbox import Bubblewrap, Sandbox
async def main():
    async with Sandbox(Bubblewrap(use_cgroups=False)) as sandbox:
        fds = f"/proc/{sandbox.record.reference.pid}/fd"
        found = {os.readlink(f"{fds}/{fd}").rpartition("/")[2] for fd in os.listdir(fds)}
        print(*sorted(found & {"o1", "e1", "o2", "e2", "o3", "e3"}))
asyncio.run(main())
"""


def test_the_keeper_holds_every_output_however_few_files_its_server_has_open() -> None:
    """Its own descriptors are low numbers; what the server gives it must not be in their place."""
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", HELD], env=path, capture_output=True, text=True, check=True)
    assert done.stdout == "e1 e2 e3 o1 o2 o3\n"


class Shut:
    """A gate that does not open."""

    environment: Mapping[str, str] = {}

    async def open(self, reference: Reference) -> None:
        raise SandboxError(f"a process in {reference.pid} has taken the port")

    async def close(self) -> None:
        pass


async def test_an_attach_that_fails_leaves_the_session_for_another(base: Path, directory: Path) -> None:
    server = Server(base, directory, "", "true", "echo begin; sleep 1; echo end")
    server.line()
    server.kill()
    for bring in (Sandbox.attach, Sandbox.restore):
        with pytest.raises(SandboxError, match="taken the port"):
            await bring(server.record, Bubblewrap(base=base), gate=Shut())
    sandbox = await Sandbox.attach(server.record, Bubblewrap(base=base))
    result = await sandbox.pending()
    assert result
    assert result.output == "begin\nend\n"
    await sandbox.close()


@pytest.mark.parametrize("command", ["true", "sleep 1"])
async def test_what_prints_in_the_background_goes_on_with_another_server(
    base: Path, directory: Path, command: str
) -> None:
    """Nobody reads its FIFO meanwhile; then somebody must, and not the next command."""
    noise = "(while :; do printf '%50000s'; echo $((++n)) >/workspace/n; sleep 0.02; done) &"
    server = Server(base, directory, "", noise, command)
    count = directory / "workspace" / "n"
    await eventually(lambda: count.exists() and int(count.read_text() or 0) > 3)
    server.kill()
    before = ""
    while before != (before := count.read_text()) or not before:  # until it is waiting
        await asyncio.sleep(0.2)
    sandbox = await Sandbox.attach(server.record, Bubblewrap(base=base))
    await sandbox.pending()
    assert (await sandbox.run("sleep 0.1; echo quiet")).output == "quiet\n"
    await eventually(lambda: count.read_text() not in ("", before))
    await sandbox.close()


async def test_what_holds_its_output_does_not_use_up_the_server_s_descriptors(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "_HELD_AT_MOST", 4)
    provider = Bubblewrap()
    sandbox = Sandbox(provider, directory=directory)
    await sandbox.start()
    waiting = "(until [ -e /tmp/go ]; do sleep 0.01; done; echo late) &"
    for number in range(4):
        assert (await sandbox.run(f"{waiting} echo {number}")).output == f"{number}\n"
    before = _outputs_open(sandbox)
    assert before
    for number in range(4):
        assert (await sandbox.run(f"{waiting} echo {number}")).output == f"{number}\n"
    await eventually(lambda: _outputs_open(sandbox) == before)
    record = sandbox.record
    await sandbox.detach()
    sandbox = await Sandbox.attach(record, provider)
    assert (await sandbox.run("touch /tmp/go; wait; sleep 0.1; echo next")).output == "next\n"
    await sandbox.close()


async def test_detach_leaves_it_running(directory: Path) -> None:
    provider = Bubblewrap()
    first = Sandbox(provider, directory=directory)
    await first.start()
    await first.run(STATE)
    record = Record.from_json(first.record.to_json())
    assert record == first.record
    started = processes.child_of_ours(record.reference.pid)
    [live] = [fd for fd in os.listdir("/proc/self/fd") if _is_open(fd, directory / "live")]
    inherited = os.dup(int(live))  # as a process that is just being started has it
    await first.detach()
    with pytest.raises(SandboxClosed):
        await first.run("true")
    second = await Sandbox.attach(record, provider)
    assert await second.pending() is None
    assert (await second.run("echo $A $(f 1)")).output == "1 f1\n"
    assert second.record.last_command == 2
    await second.close()
    os.close(inherited)
    assert not Path(f"/proc/{started}").exists(), "who started it reaps it, though it let go of it before"
    with pytest.raises(SandboxGone):
        await Sandbox.attach(record, provider)


def _is_open(fd: str, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == str(path)
    except OSError:
        return False


async def test_a_shell_of_a_release_that_reported_by_a_file_goes_on(directory: Path) -> None:
    sandbox = Sandbox(directory=directory)
    await sandbox.start()
    record = sandbox.record
    await sandbox.detach()
    report = r"""\builtin printf '\0D%s%s %s %s\0' "$BASH_S" "$BASH_M" "$?" "by a file" >&0"""
    (Path(record.reference.control) / "d").write_text(report + "\n")
    sandbox = await Sandbox.attach(record)
    result = await sandbox.run("(exit 7)")
    assert (result.exit_code, result.cwd) == (7, "by a file")
    await sandbox.close()


async def test_another_session_in_the_same_directory_has_its_files_and_nothing_else_of_it(
    directory: Path,
) -> None:
    limits = Limits(output=100)
    async with Sandbox(directory=directory, limits=limits) as first:
        await first.run("A=1; echo file >file; yes old | head -n 1000")
    async with Sandbox(directory=directory, limits=limits) as second:
        assert (await second.run("cat file; echo $A; yes new | head -n 1000")).dropped
        assert second.output(1).text == "file\n\n" + "new\n" * 1000


async def test_a_report_that_went_to_a_server_that_died_is_missed_and_the_command_not_run_twice(
    directory: Path,
) -> None:
    """Only over FIFOs: what is on a socket stays there until it has been recorded."""
    provider = Unconfined()
    first = Sandbox(provider, directory=directory)
    await first.start()
    begun = asyncio.Event()
    command = "echo begun; sleep 0.1; echo once >>log; (exit 7)"
    running = asyncio.create_task(first.run(command, on_output=lambda *_: begun.set()))
    await begun.wait()
    record = first.record
    await first.detach()
    with pytest.raises(SandboxClosed):
        await running
    with open(f"{record.reference.control}/st", "rb", 0) as status:
        assert b"D1 7 " in status.read(100)  # as a server would that dies then
    second = await Sandbox.attach(record, provider)
    result = await second.pending()
    assert result is not None
    assert (result.exit_code, result.output) == (None, "begun\n")
    assert "how it ended is not known" in result.notes[0]
    assert (directory / "workspace" / "log").read_text() == "once\n"
    await second.close()


async def test_detach_and_close_before_a_command_was_given_to_the_shell(directory: Path) -> None:
    """It waits an instant when something has just been left in the background."""
    provider = Bubblewrap()
    sandbox = Sandbox(provider, directory=directory)
    await sandbox.start()
    record = sandbox.record
    await leave_as_a_command_begins(sandbox, sandbox.detach)
    sandbox = await Sandbox.attach(record, provider)
    await leave_as_a_command_begins(sandbox, sandbox.close)


async def leave_as_a_command_begins(sandbox: Sandbox, leave: Callable[[], Awaitable[None]]) -> None:
    await sandbox.run("sleep 4321 &")
    waiting = asyncio.create_task(sandbox.run("true"))
    await asyncio.sleep(0)
    await leave()
    with contextlib.suppress(SandboxClosed):
        assert (await waiting).ok  # on a busy machine that instant is over by then


async def test_detach_amid_a_command_that_waits_for_a_shell_that_leaves_no_snapshot(directory: Path) -> None:
    """Both wait for the shell at once: neither takes the other's news, nor waits for ever."""
    provider = Bubblewrap()
    sandbox = Sandbox(provider, directory=directory)
    await sandbox.start()
    for _ in range(5):  # in most of them the command waits until the background is older than the clock
        await sandbox.run("pkill sleep; sleep 4321 &")
        record, shell = sandbox.record, sandbox.shell
        assert shell
        os.kill(shell.pid, signal.SIGSTOP)
        waiting = asyncio.create_task(sandbox.run("true"))
        await asyncio.sleep(0)
        await sandbox.detach()
        with contextlib.suppress(SandboxClosed):
            assert (
                await asyncio.wait_for(waiting, patience(10))
            ).ok  # by the shell that took this one's place
        with contextlib.suppress(ProcessLookupError):
            os.kill(shell.pid, signal.SIGCONT)
        sandbox = await Sandbox.attach(record, provider)
        await sandbox.pending()
    await sandbox.close()


async def test_detach_and_close_in_the_middle_of_a_command(directory: Path) -> None:
    provider = Bubblewrap()
    first = Sandbox(provider, directory=directory)
    await first.start()
    begun = asyncio.Event()
    command = "echo begin; sleep 0.3; echo end; (exit 7)"
    running = asyncio.create_task(first.run(command, on_output=lambda *_: begun.set()))
    await begun.wait()
    record = first.record
    await first.detach()
    with pytest.raises(SandboxClosed):
        await running
    second = await Sandbox.attach(record, provider)
    assert (await second.run("echo next")).output == "next\n", "given before what was pending was asked for"
    result = await second.pending()
    assert result is not None
    assert (result.exit_code, result.output) == (7, "begin\nend\n")
    running = asyncio.create_task(second.run("sleep 60"))
    await asyncio.sleep(0.1)
    await second.detach()
    with pytest.raises(SandboxClosed):
        await running
    third = await Sandbox.attach(record, provider)
    pending = asyncio.create_task(third.pending())
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(third.close())
    await asyncio.sleep(0)
    closing.cancel()
    await third.close()
    with pytest.raises(SandboxClosed):
        await pending
    assert processes.start_time(record.reference.pid) != record.reference.start
    assert not Path(record.reference.control).exists()


async def test_state_reaches_the_next_shell_however_late_the_server_is(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_state = ControlWire.put_state

    def late(wire: ControlWire, state: bytes, options: bytes) -> None:
        time.sleep(0.02)
        put_state(wire, state, options)

    monkeypatch.setattr(ControlWire, "put_state", late)
    async with Sandbox(directory=directory) as sandbox:
        for number in range(5):
            await sandbox.run(f"N={number}; exit 3")
            assert (await sandbox.run("echo $N")).output == f"{number}\n"


async def test_a_lost_box_is_made_again_with_files_and_state(directory: Path) -> None:
    async with Sandbox(directory=directory) as sandbox:
        await sandbox.run(STATE)
        await sandbox.run("echo file >/workspace/file; export A=2")
        await sandbox.snapshot()
        keeper, shell = sandbox.record.reference.pid, sandbox.shell
        assert shell
        os.kill(keeper, signal.SIGKILL)
        await eventually(lambda: processes.start_time(keeper) is None)
        # Until the kernel has come to it, the shell may run a command.
        await eventually(lambda: processes.start_time(shell.pid) is None)
        result = await sandbox.run("echo no")
        assert (result.exit_code, result.recreated, result.state_lost) == (None, True, True)
        assert result.background_lost == ("sleep 4321",)
        after = await sandbox.run("echo $A $(f 1) $PWD $(cat /workspace/file)")
        assert after.output == "2 f1 /tmp file\n"
        assert not after.recreated


async def test_a_box_lost_in_the_middle_of_a_command(directory: Path) -> None:
    async with Sandbox(directory=directory) as sandbox:
        await sandbox.run(STATE)
        begun = asyncio.Event()
        running = asyncio.create_task(sandbox.run("echo begin; sleep 50", on_output=lambda *_: begun.set()))
        await begun.wait()
        os.kill(sandbox.record.reference.pid, signal.SIGKILL)
        result = await running
        assert (result.exit_code, result.recreated, result.output) == (None, True, "begin\n")
        assert (await sandbox.run("echo $A")).output == "1\n"


async def test_a_box_that_cannot_be_made_again_at_once_is_later_or_can_be_closed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Bubblewrap()
    sandbox = Sandbox(provider, directory=directory)
    await sandbox.start()
    await sandbox.run(STATE)
    await sandbox.snapshot()
    keeper = sandbox.record.reference.pid
    os.kill(keeper, signal.SIGKILL)
    await eventually(lambda: processes.start_time(keeper) is None)
    with monkeypatch.context() as patch:
        patch.setattr(provider, "start", _no_room)
        for _ in range(2):
            with pytest.raises(StartFailed):
                await sandbox.run("true")
    assert (await sandbox.run("true")).recreated
    assert (await sandbox.run("echo $A $PWD")).output == "1 /tmp\n"
    reference, make, being_made = sandbox.record.reference, provider.start, asyncio.Event()

    async def start(spec: Spec) -> Box:
        being_made.set()
        return await make(spec)

    monkeypatch.setattr(provider, "start", start)
    running = asyncio.create_task(sandbox.run("sleep 60"))
    os.kill(reference.pid, signal.SIGKILL)
    await being_made.wait()
    await sandbox.close()
    with pytest.raises(SandboxClosed):
        await running
    assert not Path(reference.control).exists()
    assert not any(
        str(directory) in processes.command_line(pid) for pid in processes.descendants(os.getpid())
    )


async def _no_room(spec: Spec) -> Box:
    raise StartFailed("no room")


async def test_after_a_reboot_files_and_state_come_back_and_the_loss_is_told(directory: Path) -> None:
    provider = Bubblewrap()
    sandbox = Sandbox(provider, directory=directory)
    await sandbox.start()
    await sandbox.run(STATE)
    await sandbox.run("echo file >/workspace/file; umask 077; set -o pipefail; alias x='echo al'")
    await sandbox.snapshot()
    record = replace(sandbox.record, reference=replace(sandbox.record.reference, boot="another"))
    os.kill(sandbox.record.reference.pid, signal.SIGKILL)
    await sandbox.detach()

    with pytest.raises(SandboxGone):
        await Sandbox.attach(record, provider)
    restored = await Sandbox.restore(record, provider)
    result = await restored.run("echo $A $(f 1) $PWD $(umask); x $(cat /workspace/file); false | true")
    assert result.output == "1 f1 /tmp 0077\nal file\n"
    assert result.exit_code == 1
    assert result.recreated
    assert result.background_lost == ("sleep 4321",)
    await restored.close()


async def test_a_command_that_ran_when_all_was_lost_is_unknown(base: Path, directory: Path) -> None:
    server = Server(base, directory, "", "A=1", "echo begin; sleep 60")
    server.line()
    server.kill()
    os.kill(server.record.reference.pid, signal.SIGKILL)
    restored = await Sandbox.restore(server.record, Bubblewrap(base=base))
    result = await restored.run("echo $A")
    assert result.output == "1\n"
    assert any("command 2 was running" in note and "unknown" in note for note in result.notes)
    await restored.close()


async def test_the_reaper_removes_what_a_crash_left_and_only_that(base: Path, directory: Path) -> None:
    provider = Bubblewrap(base=base)
    server = Server(base, directory, "", "true", "echo begin; sleep 60")
    async with Sandbox(provider) as owned:
        assert await reap(provider, keep=[], within=directory.parent) == []  # both have living owners
        server.kill()
        assert await reap(provider, keep=[server.record.id], within=directory.parent) == []
        assert await reap(provider, keep=[], within=directory.parent) == [server.record.id]
        assert processes.start_time(server.record.reference.pid) != server.record.reference.start
        assert not Path(server.record.reference.control).exists()
        assert directory.exists()
        assert (await owned.run("echo alive")).output == "alive\n"


async def test_a_session_left_behind_is_removed_though_another_has_begun_in_its_directory(
    base: Path, directory: Path
) -> None:
    provider = Bubblewrap(base=base)
    server = Server(base, directory, "", "true", "sleep 60")
    server.kill()
    left = server.record
    async with Sandbox(provider, directory=directory) as sandbox:
        assert await reap(provider, keep=[left.id], within=directory) == []
        with pytest.raises(SandboxOwned):
            await Sandbox.attach(left, provider)
        assert await reap(provider, keep=[], within=directory) == [left.id]
        assert processes.start_time(left.reference.pid) != left.reference.start
        assert await reap(provider, keep=[], within=directory) == []
        assert (await sandbox.run("echo alive")).output == "alive\n"
        await sandbox.detach()
        with pytest.raises(SandboxGone, match="another session"):
            await Sandbox.attach(left, provider)
        assert await reap(provider, keep=[], within=directory) == [sandbox.id]


async def test_another_program_s_session_survives_the_reaper(base: Path, directory: Path) -> None:
    provider = Bubblewrap(base=base)
    ours, theirs, alike = directory / "ours", directory / "theirs", directory / "ours-too"
    kept = []
    for place in (ours, theirs, alike):
        sandbox = Sandbox(provider, directory=place / "session")
        await sandbox.start()
        await sandbox.run(f"NAME={place.name}")
        kept.append(sandbox.record)
        await sandbox.detach()
    (directory / "link").symlink_to(ours)
    later = time.time() + 10**9
    assert await reap(provider, keep=[], within=directory / "link", now=later) == [kept[0].id]
    for record in kept[1:]:
        again = await Sandbox.attach(record, provider)
        assert (await again.run("echo $NAME")).output == f"{Path(record.directory).parent.name}\n"
        await again.close()


async def test_idle_sessions_expire(base: Path, directory: Path) -> None:
    provider = Bubblewrap(base=base)
    sandbox = Sandbox(provider, directory=directory, limits=Limits(idle=3600))
    await sandbox.start()
    record = sandbox.record
    await sandbox.detach()
    assert await reap(provider, keep=[record.id], within=directory, now=time.time() + 1800) == []
    assert await reap(provider, keep=[record.id], within=directory, now=time.time() + 7200) == [record.id]


async def test_a_reused_pid_is_left_alone(base: Path, directory: Path) -> None:
    provider = Bubblewrap(base=base)
    sandbox = Sandbox(provider, directory=directory)
    await sandbox.start()
    record = sandbox.record
    await sandbox.detach()
    os.kill(record.reference.pid, signal.SIGKILL)
    await asyncio.sleep(0.02)  # a start is told to a hundredth of a second; no number is used again so soon
    bystander = subprocess.Popen(["sleep", "60"])
    path = base / "records" / f"{record.id}.json"
    path.write_text(replace(record, reference=replace(record.reference, pid=bystander.pid)).to_json())
    assert await reap(provider, keep=[], within=directory) == [record.id]
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


async def test_a_record_of_something_else_is_refused(directory: Path) -> None:
    async with Sandbox(directory=directory) as sandbox:
        record = sandbox.record
    with pytest.raises(InvalidInput, match="not of bubblewrap"):
        await Sandbox.attach(replace(record, provider="docker"))
    with pytest.raises(SandboxGone, match="directory"):
        await Sandbox.restore(replace(record, directory=str(directory / "missing")))
    for text in ("", "{}", "[]", "null", '{"version": 1}', '{"version": 99, "id": "x"}', "\0"):
        with pytest.raises(InvalidInput):
            Record.from_json(text)


@pytest.mark.parametrize(
    ("what", "keeps_running"),
    [
        pytest.param("Shell.begin", True, id="before a shell is asked for"),
        pytest.param("provider.prepare", False, id="before the control files"),
    ],
)
async def test_what_a_crash_in_the_middle_of_a_start_left_is_removed(
    base: Path, directory: Path, what: str, keeps_running: bool
) -> None:
    script = f"""
import asyncio, os, sys
from pathlib import Path
from gofer_sandbox import Bubblewrap, Sandbox
from gofer_sandbox.session import Shell
from gofer_sandbox.bubblewrap import provider
{what} = lambda *_: os.kill(os.getpid(), 9)
asyncio.run(Sandbox(Bubblewrap(base=Path(sys.argv[1])), directory=sys.argv[2]).start())
"""
    subprocess.run([sys.executable, "-c", script, str(base), str(directory)], check=False)
    [record] = (base / "records").glob("*.json")
    session = record.stem
    assert (base / session).exists()
    await eventually(lambda: _started_with(base / session) is keeps_running)
    assert await reap(Bubblewrap(base=base), keep=[], within=directory) == [session]
    assert not (base / session).exists()
    assert not list((base / "uids").glob("*"))
    assert not [place for place, _, _ in os.walk("/sys/fs/cgroup") if place.endswith(session)]


def _started_with(control: Path) -> bool:
    """Whether a bubblewrap that was given this control directory runs."""
    return any(os.fsencode(control) in _content(place) for place in Path("/proc").glob("[0-9]*/cmdline"))


def _content(place: Path) -> bytes:
    """Of a process's file; nothing when it ends meanwhile."""
    try:
        return place.read_bytes()
    except OSError:
        return b""


async def test_output_nobody_could_keep_is_told(directory: Path) -> None:
    """More commands than the keeper holds FIFOs for have left something running that holds theirs."""
    first = Sandbox(Bubblewrap(), directory=directory)
    await first.start()
    for _ in range(3):
        await first.run("sleep 4321 &")
    second, result = await left_alone(first)
    assert (result.exit_code, result.output) == (0, "begin\n")
    assert ENDED_ALONE in result.notes
    assert (await second.run("pkill sleep; wait; echo next")).output == "next\n"
    third, result = await left_alone(second)
    assert (result.output, result.notes) == ("begin\nend\n", ())
    await third.close()


async def test_output_that_was_read_and_could_not_be_kept_is_told(directory: Path) -> None:
    provider = Bubblewrap()
    first = Sandbox(provider, directory=directory, limits=Limits(output=100, spool=1000))
    await first.start()
    seen = 0

    def see(_: int, data: bytes) -> None:
        nonlocal seen
        seen += len(data)

    running = asyncio.create_task(first.run("seq 5000; sleep 0.3; echo end", on_output=see))
    await eventually(lambda: seen == len("".join(f"{n}\n" for n in range(1, 5001))))
    record = first.record
    await first.detach()
    with pytest.raises(SandboxClosed):
        await running
    second = await Sandbox.attach(record, provider)
    result = await second.pending()
    assert result is not None
    assert (result.output[-4:], result.notes) == ("end\n", (UNCOUNTED,))
    await second.close()


async def left_alone(sandbox: Sandbox) -> tuple[Sandbox, Result]:
    """Let go of a sandbox while a command prints, and take it up again when it has ended."""
    begun, ended = asyncio.Event(), sandbox.workspace / "ended"
    ended.unlink(missing_ok=True)
    command = "echo begin; sleep 0.3; echo end; exec 1>&- 2>&-; touch /workspace/ended"
    running = asyncio.create_task(sandbox.run(command, on_output=lambda *_: begun.set()))
    await begun.wait()
    record = sandbox.record
    await sandbox.detach()
    with pytest.raises(SandboxClosed):
        await running
    await eventually(ended.exists)
    again = await Sandbox.attach(record, Bubblewrap())
    result = await again.pending()
    assert result is not None
    return again, result


async def test_state_that_went_with_a_shell_between_two_commands_is_told(directory: Path) -> None:
    async with Sandbox(directory=directory) as sandbox:
        await sandbox.run("A=1")
        await sandbox.snapshot()
        await sandbox.run("A=2")
        shell = sandbox.shell
        assert shell
        os.kill(shell.pid, signal.SIGKILL)  # before it is asked for what the command changed
        await eventually(lambda: sandbox.shell not in (shell, None))
        result = await sandbox.run("echo $A")
        assert (result.output, result.state_lost, result.background) == ("1\n", True, ())
        assert "before what the command before had changed was kept" in result.notes[0]
        assert not (await sandbox.run("exit 3")).state_lost


async def test_state_that_went_with_a_command_nobody_waited_for_is_told_with_the_next(
    directory: Path,
) -> None:
    async with Sandbox(directory=directory) as sandbox:
        await sandbox.run("A=1")
        shell = sandbox.shell
        assert shell
        running = asyncio.create_task(sandbox.run("A=2; exec sleep 60"))
        await eventually(lambda: processes.command_line(shell.pid) == "sleep 60")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        result = await sandbox.run("echo $A")
        assert (result.output, result.state_lost) == ("1\n", True)


async def test_a_shell_that_comes_up_while_a_command_is_ended_is_not_ended_with_it() -> None:
    provider = Bubblewrap()
    async with Sandbox(provider) as sandbox:
        before = await sandbox.run(f"sleep 4321 & {ASLEEP}; echo $$")
        box = await provider.find(sandbox.record)
        assert box
        ended = Process(2**22, 1, 0, "the one before")  # nothing has been heard of its end, nor of the next
        ladder = Ladder(box, lambda: ended, 0, set())
        assert [ladder.climb(), ladder.climb()] == [Step.ASK, Step.FORCE]
        assert list(ladder.killed.values()) == ["sleep 4321"]
        box.detach()
        assert (await sandbox.run("echo $$")).output == before.output


@pytest.mark.parametrize("pause", [0, 0.05], ids=["at once", "after a while"])
async def test_no_command_runs_twice_when_the_snapshot_before_it_could_not_be_reported(
    directory: Path, pause: float
) -> None:
    disable = "PROMPT_COMMAND='((++prompts == 2)) && enable -n printf'"
    async with Sandbox(directory=directory) as sandbox:
        await sandbox.run(disable)  # takes effect after its report
        if pause:  # the snapshot is not asked for with the command then
            await asyncio.sleep(pause)
        result = await sandbox.run("echo once >>/workspace/log")
        assert result.exit_code is None
        assert (sandbox.workspace / "log").read_text() == "once\n"


async def test_no_variable_of_the_caller_s_keeps_the_shell_from_coming_up(directory: Path) -> None:
    (directory / "workspace").mkdir()
    (directory / "workspace" / "ends").write_text("exit 9\n")
    environment = {"PATH": "/nowhere", "BASH_ENV": "/workspace/ends"}
    async with Sandbox(directory=directory, environment=environment) as sandbox:
        assert (await sandbox.run("echo $PATH")).output == "/nowhere\n"
        assert (await sandbox.run("/bin/bash -c true")).exit_code == 9


async def test_a_shell_does_not_end_by_itself_because_nothing_was_asked_of_it_for_a_while() -> None:
    async with Sandbox() as sandbox:
        before = await sandbox.run("TMOUT=1; echo $$")
        await asyncio.sleep(1.2)
        assert (await sandbox.run("echo $$")).output == before.output
        await sandbox.run(f"shopt -s checkjobs; sleep 4321 & {ASLEEP}; readonly TMOUT=1; A=1")
        after = await sandbox.run("echo $A ${TMOUT-none}")
        assert (after.output, after.background) == ("1 none\n", ("sleep 4321",))


SIGNALS_AMID_DEATH = """python3 - <<'END' &
import os, signal, time
shell, began = os.getppid(), time.monotonic()
while time.monotonic() < began + 0.1:
    os.kill(1, signal.SIGUSR1)
    if shell and time.monotonic() > began + 0.02:
        os.kill(shell, signal.SIGKILL)
        shell = 0
END
sleep 30"""


async def test_signals_to_the_keeper_while_its_shell_dies_do_not_lose_the_end_of_the_shell() -> None:
    async with Sandbox() as sandbox:
        for _ in range(25):
            result = await sandbox.run(SIGNALS_AMID_DEATH, timeout=30)
            assert (result.exit_code, result.restarted, result.recreated) == (137, True, False)


async def test_the_keeper_of_a_stopped_shell_sleeps() -> None:
    async with Sandbox() as sandbox:
        keeper = Path(f"/proc/{sandbox.record.reference.pid}/stat")
        before = keeper.read_text().split()[13:15]
        result = await sandbox.run("kill -STOP $$; echo on", timeout=1)
        assert result.timed_out
        after = keeper.read_text().split()[13:15]
        assert sum(map(int, after)) - sum(map(int, before)) < 10  # hundredths of a second


@pytest.mark.parametrize("survives", [True, False])
async def test_bubblewrap_s_own_process_ends_once_the_shell_is_up_unless_it_has_to_end_the_rest(
    survives: bool,
) -> None:
    sandbox = Sandbox(Bubblewrap(), survives=survives)
    await sandbox.start()
    keeper = sandbox.record.reference.pid
    if survives:
        await eventually(lambda: (processes.stat(keeper) or (0,))[0] == os.getpid())
    assert (await sandbox.run("sleep 0.1; echo on")).output == "on\n"
    assert ((processes.stat(keeper) or (0,))[0] == os.getpid()) == survives
    await sandbox.close()
    assert not Path(f"/proc/{keeper}").exists(), "not even a zombie"


def test_a_keeper_whose_shell_died_ends_when_no_server_answers(directory: Path) -> None:
    for name in scripts.OUTPUTS:
        os.mkfifo(directory / name)
    (directory / "rc").touch()
    ours, theirs = socket.socketpair()
    channel = scripts.Channel(str(directory), theirs.fileno(), ours.fileno())
    for name, script in scripts.keeper(Limits(), None, None, channel).items():
        hurried = script.replace("waited < 60 ? 1 : 600", "1").replace("60 + 144", "2")
        (directory / name).write_text(hurried)
    command = ["bash", *scripts.KEEPER_OPTIONS, str(directory / "keeper")]
    keeper = subprocess.Popen(command, pass_fds=(ours.fileno(), theirs.fileno()))
    theirs.close()
    try:
        with ours:
            ours.send(b": 0\n")
            shell = int(ours.recv(100).strip(b"\0S"))
            os.kill(shell, signal.SIGKILL)
            assert ours.recv(100) == b"\0X1 137 \0"
        keeper.wait(patience(10))
    finally:
        keeper.kill()
        keeper.wait()


def _outputs_open(sandbox: Sandbox) -> int:
    """How many descriptors of output FIFOs this process has; a look at the disk opens other files meanwhile."""
    control = sandbox.record.reference.control
    return sum(path.startswith(f"{control}/o") for path in processes.open_files(os.getpid()))
