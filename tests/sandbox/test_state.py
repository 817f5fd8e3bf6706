"""Snapshots taken apart, and the filter's decisions on both machines, without a sandbox."""

from __future__ import annotations

import re
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gofer_sandbox.bubblewrap import seccomp
from gofer_sandbox.shell import frames
from gofer_sandbox.shell.state import MAXIMUM, Snapshot, kept
from support.patience import until

VARIABLES = b"""declare -- A="one
declare -x TMOUT=\\"5\\"
three"
declare -ar BASH_VERSINFO=([0]="5")
declare -x TMOUT="1"
declare -- B=$'it\\'s\\ndeclare -- C="x"'
declare -ir UID="1000"
declare -x PROMPT_COMMAND="sleep 1"
declare -a ARR=([0]="a b" [1]=$'c\\nd')
declare -x EMPTY
declare -x OLDPWD="/old"
declare -- PS1=""
"""


LETTERS = {
    "cwd": b"Ui",
    "options": b"O",
    "settings": b"T",
    "aliases": b"A",
    "functions": b"F",
    "variables": b"V",
}


def snapshot(**parts: bytes) -> bytes:
    """What a shell writes."""
    values = {
        "cwd": b"/tmp",
        "options": b"",
        "settings": b"",
        "aliases": b"",
        "functions": b"",
        "variables": b"",
    }
    values |= parts
    return b"\0" + b"\0".join(LETTERS[name] + value for name, value in values.items()) + b"\0E\0"


def heard(data: bytes) -> frames.Snapped:
    """The same as it comes in, in pieces of any size."""
    decoder = frames.Decoder()
    pieces = [data[start : start + 5000] for start in range(0, len(data), 5000)]
    [found] = [frame for piece in pieces for frame in decoder.feed(piece)]
    assert isinstance(found, frames.Snapped)
    return found


def test_only_what_may_be_restored_is() -> None:
    parsed = Snapshot.read(snapshot(variables=VARIABLES, cwd=b"/it's"))
    assert parsed
    state = parsed.state("/workspace").decode()
    assert 'declare -- A="one\ndeclare -x TMOUT=\\"5\\"\nthree"\n' in state
    assert "declare -- B=$'it\\'s\\ndeclare -- C=\"x\"'\n" in state
    assert "declare -a ARR=" in state
    assert "declare -x EMPTY\n" in state
    for unwanted in ('TMOUT="1"', "BASH_VERSINFO", "UID", "PROMPT_COMMAND", "PS1"):
        assert unwanted not in state
    assert state.index("cd -- '/it'\\''s'") < state.index("OLDPWD")


@pytest.mark.parametrize(
    "forged",
    [
        b"declare -- a=",
        b'declare -- a="',
        b"declare -- a=$'",
        b"declare -- a='\n",
        b"\n",
        b'declare -- %d="1"\n',
        b'declare -- a="\\"',
    ],
)
@pytest.mark.parametrize("size", [MAXIMUM, frames.ROOM, 15_000_000])
def test_a_forged_snapshot_keeps_nobody_waiting(forged: bytes, size: int) -> None:
    """All of a server's sessions wait for one step: taking a piece in, keeping what there is room for, giving it to the
    next shell. No step takes more of the processor than counting to 80,000 does, which is less than the
    5 ms that are promised."""
    lines = [forged % number if b"%d" in forged else forged for number in range(9999)]
    variables = (b"declare -- A=1\n" + b"".join(lines) * (size // len(b"".join(lines)) + 1))[:size]
    data = snapshot(variables=variables, options=b"a:" * 9_999)
    pieces = [data[start : start + 64 * 1024] for start in range(0, len(data), 64 * 1024)]
    decoder, frame = frames.Decoder(), None
    for piece in pieces:
        frame = next(iter(decoder.feed(piece)), frame)
    assert isinstance(frame, frames.Snapped)
    assert bool(frame.cut) == (size > frames.ROOM - 20_000)
    found = kept(frame, None)
    assert found
    assert found.size <= MAXIMUM
    assert b"declare -- A=1\n" in found.state("/workspace")
    steps = (
        lambda: list(frames.Decoder().feed(pieces[0])),
        lambda: kept(frame, found),
        lambda: found.state("/workspace"),
    )

    def counting() -> object:
        return [number + 1 for number in range(80_000)]

    # Others may have the caches to themselves while it is looked.
    until(lambda: max(map(processor_time, steps)) < processor_time(counting), within=5)


def processor_time(step: Callable[[], object]) -> float:
    """Of this thread alone, and the least of several tries: what else the machine does is not counted."""
    times = []
    for _ in range(5):
        began = time.thread_time()
        step()
        times.append(time.thread_time() - began)
    return min(times)


def test_what_takes_too_long_to_look_at_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = b"".join(b'declare -- V%d="%b"\n' % (i, b"x" * 100) for i in range(600))
    parsed = heard(snapshot(cwd=b"/home", aliases=b"alias a='b'\n", variables=variables))
    found = kept(parsed, None)
    assert found
    assert found.dropped[0].startswith("V")
    monkeypatch.setattr("gofer_sandbox.shell.state._DEADLINE", 0.0)
    late = kept(parsed, None)
    assert late == replace(found, variables=b"", dropped=("further variables",))


def test_options_that_would_end_the_next_shell_are_left_out() -> None:
    parsed = Snapshot.read(
        snapshot(options=b"errexit:hashall:onecmd:noexec:monitor:rm -rf /:interactive-comments")
    )
    assert parsed
    assert parsed.option_lines() == (
        b"\\builtin set +o braceexpand\n\\builtin set -o errexit\n\\builtin set -o hashall\n"
        b"\\builtin set -o interactive-comments\n"
    )


def test_a_forged_mask_or_option_is_no_script() -> None:
    parsed = Snapshot.read(snapshot(settings=b"extglob:a;b:$(c):nullglob\n0022; rm -rf /\n"))
    assert parsed
    assert b"shopt -s extglob nullglob 2>/dev/null\n" in parsed.state("/")
    assert b"umask" not in parsed.state("/")


@pytest.mark.parametrize("data", [b"", b"U", b"\0U/tmp\0", snapshot()[:-2], b"X" + snapshot()[2:], b"\0" * 6])
def test_half_a_snapshot_is_none(data: bytes) -> None:
    assert Snapshot.read(data) is None


def test_what_is_cut_off_spoils_nothing_after_it() -> None:
    decoder = frames.Decoder()
    half = snapshot(variables=b'declare -- A="1"\n')[:-10]
    found = list(decoder.feed(half + b"\0D7 130 /a\0" + snapshot()))
    assert [type(one) for one in found] == [frames.Done, frames.Snapped]


LARGE = b"a" * MAXIMUM
BEFORE = Snapshot(functions=b"f () { old }\n", variables=b'declare -- B="1"\ndeclare -- Z="26"\n')
VARIABLES_KEPT = b'declare -- B="2"\ndeclare -- X="%b"\ndeclare -- Y="25"\n'
DECLARED = b'declare -- %b="%b"\n'


@pytest.mark.parametrize(
    ("parts", "functions", "variables", "dropped"),
    [
        pytest.param(
            {"functions": b"f () { new }\n", "variables": VARIABLES_KEPT % LARGE},
            b"new",
            {b"B": b"2", b"Y": b"25"},
            ("X",),
            id="too large",
        ),
        pytest.param(
            {"functions": b"f () { new }\n", "variables": VARIABLES_KEPT % (LARGE * 5)},
            b"new",
            {b"B": b"2", b"Z": b"26"},
            ("X", "further variables"),
            id="cut in a variable",
        ),
        pytest.param(
            {"functions": b"f () { new }\n" + LARGE * 5, "variables": VARIABLES_KEPT % b""},
            b"old",
            {b"B": b"1", b"Z": b"26"},
            ("functions", "further variables"),
            id="cut in a function",
        ),
        pytest.param(
            {"functions": b"new" + LARGE, "variables": b'declare -- B="2"\n'},
            b"",
            {b"B": b"2"},
            ("functions",),
            id="too large a function",
        ),
    ],
)
def test_what_there_is_room_for_is_kept_and_the_rest_is_named(
    parts: dict[str, bytes], functions: bytes, variables: dict[bytes, bytes], dropped: tuple[str, ...]
) -> None:
    found = kept(heard(snapshot(cwd=b"/new", **parts)), BEFORE)
    assert found
    assert found.cwd == b"/new"
    assert functions in found.functions
    assert found.variables == b"".join(DECLARED % one for one in variables.items())
    assert found.dropped == dropped
    assert Snapshot.read(replace(found, after=7).data()) == replace(found, after=7)


def test_a_shell_can_be_repaired() -> None:
    variables = b'declare -rx PATH="/nope"\ndeclare -r IFS="r"\ndeclare -r R="-r"\ndeclare -ar A=()\n'
    parsed = Snapshot.read(snapshot(variables=variables))
    assert parsed
    state = parsed.state("/")
    for line in (
        b'declare -x PATH="/nope"',
        b'declare -- IFS="r"',
        b'declare -r R="-r"',
        b"declare -ar A=()",
    ):
        assert line + b"\n" in state


@pytest.mark.parametrize(
    "data", [b"", b"D", b"D1", b"D1 x /", b"Dx 1 /", b"X1", b"Rx", b"P", b"S", b"Sx", b"Q", b"D1 2"]
)
def test_garbage_is_no_frame(data: bytes) -> None:
    assert frames.parse(data) is None


def test_frames() -> None:
    assert frames.parse(b"D7 130 /a b\nc") == frames.Done(7, 130, "/a b\nc")
    assert frames.parse(b"D-7 0 /") == frames.Done(-7, 0, "/")
    assert frames.parse(b"X2 9 line") == frames.Died(2, 9, b"line")
    assert frames.parse(b"R12") == frames.Ready(12)
    assert frames.parse(b"R12\nopen files 9\n\n/a b\n\nc") == frames.Ready(12, "/a b\n\nc", b"open files 9")
    assert frames.parse(b"S12") == frames.Started(12)


ALLOWED, REFUSED, KILLED = "allowed", "refused", "killed"


def decide(machine: str, number: int, *arguments: int, audit: int | None = None) -> str:
    """Run the filter as the kernel would."""
    program = seccomp.program(machine)
    assert program
    code = [struct.unpack("HBBI", program[i : i + 8]) for i in range(0, len(program), 8)]
    values = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<IIQ6Q", number, audit or seccomp.MACHINES[machine].audit, 0, *values)
    register, at = 0, 0
    while True:
        operation, true, false, value = code[at]
        at += 1
        if operation == 0x20:
            register = struct.unpack_from("<I", data, value)[0]
        elif operation == 0x06:
            return {0x7FFF: ALLOWED, 0x0005: REFUSED, 0x8000: KILLED}[value >> 16]
        else:
            test = {0x15: register == value, 0x35: register >= value, 0x45: bool(register & value)}[operation]
            at += true if test else false


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_the_filter_decides_the_same_on_both_machines(machine: str) -> None:
    known = seccomp.MACHINES[machine]
    for number in (*known.refused.values(), *seccomp.REFUSED_EVERYWHERE.values(), known.checked["clone3"]):
        assert decide(machine, number) == REFUSED
    assert decide(machine, known.checked["clone"], 17) == ALLOWED
    assert decide(machine, known.checked["clone"], 0x00010F00) == ALLOWED  # a thread
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(machine, known.checked["clone"], flag | 17) == REFUSED
    assert [decide(machine, known.checked["socket"], family) for family in (1, 2, 10, 16)] == [ALLOWED] * 4
    assert [decide(machine, known.checked["socket"], family) for family in (17, 38, 40, 44)] == [REFUSED] * 4
    assert decide(machine, known.checked["ioctl"], 0, 0x5412) == REFUSED
    assert decide(machine, known.checked["ioctl"], 0, 0x541C) == REFUSED
    assert decide(machine, known.checked["ioctl"], 0, 0x5401) == ALLOWED
    assert [decide(machine, known.checked["setsockopt"], 3, *one) for one in ((1, 18), (1, 20), (6, 18))] == [
        REFUSED,
        ALLOWED,
        ALLOWED,
    ]
    assert decide(machine, known.checked["personality"], 0) == ALLOWED
    assert decide(machine, known.checked["personality"], 0x0400000) == REFUSED
    assert decide(machine, 0, audit=0x40000003) == KILLED


# What the kernel's own headers say; those that all newer machines share are aarch64's.
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_the_numbers_of_calls_are_the_kernels(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip(f"{HEADERS[machine]} is not installed")
    lines = re.findall(r"#define __NR_(\w+)\s+(\d+)", HEADERS[machine].read_text())
    kernels = {name: int(number) for name, number in lines}
    known = seccomp.MACHINES[machine]
    ours = {**seccomp.REFUSED_EVERYWHERE, **known.refused}
    ours |= {name: known.checked[name] for name in ("clone", "clone3", "ioctl", "setsockopt", "socket")}
    # Headers may be older than a call, never of another opinion about it.
    assert {name: kernels.get(name, number) for name, number in ours.items()} == ours
    assert len(kernels.keys() & ours.keys()) >= len(ours) - 3


def test_an_unknown_machine_has_no_filter() -> None:
    assert seccomp.program("vax") is None


def test_32_bit_programs_on_a_64_bit_kernel_are_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Raspberry Pi with a 32-bit system: every call of theirs would be killed."""
    monkeypatch.setattr(sys, "maxsize", (1 << 31) - 1)
    assert seccomp.here() not in seccomp.MACHINES
    assert seccomp.program(seccomp.here()) is None
