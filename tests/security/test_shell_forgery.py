"""What an earlier command left running tries to make a later one report something else, not run, or run twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gofer_sandbox import Bubblewrap, Sandbox, processes
from gofer_sandbox.shell import scripts
from support.patience import eventually, patience

PYTHON = Path("/usr/bin/python3").exists()
needs_python = pytest.mark.skipif(not PYTHON, reason="needs the system's Python inside")

CHANNEL = "for f in 10 11 12; do [ -S /dev/fd/$f ] && c=$f; done"
"""Where bash keeps the shell's channel while a command runs; a subshell inherits it."""


def left_running(python: str, fifo: str = "st") -> str:
    """A command that leaves a process that has a copy of the channel as its standard input; or the FIFO, where the
    shell had one with a name before it had a socket."""
    named = f"[ ${{c-}} ] || {{ exec 20<>/run/s/{fifo}; c=20; }}"
    return f"{CHANNEL}; {named}; cat >/tmp/left.py <<'END'\n{python}\nEND\npython3 /tmp/left.py <&$c >/dev/null 2>&1 &"


FORGES_ENDS = """
import os, time
while True:
    for number in range(1, 60):
        os.write(0, b"\\0D%d 0 /workspace\\0" % number)
    time.sleep(0.0005)
"""
FORGES_DEATHS = """
import os, time
while True:
    for number in range(1, 9):
        os.write(0, b"\\0X%d 0 \\0X%d 0 BASH_S= BASH_N=9\\0S2\\0R2\\n\\n/\\0" % (number, number))
    time.sleep(0.0005)
"""
TAKES_LINES = """
import os
for _ in range(3): os.read(0, 1024)
"""
TAKES_BEGINNINGS = """
import socket
channel = socket.socket(fileno=0)
while True: channel.recv(7)
"""
TAKES_BY_ORPHANS = """
import os, time
while True:
    if os.fork() == 0:
        if os.fork() == 0: os.read(0, 1024)
        os._exit(0)
    os.wait()
    time.sleep(0.02)
"""
FILLS = """
import os
while True: os.write(0, b"x" * 60000)
"""
CLOSES = """
import socket, time
time.sleep(0.3)
socket.socket(fileno=0).shutdown(socket.SHUT_RD)
"""
STATE = """
import os, time
state = b"\\0Ui/\\0O\\0T\\0L\\0A\\0Fprintf () { :; }\\n\\0V\\0E\\0"
while True:
    os.write(0, state)
    time.sleep(0.001)
"""


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox(Bubblewrap()) as started:
        yield started


@needs_python
@pytest.mark.parametrize("forger", [FORGES_ENDS, FORGES_DEATHS], ids=["ends", "deaths"])
async def test_results_are_right_beside_a_process_that_forges_them(sandbox: Sandbox, forger: str) -> None:
    await sandbox.run(left_running(forger))
    for number in range(12):
        result = await sandbox.run(f"echo {number} >>log; sleep 0.005; (exit {number + 1})")
        assert result.exit_code == number + 1, result
    assert (sandbox.workspace / "log").read_text() == "".join(f"{number}\n" for number in range(12))


@needs_python
async def test_no_command_is_lost_or_run_twice_while_shells_end_beside_a_forger(sandbox: Sandbox) -> None:
    await sandbox.run(left_running(FORGES_DEATHS))
    for number in range(6):
        assert (await sandbox.run(f"echo {number} >>log; exit 5")).exit_code == 5
        assert (await sandbox.run("kill -9 $$")).exit_code == 137
    assert (sandbox.workspace / "log").read_text() == "".join(f"{number}\n" for number in range(6))


@needs_python
async def test_who_goes_on_forging_is_ended_and_that_is_told(sandbox: Sandbox) -> None:
    await sandbox.run(left_running(FORGES_ENDS))
    notes: list[str] = []
    for _ in range(50):
        result = await sandbox.run("sleep 0.05")
        notes += result.notes
        if not result.background:
            notes += (await sandbox.run("true")).notes  # it may have ended after its last command did
            break
    assert result.background == ()
    assert any("in the shell's name" in note for note in notes)


@needs_python
@pytest.mark.parametrize(
    "taker", [TAKES_LINES, TAKES_BEGINNINGS, TAKES_BY_ORPHANS], ids=["lines", "beginnings", "orphans"]
)
async def test_what_is_taken_from_the_shell_is_noticed_and_nothing_runs_twice(
    sandbox: Sandbox, taker: str
) -> None:
    Path(sandbox.workspace, "s").mkdir()
    for name in (
        "c0",
        "c1",
        "s/c0",
        "s/c1",
        "d",
        "builtin",
    ):  # what is left of a line runs no file of theirs in the shell
        Path(sandbox.workspace, name).write_text("#!/bin/sh\nBASH_N=99; echo evil >>/workspace/evil.log\n")
        Path(sandbox.workspace, name).chmod(0o755)
    await sandbox.run(left_running(taker, "in"))
    for number in range(5):
        result = await sandbox.run(f"echo {number} >>log; (exit 3)", timeout=patience(20))
        assert result.exit_code == 3 or (result.exit_code is None and result.notes), result
    ran = (sandbox.workspace / "log").read_text().split()
    assert len(ran) == len(set(ran)), "none ran twice"
    assert ran == [str(number) for number in range(5)]


@needs_python
@pytest.mark.parametrize("left", ["/c$((", "((", '" <'], ids=["word", "arithmetic", "quote"])
async def test_a_quote_that_the_rest_of_a_line_opens_swallows_nothing(sandbox: Sandbox, left: str) -> None:
    """Every time the lines are given again, their own two quotes would leave it open."""
    await sandbox.run("true")
    lines = scripts.ask() + scripts.run(9, 0, ["o1"])
    take = f"import socket; socket.socket(fileno=0).recv({lines.index(left.encode())})"
    for _ in range(2):
        await sandbox.run(f"{left_running(take)} sleep 0.1")
        result = await sandbox.run("echo ran >>log; (exit 7)", timeout=patience(20))
        assert (result.exit_code, result.restarted) == (7, False), result
    assert (sandbox.workspace / "log").read_text() == "ran\n" * 2


@needs_python
async def test_the_channel_cannot_be_told_to_hold_back_what_the_shell_is_told(sandbox: Sandbox) -> None:
    hold_back = "import socket; socket.socket(fileno=0).setsockopt(1, socket.SO_RCVLOWAT, 1 << 20)"
    await sandbox.run(f"{left_running(hold_back)} wait")
    for number in range(3):
        result = await sandbox.run(f"echo {number}")
        assert (result.output, result.restarted) == (f"{number}\n", False)


async def test_a_command_that_a_stopped_shell_has_not_read_is_given_to_the_next(sandbox: Sandbox) -> None:
    shell = sandbox.shell
    assert shell
    os.kill(shell.pid, signal.SIGSTOP)
    result = await sandbox.run("echo ran >>log; exit 3", timeout=patience(20))
    assert (result.exit_code, result.restarted, result.recreated) == (3, True, False)
    assert (sandbox.workspace / "log").read_text() == "ran\n"


@pytest.mark.parametrize(
    "change",
    ["BASH_M=99", "BASH_N=99", "readonly BASH_M", "readonly BASH_N", "readonly BASH_N BASH_M BASH_S"],
)
async def test_what_a_command_does_to_the_shell_s_count_falsifies_no_later_one(
    sandbox: Sandbox, change: str
) -> None:
    await sandbox.run(change, timeout=patience(20))
    result = await sandbox.run("echo ran >>log; (exit 3)", timeout=patience(20))
    ran = Path(sandbox.workspace, "log")
    if result.exit_code == 3:
        assert ran.read_text() == "ran\n"
    else:
        assert result.exit_code is None
        assert result.notes
        assert not ran.exists()
    assert (await sandbox.run("echo on")).output == "on\n"


@needs_python
async def test_a_full_channel_holds_neither_the_command_nor_the_server(sandbox: Sandbox) -> None:
    async with Sandbox(Bubblewrap()) as other:
        await sandbox.run(left_running(FILLS))
        longest, until = 0.0, time.monotonic() + 1
        running = asyncio.create_task(sandbox.run("sleep 0.1; (exit 9)", timeout=patience(20)))
        while time.monotonic() < until:
            began = time.monotonic()
            assert (await other.run("echo on")).output == "on\n"
            longest = max(longest, time.monotonic() - began)
        assert (await running).exit_code == 9
        assert longest < 1


@needs_python
@pytest.mark.parametrize("frame", ["Ui/\\0E", "", "R1", "D1 0 /", "X1 0 ", "S1", "V"])
async def test_a_shell_that_floods_its_channel_keeps_nobody_waiting(frame: str) -> None:
    """A command has the shell itself say the same thing thousands of times. No step of the server's loop takes more of
    the processor than counting to 120,000 does, which is less than the 5 ms that are promised; in the best of three
    tries, since something else may have the caches."""
    worst = []
    for _ in range(3):
        async with Sandbox(Bubblewrap()) as sandbox:
            steps = asyncio.create_task(longest_step())
            await asyncio.sleep(0)
            flood = f"printf '\\0{frame}%.0s' {{1..9000}} >&$c"
            result = await sandbox.run(f"{CHANNEL}; {flood}; (exit 7)", timeout=60)
            steps.cancel()
            worst.append(await steps)
            assert result.exit_code == (0 if frame.startswith("D") else 7)  # it can forge its own end
            assert not result.timed_out
            assert not result.state_lost
            assert (await sandbox.run("echo ran >>runs; sleep 0.2; (exit 3)")).exit_code == 3
            assert (await sandbox.run("cat runs")).output == "ran\n"
        began = time.thread_time()
        assert sum([number + 1 for number in range(120_000)])
        if worst[-1] < time.thread_time() - began:
            return
    pytest.fail(f"the loop was kept for {worst} seconds")


async def longest_step() -> float:
    """The most processor time that the loop's thread needs from one turn to the next, until this is cancelled."""
    longest = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)
    return longest


@pytest.mark.parametrize(
    "noise", ["PROMPT_COMMAND='seq 2000'", "trap 'seq 20' DEBUG", "trap 'echo R1; echo D9' DEBUG"]
)
async def test_what_a_shell_prints_between_commands_is_no_report(sandbox: Sandbox, noise: str) -> None:
    await sandbox.run(noise)
    assert [(await sandbox.run(f"(exit {number})")).exit_code for number in range(1, 6)] == [1, 2, 3, 4, 5]
    result = await sandbox.run("x=kept; kill -KILL $$")
    assert result.restarted
    assert (await sandbox.run("(exit 4)")).exit_code == 4


async def test_a_forged_state_does_not_reach_the_next_shell(sandbox: Sandbox) -> None:
    await sandbox.run("A=1")
    await sandbox.run(left_running(STATE))
    await asyncio.sleep(0.1)
    assert (await sandbox.run("kill -9 $$")).restarted
    assert (await sandbox.run("declare -F; echo $A")).output == "declare -fr gofer_report\n1\n"


@needs_python
async def test_limits_of_the_shell_cannot_be_lowered_by_another_process(sandbox: Sandbox) -> None:
    """With few descriptors it could not open the command's file, and would report that as the command's end."""
    lower = "import resource, sys; resource.prlimit(int(sys.argv[1]), resource.RLIMIT_NOFILE, (4, 1000))"
    own = (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)); print(resource.prlimit(1, resource.RLIMIT_CORE))"
    )
    await sandbox.run(f"python3 -c '{lower}' $$ 2>refused & wait")
    assert (await sandbox.run("cat refused; (exit 7)")).exit_code == 7
    assert "PermissionError" in (sandbox.workspace / "refused").read_text()
    assert (await sandbox.run(f"python3 -c 'import resource; {own}'")).output == "(0, 0)\n"
    assert (await sandbox.run("ulimit -Sn 100; (exit 7)")).exit_code == 7


@needs_python
async def test_no_lease_makes_the_server_wait_for_a_file(sandbox: Sandbox) -> None:
    lease = 'import fcntl; fcntl.fcntl(open("held"), fcntl.F_SETLEASE, fcntl.F_RDLCK)'
    assert "Invalid argument" in (await sandbox.run(f"touch held; python3 -c '{lease}'")).output


async def test_who_can_write_into_a_later_output_is_named(sandbox: Sandbox) -> None:
    await sandbox.run("(exec 7<>/run/s/o1 8<>/run/s/o2 9<>/run/s/o3; exec sleep 4321) >/dev/null 2>&1 &")
    await eventually(lambda: sandbox.record.background != ())
    notes = [note for _ in range(3) for note in (await sandbox.run("sleep 0.02")).notes]
    assert any("has this output open, too: sleep 4321" in note for note in notes)
    assert (await sandbox.run("echo on")).notes == (), "there are other outputs"


async def test_a_stopped_shell_times_out_and_is_woken(sandbox: Sandbox) -> None:
    await sandbox.run("(sleep 0.2; kill -STOP $$; sleep 60) &")
    shell = sandbox.shell
    assert shell
    await eventually(lambda: " T " in Path(f"/proc/{shell.pid}/stat").read_text())
    assert (await sandbox.run("echo on", timeout=0.5)).timed_out
    assert (await sandbox.run("echo on")).output == "on\n"


async def test_a_channel_that_is_closed_for_all_costs_the_session_its_processes_and_nothing_else() -> None:
    async with Sandbox(Bubblewrap()) as sandbox:
        await sandbox.run("A=1")
        await sandbox.snapshot()
        close = "import socket, time; time.sleep(0.1); socket.socket(fileno=0).shutdown(2)"
        await sandbox.run(left_running(close))
        result = await sandbox.run("sleep 5")
        assert (result.exit_code, result.recreated) == (None, True)
        assert (await sandbox.run("echo $A")).output == "1\n"


@needs_python
async def test_the_keeper_cannot_be_robbed_of_the_server_s_end(sandbox: Sandbox) -> None:
    """Whoever had that could give the shell commands."""
    steal = """python3 -c '
import ctypes, os
print(ctypes.CDLL(None, use_errno=True).syscall(438, os.pidfd_open(1), 9, 0), ctypes.get_errno())
try: open("/proc/1/fd/9")
except OSError as error: print(error.errno)'"""
    assert (await sandbox.run(steal)).output == "-1 1\n6\n"


async def test_what_a_command_does_in_the_shell_itself_is_the_limit(sandbox: Sandbox) -> None:
    """Not a promise: the shell is the command's own. A function of that name answers for every later command until the
    shell is replaced."""
    await sandbox.run(
        'builtin() { [[ $1 == printf ]] && set -- printf "$2" "$3" "$4" 0 "$6"; command builtin "$@"; }'
    )
    assert (await sandbox.run("(exit 7)")).exit_code == 0
    shell = sandbox.shell
    assert shell
    os.kill(shell.pid, signal.SIGKILL)
    await eventually(lambda: sandbox.shell not in (shell, None))
    assert processes.start_time(shell.pid) != shell.start


@needs_python
async def test_ptrace_of_the_shell_is_the_limit_where_the_machine_allows_it(sandbox: Sandbox) -> None:
    """Not a promise: what traces the shell, or writes to its memory, can have it say anything. Yama refuses both."""
    trace = """python3 -c '
import ctypes, os, sys
libc, shell = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
print(libc.ptrace(0x4206, shell, None, None), ctypes.get_errno())
try: print(os.open(f"/proc/{shell}/mem", os.O_RDWR) > 0)
except OSError as error: print(error.errno)' $$"""
    yama = Path("/proc/sys/kernel/yama/ptrace_scope")
    allowed = not yama.exists() or yama.read_text() == "0\n"
    assert (await sandbox.run(trace)).output == ("0 0\nTrue\n" if allowed else "-1 1\n13\n")


@needs_python
async def test_a_command_whose_shell_was_closed_before_it_began_has_no_exit_code(sandbox: Sandbox) -> None:
    """The shell ends at the end of its lines, and with 0, which is not how the command ended."""
    await sandbox.run(left_running(CLOSES))
    assert (await sandbox.run("sleep 0.8; (exit 7)")).exit_code == 7
    result = await sandbox.run("touch ran; (exit 9)")
    assert (result.exit_code, result.ok, result.recreated) == (None, False, True)
    assert any("whether the command ran is not known" in note for note in result.notes)
    assert "ran" not in (await sandbox.run("ls")).output.split()
