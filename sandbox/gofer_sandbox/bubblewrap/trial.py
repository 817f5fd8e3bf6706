"""One sandbox like any other, in which a script tries what must not be possible and says what was.

What can only be seen from outside, that it is under its limits and whose user it runs as, is looked at while it
waits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import secrets
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

from gofer_sandbox import processes
from gofer_sandbox.bubblewrap import arguments, cgroups, seccomp, spawn
from gofer_sandbox.errors import StartFailed
from gofer_sandbox.kernel import closing
from gofer_sandbox.limits import KIB, MIB, Limits
from gofer_sandbox.shell import scripts

LIMITS = Limits(tmp=1 * MIB, shm=64 * KIB)
_TIMEOUT = 20.0
_NOBODY = 65534
_PROBES = "probes"
_CANARY = {"GOFER_SANDBOX_CANARY": "1"}

# bash is PID 1 here, as the keeper will be. Each line of the answer is a fact and what was found; what is refused
# as it should be says nothing.
_LOOK = r"""
port=$1 calls=$2
while read -r key value; do
  case $key in CapEff:|CapPrm:|CapBnd:|Seccomp:|NoNewPrivs:) echo "$key$value";; esac
  [[ $key$value == Seccomp:2 ]] && filtered=1
done </proc/1/status
mapfile -d '' -t names </proc/1/environ || echo environment:unreadable
for name in "${names[@]}"; do [[ $name == P@(ATH|WD)=* ]] || echo "environment:${name%%=*}"; done
for place in / /dev /usr /etc /run; do { : >"$place/.write"; } 2>/dev/null && echo "writable:$place"; done
for setting in kernel/core_pattern kernel/hostname kernel/shmmax user/max_user_namespaces; do
  read -r value <"/proc/sys/$setting" && { printf %s "$value" >"/proc/sys/$setting"; } 2>/dev/null &&
    echo "setting:$setting"
done
read -r value </proc/cmdline && echo host:/proc/cmdline
unshare --user true 2>/dev/null && echo userns:allowed
(( $$ == 1 )) || echo "processes:it is not PID 1 but $$"
found=(/proc/[0-9]*); (( ${#found[@]} > 2 )) && echo "processes:${#found[@]} of them"
while read -r _ place kind options _; do
  [[ $kind == tmpfs && $options == rw* && $options != *size=* ]] && echo "unbounded:$place"
done </proc/mounts
{ printf '%2000000s' '' >/tmp/.fill; } 2>/dev/null && echo unbounded:/tmp
{ printf '%2000000s' '' >/dev/shm/.fill; } 2>/dev/null && echo unbounded:/dev/shm
while read -r name _; do [[ $name == *: && $name != lo: ]] && echo "network:$name" && reached=1; done </proc/net/dev
{ : <>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null && echo "network:the host's loopback"
if ! [[ $reached ]]; then
  said=$({ : <>/dev/tcp/192.0.2.1/9; } 2>&1)
  [[ $said == *unreachable* || $said == *'No such file'* ]] || echo "network:a way out"
fi
if [[ $filtered ]]; then
  perl -e 'for (split /,/, $ARGV[0]) { my ($name, $number, $wanted) = split /=/;
    my $done = $name eq "vsock" ? socket(my $s, $number, 1, 0) : syscall($number + 0, 0, 0, 0, 0, 0, 0) >= 0;
    print "call:$name\n" if $done or $! != $wanted } print "calls:tried\n"' "$calls" 2>/dev/null
fi
ulimit -n 64 && ulimit -n 128 2>/dev/null && echo raised:descriptors
echo end:here
read -r -t 20 _
"""


@dataclass(slots=True)
class Trial:
    """What was said inside and seen outside."""

    complete: bool = False
    facts: list[tuple[str, str]] = field(default_factory=list)
    words: str = ""
    """What bubblewrap said when it did not come to an end."""
    user: int = -1
    unlimited: str = ""
    """Why it is not under the limits of its group, when it had one and is not."""

    def found(self, key: str) -> list[str]:
        """The values of a fact."""
        return [value for name, value in self.facts if name == key]


def run(base: Path, bwrap: Path, etc: Path, groups: cgroups.Groups | None) -> Trial:
    """Start a sandbox as a session's would be, and have it look around. It ends with us; for its groups, which
    do not, it is recorded."""
    name = f"probe-{os.getpid()}-{processes.start_time(os.getpid())}-{secrets.token_hex(4)}"
    record = base / _PROBES / name
    record.parent.mkdir(mode=0o700, exist_ok=True)
    record.touch()
    group = groups.make(name) if groups else None
    trial = Trial()
    try:
        if group:
            group.limit(LIMITS)
        with socket.create_server(("127.0.0.1", 0)) as listening:  # a service on the host's loopback
            _run(bwrap, etc, group, listening.getsockname()[1], trial)
    except StartFailed as error:
        trial.words = str(error).partition(": ")[2]
    finally:
        if group:
            group.remove()
        record.unlink(missing_ok=True)
    return trial


def remove_leftovers(base: Path, groups: cgroups.Groups | None) -> None:
    """Remove what servers left that died while they probed."""
    for record in (base / _PROBES).glob("probe-*-*-*"):
        _, pid, start, _ = record.name.split("-")
        if str(processes.start_time(int(pid))) != start:
            if groups:
                group = groups.open(record.name)
                group.end()
                group.remove()
            record.unlink(missing_ok=True)


def _run(bwrap: Path, etc: Path, group: cgroups.ControlGroup | None, port: int, trial: Trial) -> None:
    inside, said = os.pipe2(os.O_CLOEXEC)
    waits, go = os.pipe2(os.O_CLOEXEC)
    with closing(inside), closing(spawn.memory_file("words")) as words:
        with closing(go):  # the script waits until this is closed
            with closing(said), closing(waits):
                entrances = group.entrances() if group else []
                script = scripts.enter(entrances) + _LOOK
                look = ["bash", "--noprofile", "--norc", "-c", script, "bash", str(port), _calls()]
                user = _NOBODY if os.geteuid() == 0 else None
                streams = (waits, said, words)
                spawned = spawn.spawn(
                    _options(bwrap, etc), look, seccomp.program(), entrances, streams, _CANARY, user
                )
            trial.facts = _facts(inside)
            trial.complete = ("end", "here") in trial.facts
            trial.words = spawn.words(words)
            trial.user = _user(spawned.keeper)
            trial.unlimited = group.shortfall(spawned.keeper, LIMITS) if group and trial.complete else ""
        os.waitpid(spawned.monitor, 0)


def _options(bwrap: Path, etc: Path) -> list[str]:
    options = [*arguments.isolation(), *arguments.system(etc), *arguments.devices(LIMITS, etc)]
    path = ["--setenv", "PATH", arguments.ENVIRONMENT["PATH"]]
    roots = ["--remount-ro", "/dev", "--remount-ro", "/"]
    return [str(bwrap), *options, *path, *roots, "--die-with-parent"]


def _calls() -> str:
    """What the filter refuses, each with its number and the error it gives."""
    machine = seccomp.MACHINES[platform.machine()]
    refused = {**machine.refused, **seccomp.REFUSED_EVERYWHERE}
    calls = [f"{name}={number}={errno.EPERM}" for name, number in refused.items()]
    calls += [
        f"clone3={machine.checked['clone3']}={errno.ENOSYS}",
        f"vsock={socket.AF_VSOCK}={errno.EAFNOSUPPORT}",
    ]
    calls.append(f"fallocate={machine.checked['fallocate']}={errno.EOPNOTSUPP}")
    return ",".join(calls)


def _facts(inside: int) -> list[tuple[str, str]]:
    """What the script says until it waits, ends, or has had its time."""
    data, until = b"", time.monotonic() + _TIMEOUT
    while not data.endswith(b"end:here\n") and spawn.readable(inside, until - time.monotonic()):
        piece = os.read(inside, 4096)
        if not piece:
            break
        data += piece
    lines = data.decode("utf-8", "replace").splitlines()
    return [(key, value.strip()) for key, _, value in (line.partition(":") for line in lines)]


def _user(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}").st_uid
    return -1
