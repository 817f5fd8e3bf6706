"""What this machine lets a sandbox have, tried for real, and the command or flag that gets what is missing.

It is tried in one sandbox like any other, in which a script tries what must not be possible and says what was. What can
only be seen from outside, that it is under its limits and whose user it runs as, is looked at while it waits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gofer_sandbox import processes
from gofer_sandbox.bubblewrap import arguments, binary, cgroups, seccomp, spawn
from gofer_sandbox.errors import IsolationUnavailable, StartFailed
from gofer_sandbox.kernel import closing
from gofer_sandbox.levels import Level
from gofer_sandbox.limits import KIB, MIB, Limits
from gofer_sandbox.provider import Feature, Report
from gofer_sandbox.shell import scripts

_NAME = "bubblewrap"
_UNTRIED = Feature(
    "system calls refused, and vsock", True, "not tried: there is no perl inside", "apt-get install perl-base"
)

_CGROUPS_FIX = (
    "as an ordinary user: systemd-run --user --scope -p Delegate=yes <command>; as a systemd service: "
    "Delegate=yes and KillMode=process in its unit; in Docker 28 or newer: docker run "
    "--security-opt writable-cgroups=true"
)
_OWN_USER_FIX = "run the server as root; it becomes another user for each session"

_MORE_NAMESPACES = "sudo sysctl -w user.max_user_namespaces=65536"
_CONTAINER_SECCOMP = (
    "in Docker: docker run --security-opt seccomp=unconfined (or a profile that allows clone, unshare, "
    "mount, umount2 and pivot_root); in Kubernetes: securityContext.seccompProfile.type: Unconfined"
)
_CONTAINER_PROC = (
    "in Docker: docker run --security-opt systempaths=unconfined; in Kubernetes: securityContext.procMount: "
    "Unmasked"
)
_CONTAINER_MOUNTS = (
    "in Docker: docker run --security-opt apparmor=unconfined; with SELinux: --security-opt label=disable"
)
_CONTAINER_NETWORK = "in Docker: docker run --cap-add NET_ADMIN, or --security-opt apparmor=unconfined"


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found, and what the provider works with."""

    report: Report
    bwrap: Path | None
    etc: Path | None
    groups: cgroups.Groups | None

    @classmethod
    def run(cls, base: Path, bwrap: Path | None, use_cgroups: bool) -> Probe:
        """Try everything. Takes about as long as starting two sandboxes."""
        if platform.system() != "Linux":
            return cls._nothing(Feature("Linux", False, f"{platform.system()} has no namespaces"))
        if seccomp.program() is None:
            why = f"no call numbers are known for {seccomp.here()}"
            fix = "use a 64-bit system on x86_64 or aarch64"
            return cls._nothing(Feature("system call filter", False, why, fix))
        try:
            found = binary.within_reach(bwrap or binary.find(), base)
        except IsolationUnavailable as error:
            return cls._nothing(Feature("bubblewrap", False, str(error), binary.INSTALL))
        shared = arguments.make_etc(base)
        groups, why = cgroups.find() if use_cgroups else (None, "not to be used")
        remove_leftovers(base, groups)
        tried = try_all(base, found, shared, groups)
        features = _isolation(tried) if tried.complete else [_explain(tried.words, found)]
        isolated = all(feature.ok for feature in features)
        if tried.unlimited:
            groups, why = None, tried.unlimited
        root = os.geteuid() == 0
        features += [
            Feature("limits for a session as a whole", groups is not None, why, _CGROUPS_FIX),
            Feature("a user id for each session", root, "the server is not root", _OWN_USER_FIX),
        ]
        level = Level.NONE if not isolated else Level.ISOLATED if not groups else Level.LIMITED
        if level is Level.LIMITED and root:
            level = Level.SEPARATED
        return cls(Report(_NAME, level, tuple(features), attested=True), found, shared, groups)

    @classmethod
    def _nothing(cls, feature: Feature) -> Probe:
        return cls(Report(_NAME, Level.NONE, (feature,), attested=True), None, None, None)


def _isolation(tried: Trial) -> list[Feature]:
    """Judge what was found inside."""
    capabilities = [value for key, value in tried.facts if key.startswith("Cap")]
    mode, privileges = "".join(tried.found("Seccomp")), "".join(tried.found("NoNewPrivs"))

    def feature(name: str, ok: bool, detail: str) -> Feature:
        return Feature(name, ok, "" if ok else detail, binary.INSTALL)

    def none(name: str, key: str) -> Feature:
        found = tried.found(key)
        return feature(name, not found, f"found {', '.join(found)}")

    return [
        Feature("namespaces", True),
        feature("system call filter on PID 1", mode == "2", f"mode {mode}"),
        none("system calls refused, and vsock", "call") if tried.found("calls") else _UNTRIED,
        feature("no capabilities", {int(one, 16) for one in capabilities} == {0}, " ".join(capabilities)),
        feature("no new privileges", privileges == "1", f"NoNewPrivs is {privileges}"),
        feature("not root outside", tried.user > 0, f"it runs as user {tried.user}"),
        none("an empty environment", "environment"),
        none("read-only roots", "writable"),
        none("no settings of the kernel's written", "setting"),
        none("nothing said of how the host was started", "host"),
        none("every tmpfs bounded", "unbounded"),
        none("no new user namespaces", "userns"),
        none("its own processes only", "processes"),
        none("a network of its own", "network"),
        none("limits nobody inside can raise", "raised"),
    ]


def _apparmor(bwrap: Path) -> str:
    profile = (
        f"abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile gofer-bwrap {bwrap} "
        "flags=(unconfined) { userns, }\\n"
    )
    return (
        "on Ubuntu 23.10 or newer, allow bwrap by a profile:\n"
        f"  printf '{profile}' | sudo tee /etc/apparmor.d/gofer-bwrap\n"
        "  sudo apparmor_parser -r /etc/apparmor.d/gofer-bwrap\n"
        "  or allow every program: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    )


def _namespaces(bwrap: Path) -> str:
    """Which of the several switches is off."""
    if _setting("kernel/unprivileged_userns_clone") == "0":
        return "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if _setting("user/max_user_namespaces") == "0":
        return _MORE_NAMESPACES
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return _apparmor(bwrap)
    return _CONTAINER_SECCOMP


def _setting(name: str) -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys", name).read_text().strip()
    return ""


_Fix = Callable[[Path], str]
_CAUSES: tuple[tuple[str, str, _Fix], ...] = (
    (r"No permissions to creat(e|ing) (a )?new namespace", "namespaces", _namespaces),
    (r"reating new namespace failed: .*(No space|resource)", "namespaces", lambda _: _MORE_NAMESPACES),
    (r"reating new namespace failed", "namespaces", _namespaces),
    (r"setting up uid map: Permission denied", "user namespaces", _apparmor),
    (r"setting up [ug]id map", "user namespaces", lambda _: _CONTAINER_SECCOMP),
    (r"Can't mount proc|max_user_namespaces: Read-only", "a fresh /proc", lambda _: _CONTAINER_PROC),
    (r"make / slave|pivot_root|bind mount|mount tmpfs", "mounts", lambda _: _CONTAINER_MOUNTS),
    (r"loopback: |RTM_NEW", "a network of its own", lambda _: _CONTAINER_NETWORK),
    (r"Unknown option", "bubblewrap", lambda _: binary.INSTALL),
    (r"seccomp|SECCOMP", "system call filter", lambda _: "the kernel needs CONFIG_SECCOMP_FILTER=y"),
    (r"execvp bash", "bash", lambda _: "install bash: apt-get install bash, or apk add bash"),
)
"""What bubblewrap says, what that is about, and what to do given the path of bwrap."""


def _explain(said: str, bwrap: Path) -> Feature:
    """The feature that failed, with what bubblewrap said and what helps."""
    text = said.strip() or "bwrap said nothing"
    for pattern, feature, fix in _CAUSES:
        if re.search(pattern, text):
            return Feature(feature, False, text, fix(bwrap))
    return Feature("namespaces", False, text, _CONTAINER_SECCOMP)


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


def try_all(base: Path, bwrap: Path, etc: Path, groups: cgroups.Groups | None) -> Trial:
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
            _look_inside(bwrap, etc, group, listening.getsockname()[1], trial)
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


def _look_inside(bwrap: Path, etc: Path, group: cgroups.ControlGroup | None, port: int, trial: Trial) -> None:
    options = [*arguments.isolation(), *arguments.system(etc), *arguments.devices(LIMITS, etc)]
    options += ["--setenv", "PATH", arguments.ENVIRONMENT["PATH"]]
    options += ["--remount-ro", "/dev", "--remount-ro", "/", "--die-with-parent"]
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
                    [str(bwrap), *options], look, seccomp.program(), entrances, streams, _CANARY, user
                )
            trial.facts = _facts(inside)
            trial.complete = ("end", "here") in trial.facts
            trial.words = spawn.words(words)
            with contextlib.suppress(OSError):
                trial.user = os.stat(f"/proc/{spawned.keeper}").st_uid
            trial.unlimited = group.shortfall(spawned.keeper, LIMITS) if group and trial.complete else ""
        os.waitpid(spawned.monitor, 0)


def _calls() -> str:
    """What the filter refuses, each with its number and the error it gives."""
    machine = seccomp.MACHINES[platform.machine()]
    refused = {**machine.refused, **seccomp.REFUSED_EVERYWHERE}
    calls = [f"{name}={number}={errno.EPERM}" for name, number in refused.items()]
    calls += [
        f"clone3={machine.checked['clone3']}={errno.ENOSYS}",
        f"vsock={socket.AF_VSOCK}={errno.EAFNOSUPPORT}",
        f"fallocate={machine.checked['fallocate']}={errno.EOPNOTSUPP}",
    ]
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
