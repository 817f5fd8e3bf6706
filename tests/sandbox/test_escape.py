"""Trying to get out of a real sandbox, or to reach what is not its own.

Runs as whoever runs the suite; `test_escape_as_ordinary_user.py` runs it once more without root.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import signal
import socket
import struct
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from gofer_sandbox import Bubblewrap, Level, Sandbox
from gofer_sandbox.bubblewrap import seccomp
from support.patience import patience

pytestmark = pytest.mark.asyncio(loop_scope="module")

CANARY = "canary-7c1f0e"
PYTHON = Path("/usr/bin/python3").exists()


@dataclass
class World:
    """What an attacker inside would like to reach."""

    sandbox: Sandbox
    other: Sandbox
    secret: Path
    port: int
    abstract: str
    unix: Path

    async def inside(self, command: str) -> str:
        """What a command inside prints, whether it fails or not."""
        return (await self.sandbox.run(command, timeout=patience(20))).output


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    os.environ["GOFER_TEST_SECRET"] = CANARY
    place = Path(tempfile.mkdtemp(prefix="escape-"))
    place.chmod(0o755)
    secret = place / "secret"
    secret.write_text(CANARY)
    secret.chmod(0o666)
    listening = await asyncio.start_server(_greet, "127.0.0.1", 0)
    abstract = f"gofer-test-{os.getpid()}"
    hidden = socket.socket(socket.AF_UNIX)
    hidden.bind("\0" + abstract)
    hidden.listen()
    unix = await asyncio.start_unix_server(_greet, place / "socket")
    (place / "socket").chmod(0o777)
    provider = Bubblewrap()
    async with Sandbox(provider) as sandbox, Sandbox(provider) as other:
        await other.run(f"echo {CANARY} >/workspace/theirs; echo {CANARY} >/dev/shm/theirs; sleep 31337 &")
        port = listening.sockets[0].getsockname()[1]
        yield World(sandbox, other, secret, port, abstract, place / "socket")
    del os.environ["GOFER_TEST_SECRET"]
    hidden.close()
    for server in (listening, unix):
        server.close()
        await server.wait_closed()
    shutil.rmtree(place)


async def _greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(CANARY.encode())
    writer.close()


REFUSED = [
    # Each prints OUT when it gets where it must not.
    ("environment of every process", f"grep -qa {CANARY} /proc/*/environ && echo OUT"),
    ("environment of our own", f"env | grep -q {CANARY} && echo OUT"),
    ("root's home", "ls /root && echo OUT"),
    ("other homes", "ls /home/* && echo OUT"),
    ("shadow", "cat /etc/shadow && echo OUT"),
    ("host name", '[ "$(cat /etc/hostname)" = sandbox ] || echo OUT'),
    ("host users", "(( $(wc -l </etc/passwd) > 3 )) && echo OUT"),
    ("kernel's view of the host's root", "ls /proc/1/root/root && echo OUT"),
    ("working directories of others", "for p in /proc/[0-9]*; do ls $p/cwd/../../root && echo OUT; done"),
    ("sysfs", "ls /sys/kernel && echo OUT"),
    ("a raw disk", "ls /dev/sd* /dev/vd* /dev/nvme* /dev/mem /dev/kmsg /dev/loop* 2>/dev/null && echo OUT"),
    ("make a device", "mknod /tmp/m c 1 1 && echo OUT"),
    ("write the root", "touch /x && echo OUT"),
    ("write the system", "touch /usr/bin/x || touch /etc/x || touch /dev/x || touch /run/s/x && echo OUT"),
    ("remount", "mount -o remount,rw / && echo OUT"),
    ("mount a tmpfs", "mount -t tmpfs none /tmp && echo OUT"),
    ("unmount", "umount /proc || umount -l /workspace && echo OUT"),
    ("chroot", "chroot / true && echo OUT"),
    ("user namespace", "unshare --user true && echo OUT"),
    ("user namespace with a map", "unshare -Ur true && echo OUT"),
    ("network namespace", "unshare --net true && echo OUT"),
    ("enter another namespace", "nsenter -t 1 -m true && echo OUT"),
    ("core pattern", "echo '|/tmp/x' >/proc/sys/kernel/core_pattern && echo OUT"),
    ("sysctl", "echo 1 >/proc/sys/vm/drop_caches && echo OUT"),
    ("more namespaces by sysctl", "echo 100 >/proc/sys/user/max_user_namespaces && echo OUT"),
    ("settings of its own namespaces",
        "for f in $(find /proc/sys -type f -writable); do cat $f >$f && echo OUT; done"),
    ("how the host was started", "grep -q . /proc/cmdline && echo OUT"),
    ("a file's project", "chattr -p 7 /workspace && echo OUT; chattr +P /workspace && echo OUT"),
    ("magic key", "echo b >/proc/sysrq-trigger && echo OUT"),
    ("own oom score", "echo -1000 >/proc/self/oom_score_adj && echo OUT"),
    ("uid map", "echo '0 0 1' >/proc/self/uid_map && echo OUT"),
    ("become root", "sudo -n id || su -c id </dev/null && echo OUT"),
    ("set-user-id copy",
        "cp /bin/bash /tmp/b; chmod u+s /tmp/b; [ $(/tmp/b -p -c 'id -u') = 0 ] && echo OUT"),
    ("capabilities",
        "grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/[0-9]*/status | grep -v 0000000000000000 && echo OUT"),
    ("no new privileges", "grep -h NoNewPrivs /proc/[0-9]*/status | grep -v 1 && echo OUT"),
    ("filter on every process", "grep -h ^Seccomp: /proc/[0-9]*/status | grep -v 2 && echo OUT"),
    ("control groups", "ls /sys/fs/cgroup && echo OUT; echo $$ >/sys/fs/cgroup/cgroup.procs && echo OUT"),
    ("names", "exec 3<>/dev/tcp/example.com/80 && echo OUT"),
    ("addresses", "exec 3<>/dev/tcp/1.1.1.1/80 && echo OUT"),
    ("interfaces", "grep -v -e lo: -e Inter -e face /proc/net/dev && echo OUT"),
    ("other sessions' processes", "grep -a '3133[7]' /proc/[0-9]*/cmdline && echo OUT"),
    ("other sessions' shared memory", "cat /dev/shm/theirs && echo OUT"),
    ("other sessions' files", "ls /tmp/gofer-sandbox-* /dev/shm/gofer-sandbox-* && echo OUT"),
    ("keeper's memory", "head -c 1 /dev/zero >/proc/1/mem && echo OUT"),
    ("keeper stopped", "kill -STOP 1; kill -KILL 1; grep -q '^State:.[TtZX]' /proc/1/status && echo OUT"),
    ("descriptors of the server",
        "ls -l /proc/1/fd /proc/$$/fd | grep -e memfd -e anon_inode -e tasks -e cgroup && echo OUT; "
        "(( $(ls -l /proc/1/fd | grep -c socket) == 2 )) || echo OUT; exec 5<>/proc/1/fd/9 && echo OUT"),
    ("kernel log", "dmesg && echo OUT"),
    ("kernel symbols", "grep -qv ^0000000000000000 /proc/kallsyms && echo OUT"),
    ("time", "date -s 2001-01-01 && echo OUT"),
    ("host name changed", "hostname other && echo OUT"),
    ("priority", "nice -n -5 true 2>&1 | grep -q . || echo OUT"),
    ("limits raised", "ulimit -Hn 999999 && echo OUT; ulimit -Hf unlimited && echo OUT"),
    ("hard link to the system",
        "ln /etc/passwd /workspace/p && echo OUT; ln /usr/bin/env /tmp/e && echo OUT"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "command"), REFUSED, ids=[name for name, _ in REFUSED])
async def test_refused(world: World, name: str, command: str) -> None:
    said = await world.inside(f"({command})")
    assert "OUT\n" not in said, said
    assert CANARY not in said
    assert (await world.inside("echo alive")) == "alive\n"


async def test_host_files_are_not_there(world: World) -> None:
    for path in (world.secret, world.other.workspace / "theirs", Path(__file__), Path.home()):
        assert CANARY not in await world.inside(f"cat {path}; cat /proc/1/root{path}")
        assert "No such file" in await world.inside(f"ls {path}")


async def test_host_sockets_are_not_there(world: World) -> None:
    assert CANARY not in await world.inside(f"exec 3<>/dev/tcp/127.0.0.1/{world.port} && cat <&3")
    assert world.abstract not in await world.inside("cat /proc/net/unix")
    assert str(world.unix) not in await world.inside("cat /proc/net/unix")


async def test_host_processes_cannot_be_signalled(world: World) -> None:
    theirs = world.other.record.reference.pid
    assert "OUT" not in await world.inside(f"kill -9 {theirs} && echo OUT; kill -9 {os.getpid()} && echo OUT")
    assert (await world.other.run("echo alive")).output == "alive\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="the root half did not run: sessions share the user's id")
async def test_each_session_has_a_user_of_its_own(world: World) -> None:
    await world.inside("touch /workspace/mine")
    owner = (world.sandbox.workspace / "mine").stat().st_uid
    assert owner not in (0, (world.other.workspace / "theirs").stat().st_uid)
    assert world.sandbox.capabilities.level >= Level.ISOLATED
    assert (await world.inside("id -u")) == "1000\n"


SYSTEM_CALLS = """
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
answers = {}
for name, number in json.loads(sys.argv[1]).items():
    ctypes.set_errno(0)
    result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
    answers[name] = ctypes.get_errno() if result < 0 else 0
print(json.dumps(answers))
"""


@pytest.mark.skipif(not PYTHON, reason="needs the system's Python inside")
async def test_system_calls_are_refused(world: World) -> None:
    machine = seccomp.MACHINES[platform.machine()]
    numbers = {**machine.refused, **seccomp.REFUSED_EVERYWHERE}
    numbers["x32 getpid"] = 0x40000000 + 39
    await world.sandbox.write("calls.py", SYSTEM_CALLS)
    said = await world.inside(f"python3 calls.py '{json.dumps(numbers)}'")
    assert set(json.loads(said).values()) == {1}, said


SOCKETS = """
import errno, socket
for family in range(1, 46):
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
        print(family, 'open')
    except OSError as error:
        print(family, errno.errorcode[error.errno])
"""


@pytest.mark.skipif(not PYTHON, reason="needs the system's Python inside")
async def test_only_harmless_socket_families(world: World) -> None:
    await world.sandbox.write("sockets.py", SOCKETS)
    opened = [
        line for line in (await world.inside("python3 sockets.py")).splitlines() if line.endswith("open")
    ]
    assert opened == ["1 open", "2 open", "10 open"]
    assert "40 EAFNOSUPPORT" in await world.inside("python3 sockets.py")  # vsock


NAMESPACES = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
clone = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]
for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
    pid = libc.syscall(clone, flag | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    print(hex(flag), 'OUT' if pid > 0 else os.strerror(ctypes.get_errno()))
print('clone3', libc.syscall(435, 0, 0), ctypes.get_errno())
"""


@pytest.mark.skipif(not PYTHON, reason="needs the system's Python inside")
async def test_no_namespaces_by_clone(world: World) -> None:
    await world.sandbox.write("clone.py", NAMESPACES)
    said = await world.inside("python3 clone.py")
    assert "OUT" not in said
    assert said.count("Operation not permitted") == 7
    assert "clone3 -1 38" in said  # no such call: the C library then uses clone


TERMINAL = """
import fcntl, os, pty, struct
first, second = pty.openpty()
for number in (0x5412, 0x541c):
    try:
        fcntl.ioctl(second, number, b'x')
        print('OUT')
    except PermissionError:
        print('refused')
"""


@pytest.mark.skipif(not PYTHON, reason="needs the system's Python inside")
async def test_no_input_is_injected_into_a_terminal(world: World) -> None:
    await world.sandbox.write("terminal.py", TERMINAL)
    assert (await world.inside("python3 terminal.py")) == "refused\nrefused\n"


OTHER_MACHINE = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex('b814000000cd80c3'))  # mov eax, 20; int 0x80; ret: getpid of a 32-bit process
address = ctypes.addressof(ctypes.c_char.from_buffer(code))
print(ctypes.CFUNCTYPE(ctypes.c_long)(address)())
"""


@pytest.mark.skipif(not PYTHON or platform.machine() != "x86_64", reason="needs Python inside, and x86_64")
async def test_calls_of_another_machine_do_not_pass_the_filter(world: World) -> None:
    await world.sandbox.write("other.py", OTHER_MACHINE)
    result = await world.sandbox.run("python3 other.py")
    assert result.exit_code != 0
    assert not result.output.strip().isdigit()


# The 32-bit sibling of each machine, and its exit(42).
SIBLINGS = {
    "x86_64": (3, "b801000000bb2a000000cd80"),
    "aarch64": (40, "0170a0e32a00a0e3000000ef"),
}


async def test_32_bit_programs_do_not_pass_the_filter(world: World) -> None:
    machine, code = SIBLINGS[platform.machine()]
    entry = 0x10000 + 52 + 32
    program = struct.pack(
        "<16s2H5I6H", b"\x7fELF\x01\x01\x01", 2, machine, 1, entry, 52, 0, 0x05000000, 52, 32, 1, 0, 0, 0
    )
    program += struct.pack("<8I", 1, 0, 0x10000, 0x10000, 96, 96, 5, 0x1000) + bytes.fromhex(code)
    written = "".join(f"\\x{byte:02x}" for byte in program)
    result = await world.sandbox.run(f"printf '{written}' >/tmp/sibling; chmod +x /tmp/sibling; /tmp/sibling")
    assert result.exit_code in (126, 128 + signal.SIGSYS)  # where the kernel runs none of them at all, 126
