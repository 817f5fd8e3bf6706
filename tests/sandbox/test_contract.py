"""What every provider promises, one suite for all of them."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gofer_sandbox import (
    Bubblewrap,
    InvalidInput,
    Level,
    Limits,
    Provider,
    Record,
    Sandbox,
    SandboxClosed,
    Unconfined,
)
from gofer_sandbox.docker import Docker
from gofer_sandbox.files import Edit, EditRefused, FileMissing, FileRefused
from gofer_sandbox.limits import KIB, MIB
from sandbox.docker_engine import docker_engine
from sandbox.leftovers import ASLEEP, nothing_left
from support.patience import eventually, patience


def _docker(stack: ExitStack, place: Path) -> Provider:
    """A real engine, where SANDBOX_TEST_ENGINE is its address and it has the image."""
    base = place / "base"
    base.mkdir(mode=0o711)
    real = os.environ.get("SANDBOX_TEST_ENGINE")
    return Docker("debian:12", engine=real or stack.enter_context(docker_engine(place)).address, base=base)


PROVIDERS: dict[str, Callable[[ExitStack, Path], Provider]] = {
    "bubblewrap": lambda stack, place: Bubblewrap(),
    "bubblewrap without cgroups": lambda stack, place: Bubblewrap(use_cgroups=False),
    "docker": _docker,
    "unconfined": lambda stack, place: Unconfined(),
}


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="contract-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


ONCE_MORE = ("bubblewrap without cgroups", "docker")


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] if name in ONCE_MORE else []) for name in PROVIDERS]
)
def provider(request: pytest.FixtureRequest, place: Path) -> Iterator[Provider]:
    with ExitStack() as stack:
        yield PROVIDERS[request.param](stack, place)


@pytest.fixture
async def sandbox(provider: Provider, place: Path) -> AsyncIterator[Sandbox]:
    limits = Limits(output=4 * KIB, spool=100 * KIB, spools=150 * KIB)
    async with nothing_left(Sandbox(provider, directory=place / "session", limits=limits)) as started:
        yield started


async def test_state_persists_between_commands(sandbox: Sandbox) -> None:
    await sandbox.run(
        "mkdir d; cd d; export E=e; V='v\n\"q'; A=(1 '2 3'); declare -A M=([k]=v); f() { echo f; }; "
        "alias al='echo al'; set -o pipefail; shopt -s extglob; umask 027; set -- p q; declare -r R=r; "
        "declare -i I=5; declare -n N=E; g() { [[ $1 == @(a|b) ]] && echo g; }; export -f f; "
        "set +B; shopt -u sourcepath"
    )
    check = (
        'echo "${PWD##*/} $E $V ${A[1]} ${M[k]} $(f) $(bash -c f)"; al; false | true; echo $?; umask; '
        'g a; echo $R $N; I=1+1; echo $I; cd - >/dev/null; echo "${PWD##*/}"; cd - >/dev/null; '
        "echo {1,2}; shopt -q sourcepath || echo unset"
    )
    expected = 'd e v\n"q 2 3 v f f\nal\n1\n0027\ng\nr e\n2\nworkspace\n{1,2}\nunset\n'
    assert (await sandbox.run(check)).output == expected
    assert (await sandbox.run("echo $#")).output == "2\n"
    ended = await sandbox.run("set -x; exit 9")
    assert (ended.exit_code, ended.restarted, ended.state_lost) == (9, True, False)
    assert (ended.output.lstrip("+"), ended.cwd[-2:]) == (" exit 9\n", "/d"), "nothing of how it is done"
    await sandbox.run("set +x")
    assert (await sandbox.run(check)).output == expected, "after the shell's death"
    assert (await sandbox.run("echo $*")).output == "p q\n"
    lost = "set -- 'r s'; trap : USR1; pushd /usr; exec 7</dev/null; sleep 4321 & enable -n let"
    await sandbox.run(f"f() {{ kill $!; exit; }}; {lost}")
    ended = await sandbox.run("f t")
    assert ended.state_lost
    words = "the job table, the directory stack, disabled builtins, traps, open descriptors"
    assert ended.notes == (f"lost with the shell and not brought back: {words}",)
    ended = await sandbox.run("echo $1; exit")
    assert (ended.output, ended.state_lost, ended.notes) == ("r s\n", False, ()), "told once"
    ended = await sandbox.run("trap '' HUP; exit")
    assert (ended.state_lost, ended.notes) == (False, ()), "under nohup every shell ignores it"


async def test_state_is_kept_by_a_shell_that_came_after_another(sandbox: Sandbox) -> None:
    await sandbox.run("alias '{=echo'; trap 'echo ERR' ERR; set -E; (exit 4)")
    assert (await sandbox.run("echo $?")).output == "4\n", "as in any shell"
    await sandbox.run("exit 3")
    assert (await sandbox.run("echo $?; A=1")).output == "3\n"
    assert (await sandbox.run("kill -9 $$")).restarted
    assert (await sandbox.run("echo $A")).output == "1\n"


async def test_state_that_is_too_large_is_told_and_the_rest_kept(sandbox: Sandbox) -> None:
    await sandbox.run("A=1; f() { echo f; }; X=$(head -c 5000000 /dev/zero | tr '\\0' a); Y=2; cd /usr")
    await sandbox.snapshot()
    ended = await sandbox.run("readonly PATH=/nope; exit 0")
    assert (ended.restarted, ended.state_lost, ended.cwd) == (True, True, "/usr")
    assert ended.notes == ("the shell's state was too large to keep; not brought back: X",)
    repaired = await sandbox.run("PATH=/usr/bin:/bin; echo $A $(f) ${#X} $Y; pwd; command -v ls")
    assert repaired.output.startswith("1 f 0 2\n/usr\n/")
    again = await sandbox.run("exit 0")
    assert (again.state_lost, again.notes) == (False, ())


async def test_limits_that_go_with_a_shell_are_told(sandbox: Sandbox) -> None:
    ended = await sandbox.run("ulimit -n 100; exit 3")
    assert ended.notes == ("limits set with ulimit are not brought back: open files",)
    assert (await sandbox.run("exit 3")).notes == ()


async def test_a_result_says_everything(sandbox: Sandbox) -> None:
    result = await sandbox.run("echo out; echo err >&2; cd /; false")
    assert (result.number, result.exit_code, result.ok) == (1, 1, False)
    assert (result.output, result.errors, result.cwd) == ("out\nerr\n", "", "/")
    assert (result.kept, result.dropped, result.full_output) == (8, 0, None)
    assert (result.timed_out, result.cancelled, result.restarted, result.recreated) == (False,) * 4
    assert 0 < result.duration < 60
    assert (await sandbox.run("true")).ok


async def test_streams_can_be_kept_apart(sandbox: Sandbox) -> None:
    result = await sandbox.run("echo out; echo err >&2; echo out2", separate=True)
    assert (result.output, result.errors) == ("out\nout2\n", "err\n")
    assert (await sandbox.run("echo o; echo e >&2")).output == "o\ne\n"


async def test_output_streams_while_the_command_runs(sandbox: Sandbox) -> None:
    pieces: list[tuple[int, bytes]] = []
    seen = asyncio.Event()

    def take(stream: int, data: bytes) -> None:
        pieces.append((stream, data))
        seen.set()

    running = asyncio.create_task(sandbox.run("echo first; sleep 30; echo last", on_output=take))
    await asyncio.wait_for(seen.wait(), patience(20))
    assert not running.done()
    await sandbox.cancel()
    await running
    assert pieces[0] == (1, b"first\n")


async def test_a_listener_that_fails_costs_nothing(sandbox: Sandbox) -> None:
    def fail(stream: int, data: bytes) -> None:
        raise RuntimeError

    assert (await sandbox.run("echo out", on_output=fail)).output == "out\n"


async def test_output_is_capped_and_the_rest_can_be_paged(sandbox: Sandbox) -> None:
    result = await sandbox.run("seq 1 10000")
    assert result.kept == 4 * KIB
    assert result.kept + result.dropped == 48894
    assert result.output.startswith("1\n2\n")
    assert result.output.endswith("\n9999\n10000\n")
    assert f"{result.dropped} bytes left out" in result.output
    assert result.full_output
    whole, offset = b"", 0
    while offset is not None:
        page = sandbox.output(result.number, offset, 10_000)
        whole += page.data
        offset = page.next_offset  # type: ignore[assignment]
    assert whole == "".join(f"{n}\n" for n in range(1, 10001)).encode()
    assert sandbox.output(result.number, -6, 100).text == "10000\n"


async def test_what_is_kept_on_disk_is_bounded(sandbox: Sandbox) -> None:
    for _ in range(3):
        result = await sandbox.run("head -c 1000000 /dev/zero | tr '\\0' x")
        assert result.kept + result.dropped == 1_000_000
        assert sandbox.output(result.number).size == 100 * KIB
    kept = sum(path.stat().st_size for path in (sandbox.workspace.parent / "output").iterdir())
    assert kept <= 150 * KIB
    with pytest.raises(InvalidInput, match="no longer kept"):
        sandbox.output(1)
    for number in range(4, 7):
        told = f"until [ -e told-{number} ]; do sleep 0.02; done"
        await sandbox.run(f"{{ {told}; head -c 60000 /dev/zero | tr '\\0' y; }} & echo begun")
        # Only what comes after the end counts as printed later.
        (sandbox.workspace / f"told-{number}").touch()
        await eventually(lambda number=number: _size(sandbox, number) == 60_000)  # type: ignore[misc]
    kept = sum(path.stat().st_size for path in (sandbox.workspace.parent / "output").iterdir())
    assert kept <= 170 * KIB, "what is printed later, too"


def _size(sandbox: Sandbox, number: int) -> int:
    """Of what a command's processes printed after it."""
    try:
        return sandbox.output(number, stream=3).size
    except InvalidInput:
        return 0


async def test_decoding_never_fails(sandbox: Sandbox) -> None:
    assert (await sandbox.run(r"printf 'a\xffb\0\xc3'")).output == "a\ufffdb\0\ufffd"
    assert len((await sandbox.run("head -c 3000 /dev/urandom")).output) > 0


async def test_background_processes_stay_and_print_to_a_place_of_their_own(sandbox: Sandbox) -> None:
    first = await sandbox.run("(while :; do echo tick; sleep 0.02; done) & echo started")
    assert "started\n" in first.output
    assert first.background
    second = await sandbox.run("sleep 0.1; echo second")
    assert second.output == "second\n"
    await eventually(lambda: _size(sandbox, first.number) > 0)
    assert sandbox.output(first.number, stream=3).text.startswith("tick\n")


async def test_a_time_out_ends_what_the_command_started_and_only_that(sandbox: Sandbox) -> None:
    await sandbox.run(f"A=kept; sleep 1234 & {ASLEEP}")
    stubborn = "(trap '' TERM INT HUP; exec sleep 5432) &"
    result = await sandbox.run(f"echo begun; sleep 2345 & {stubborn} sleep 3456; echo NO", timeout=0.5)
    assert (result.timed_out, result.output) == (True, "begun\n")
    assert set(result.killed) == {"sleep 2345", "sleep 3456", "sleep 5432"}
    assert result.background == ("sleep 1234",)
    assert (await sandbox.run("echo $A")).output == "kept\n"


async def test_cancel(sandbox: Sandbox) -> None:
    assert not await sandbox.cancel()
    begun = asyncio.Event()
    running = asyncio.create_task(
        sandbox.run("echo begun; sleep 60; echo NO", on_output=lambda *_: begun.set())
    )
    await begun.wait()
    assert await sandbox.cancel()
    result = await running
    assert (result.cancelled, result.timed_out, result.output) == (True, False, "begun\n")
    assert (await sandbox.run("echo alive")).output == "alive\n"


async def test_a_cancelled_caller_leaves_the_session_fit(sandbox: Sandbox) -> None:
    begun = asyncio.Event()
    running = asyncio.create_task(
        sandbox.run("echo begun; sleep 4567; echo NO", on_output=lambda *_: begun.set())
    )
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    after = await sandbox.run("echo alive")
    assert (after.output, after.background) == ("alive\n", ())


async def test_commands_given_at_once_run_one_after_the_other(sandbox: Sandbox) -> None:
    results = await asyncio.gather(*(sandbox.run(f"echo {n}; sleep 0.01; echo {n}") for n in range(5)))
    assert [result.output for result in results] == [f"{n}\n{n}\n" for n in range(5)]


async def test_commands_one_after_the_other_leave_others_their_turn(sandbox: Sandbox) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(20):
        await sandbox.run("true")
    task.cancel()
    assert turns >= 19


async def test_files(sandbox: Sandbox) -> None:
    await sandbox.write("a/b.txt", "one\ntwo\n")
    assert (await sandbox.run("cat a/b.txt; echo three >>a/b.txt")).output == "one\ntwo\n"
    assert (await sandbox.read("a/b.txt", first_line=2)).lines == ("two", "three")
    await sandbox.edit("a/b.txt", [Edit("two", "TWO")])
    assert (await sandbox.read_bytes("a/b.txt")).data == b"one\nTWO\nthree\n"
    assert [entry.name for entry in (await sandbox.list("a")).entries] == ["b.txt"]
    with pytest.raises(EditRefused):
        await sandbox.edit("a/b.txt", [Edit("missing", "x")])
    with pytest.raises(FileMissing):
        await sandbox.read("nothing")
    with pytest.raises((FileRefused, FileMissing)):
        await sandbox.read("/run/s/c")


async def test_searching(sandbox: Sandbox) -> None:
    await sandbox.run(
        "mkdir -p s/.git s/deep; echo needle >s/deep/x.py; echo needle >s/.git/x.py; touch -- s/-y.py; cd /"
    )
    assert (await sandbox.list("s")).entries, "paths mean the same to all, wherever the shell stands"
    for missing in (await sandbox.find("*", "missing"), await sandbox.grep("x", "missing")):
        assert "No such file" in missing.output
        assert not missing.ok
    assert sorted((await sandbox.find("*.py", "s")).output.splitlines()) == ["s/-y.py", "s/deep/x.py"]
    assert (await sandbox.grep("ne+dle", "s")).output == "s/deep/x.py:1:needle\n"
    assert (await sandbox.grep("-x'$(touch /tmp/no)", "s")).exit_code == 1
    assert (await sandbox.grep("(", "s")).exit_code == 2
    enough = await sandbox.find("*", "/usr", limit=1)
    assert (enough.exit_code, enough.output) == (0, "/usr\n")
    for bad in ("", "a\0b"):
        with pytest.raises(InvalidInput):
            await sandbox.grep(bad)


async def test_attach_by_record(provider: Provider, place: Path) -> None:
    first = Sandbox(provider, directory=place / "session", environment={"GIVEN": "x"})
    await first.start()
    await first.run(f"A=1; sleep 5678 & {ASLEEP}")
    text = first.record.to_json()
    await first.detach()
    second = await Sandbox.attach(Record.from_json(text), provider)
    result = await second.run("echo $A $GIVEN")
    assert (result.output, result.background) == ("1 x\n", ("sleep 5678",))
    await second.close()
    restored = await Sandbox.restore(Record.from_json(text), provider)
    assert (await restored.run("echo $A $GIVEN")).output == "1 x\n"
    await restored.close()


async def test_snapshot_is_what_restore_uses(sandbox: Sandbox) -> None:
    await sandbox.run("unique_name=unique_value")
    snapshot = await sandbox.snapshot()
    assert snapshot
    assert b'unique_name="unique_value"' in snapshot


async def test_nothing_runs_after_close(provider: Provider) -> None:
    sandbox = Sandbox(provider)
    with pytest.raises(SandboxClosed):
        await sandbox.run("true")
    await sandbox.start()
    directory = sandbox.workspace.parent
    await sandbox.run("setsid sleep 6789 & nohup sleep 6789 & (sleep 6789 &) ; trap '' TERM")
    await sandbox.close()
    await sandbox.close()
    assert not directory.exists()
    with pytest.raises(SandboxClosed):
        await sandbox.run("true")


async def test_capabilities_are_true(provider: Provider, sandbox: Sandbox) -> None:
    report = await provider.probe()
    assert sandbox.capabilities.provider == provider.name == report.provider
    assert sandbox.capabilities.level == report.level
    assert (report.level is Level.NONE) == (provider.name == "unconfined")
    assert report.words.startswith(f"{provider.name}: ")


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("a\0b", {}, "NUL"),
    ("\ud800", {}, "surrogates"),
    ("x" * (16 * MIB + 1), {}, "at most"),
    ("true", {"timeout": 0}, "more than zero"),
    ("true", {"timeout": -1}, "more than zero"),
    ("true", {"timeout": math.nan}, "more than zero"),
    ("true", {"timeout": math.inf}, "more than zero"),
    ("true", {"timeout": "5"}, "number"),
    ("true", {"timeout": True}, "number"),
    ("true", {"timeout": None}, "number"),
    (None, {}, "text or bytes"),  # type: ignore[list-item]
    (["ls"], {}, "text or bytes"),  # type: ignore[list-item]
    (7, {}, "text or bytes"),  # type: ignore[list-item]
]


async def test_bad_input_is_refused_in_plain_words(sandbox: Sandbox) -> None:
    for command, options, words in BAD:
        with pytest.raises(InvalidInput, match=words):
            await sandbox.run(command, **options)
    for path in ("", "a\0b", "x" * 5000):
        with pytest.raises(Exception, match=r"\S") as caught:
            await sandbox.read(path)
        assert isinstance(caught.value, (InvalidInput, FileMissing)) or "FileError" in str(
            type(caught.value).__mro__
        )
    for number, offset, limit in (
        (99, 0, 10),
        (1, 0, 0),
        (1, 0, -1),
        (1, 0, 10**9),
        ("1", 0, 1),
        (1, None, 1),
    ):
        with pytest.raises(InvalidInput):
            sandbox.output(number, offset, limit)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="lone surrogates"):
        await sandbox.write("file", "\ud800")
    with pytest.raises(InvalidInput, match="first_line must be a whole number"):
        await sandbox.read("file", first_line="1")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="list of Edit"):
        await sandbox.edit("file", "ab")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="offset must be a whole number"):
        await sandbox.read_bytes("file", offset=2**70)
    assert (await sandbox.run("echo alive")).output == "alive\n"


def test_bad_settings_are_refused() -> None:
    bad = ({"A B": "x"}, {"": "x"}, {"A": "x\0"}, {"A": 1}, {"A": "\ud800"}, {"SHELLOPTS": "errexit"})
    for environment in bad:
        with pytest.raises(InvalidInput):
            Sandbox(environment=environment)  # type: ignore[arg-type]
    for limits in (
        {"memory": 0},
        {"processes": 1},
        {"memory": "1"},
        {"cpus": math.nan},
        {"disk": 1.5},
        {"tmp": 2**40},
    ):
        with pytest.raises(InvalidInput):
            Limits(**limits)


async def test_unconfined_says_so_at_every_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        caplog.clear()
        async with Sandbox(Unconfined()):
            assert "no isolation" in caplog.text
    assert isinstance(Sandbox()._provider, Bubblewrap), "never chosen by itself"
