"""Trying, for real, what this machine lets a sandbox have, and saying how to get what is missing."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gofer_sandbox.bubblewrap import arguments, binary, cgroups, etc, seccomp, spawn
from gofer_sandbox.errors import IsolationUnavailable
from gofer_sandbox.levels import Level
from gofer_sandbox.limits import Limits
from gofer_sandbox.provider import Feature, Report

_NAME = "bubblewrap"
_CANARY = "GOFER_SANDBOX_CANARY"

# bash is PID 1 here, as the keeper will be. Each line of the answer is a feature and what was found.
_LOOK = r"""
while read -r key value; do
  case $key in CapEff:|CapPrm:|CapBnd:|Seccomp:|NoNewPrivs:) echo "$key$value";; esac
done </proc/1/status
[[ $(</proc/1/environ) == *GOFER_SANDBOX_CANARY* ]] && echo environment:leaks
for place in / /dev /usr /etc; do (: >"$place/.write") 2>/dev/null && echo "writable:$place"; done
[ -w /proc/sys/kernel/core_pattern ] && echo writable:/proc/sys
unshare --user true 2>/dev/null && echo userns:allowed
found=(/proc/[0-9]*); (( ${#found[@]} > 4 )) && echo "processes:${#found[@]}"
while read -r name _; do [[ $name == *: && $name != lo: ]] && echo "network:$name"; done </proc/net/dev
echo end:here
"""


@dataclass(frozen=True, slots=True)
class Cause:
    """A message of bubblewrap's and what to do about it."""

    pattern: str
    feature: str
    fix: str


_DOCKER_SECCOMP = (
    "in Docker: docker run --security-opt seccomp=unconfined (or a profile that allows clone, unshare, mount, "
    "umount2, pivot_root); in Kubernetes: securityContext.seccompProfile.type: Unconfined"
)
_APPARMOR_PROFILE = (
    "on Ubuntu 23.10 or newer, allow bwrap by a profile:\n"
    "  printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile gofer-bwrap {bwrap} flags=(unconfined) "
    "{{ userns, }}\\n' | sudo tee /etc/apparmor.d/gofer-bwrap && sudo apparmor_parser -r /etc/apparmor.d/gofer-bwrap\n"
    "  or for every program: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
)
_CAUSES = (
    Cause(r"No permissions to create (a )?new namespace", "namespaces", "{namespaces}"),
    Cause(r"[Cc]reating new namespace failed: .*(No space|resource)", "namespaces", "{most}"),
    Cause(r"[Cc]reating new namespace failed", "namespaces", "{namespaces}"),
    Cause(r"setting up uid map: Permission denied", "user namespaces", _APPARMOR_PROFILE),
    Cause(r"setting up uid map: Operation not permitted", "user namespaces", _DOCKER_SECCOMP),
    Cause(
        r"Can't mount proc",
        "a fresh /proc",
        "in Docker: docker run --security-opt systempaths=unconfined; in Kubernetes: "
        "securityContext.procMount: Unmasked",
    ),
    Cause(
        r"Failed to make / slave|pivot_root|Can't bind mount|Failed to mount tmpfs",
        "mounts",
        "in Docker: docker run --security-opt apparmor=unconfined; with SELinux: --security-opt label=disable",
    ),
    Cause(
        r"loopback: Failed|RTM_NEW",
        "a network of its own",
        "in Docker: docker run --cap-add NET_ADMIN (or --security-opt apparmor=unconfined)",
    ),
    Cause(r"Unknown option", "bubblewrap", binary.INSTALL),
    Cause(r"[Ss]eccomp|SECCOMP", "system call filter", "the kernel needs CONFIG_SECCOMP_FILTER=y"),
    Cause(r"execvp bash", "bash", "install bash (apt-get install bash, apk add bash)"),
)
_CGROUP_FIX = (
    "as an ordinary user: systemd-run --user --scope -p Delegate=yes <command>; as a systemd service: "
    "Delegate=yes and KillMode=process in its unit; in Docker: docker run --cgroupns=private "
    "-v /sys/fs/cgroup:/sys/fs/cgroup:rw"
)
_UID_FIX = "run the server as root; it drops to another user id for each session"


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
        try:
            found = binary.within_reach(bwrap or binary.find(), base)
        except IsolationUnavailable as error:
            return cls._nothing(Feature("bubblewrap", False, str(error), binary.INSTALL))
        shared = etc.make(base)
        features = _inside(found, shared)
        groups, why = cgroups.find() if use_cgroups else (None, "not to be used")
        features.append(Feature("limits for a session as a whole", groups is not None, why, _CGROUP_FIX))
        root = os.geteuid() == 0
        features.append(Feature("a user id for each session", root, "the server is not root", _UID_FIX))
        isolated = all(feature.ok for feature in features[:-2])
        level = Level.NONE if not isolated else Level.ISOLATED if not groups else Level.LIMITED
        if level is Level.LIMITED and root:
            level = Level.SEPARATED
        return cls(Report(_NAME, level, tuple(features)), found, shared, groups)

    @classmethod
    def _nothing(cls, feature: Feature) -> Probe:
        return cls(Report(_NAME, Level.NONE, (feature,)), None, None, None)


def _inside(bwrap: Path, shared: Path) -> list[Feature]:
    """Start a sandbox like any other and have it look around."""
    program = seccomp.program()
    if program is None:
        return [Feature("system call filter", False, f"no call numbers are known for {platform.machine()}")]
    said = _look(bwrap, shared, program)
    if said is None or "end:here" not in said[0]:
        return [explain(said[1] if said else "it took too long", bwrap)]
    return _read(said[0])


def _look(bwrap: Path, shared: Path, program: bytes) -> tuple[str, str] | None:
    options = [*arguments.isolation(), *arguments.system(shared), *arguments.devices(Limits())]
    options += [
        "--setenv",
        "PATH",
        arguments.ENVIRONMENT["PATH"],
        "--remount-ro",
        "/dev",
        "--remount-ro",
        "/",
    ]
    filter_file = spawn.memory_file("seccomp", program)
    drop: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    try:
        done = subprocess.run(
            [bwrap, *options, "--seccomp", str(filter_file), "bash", "--noprofile", "--norc", "-c", _LOOK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={_CANARY: "1"},
            pass_fds=[filter_file],
            timeout=20,
            check=False,
            **drop,
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        return "", str(error)
    finally:
        os.close(filter_file)
    return done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def _read(said: str) -> list[Feature]:
    """Judge what was found inside."""
    facts = [line.partition(":") for line in said.splitlines()]
    capabilities = [value.strip() for key, _, value in facts if key.startswith("Cap")]
    seccomp_mode = next((value.strip() for key, _, value in facts if key == "Seccomp"), "")

    def none(key: str) -> tuple[bool, str]:
        found = [value for name, _, value in facts if name == key]
        return not found, f"found {', '.join(found)}"

    return [
        Feature("namespaces", True),
        Feature("system call filter on PID 1", seccomp_mode == "2", f"mode {seccomp_mode}"),
        Feature("no capabilities", bool(capabilities) and not any(int(c, 16) for c in capabilities)),
        Feature("an empty environment", *none("environment")),
        Feature("read-only roots", *none("writable")),
        Feature("no new user namespaces", *none("userns")),
        Feature("its own processes only", *none("processes")),
        Feature("a network of its own", *none("network")),
    ]


def explain(said: str, bwrap: Path) -> Feature:
    """What a message of bubblewrap's means and what fixes it."""
    text = said.strip() or "bwrap said nothing"
    for cause in _CAUSES:
        if re.search(cause.pattern, text):
            fix = cause.fix.replace("{namespaces}", _namespaces()).replace("{most}", _most())
            return Feature(
                cause.feature,
                False,
                text,
                fix.replace("{bwrap}", str(bwrap)).replace("{{", "{").replace("}}", "}"),
            )
    return Feature("namespaces", False, text, _DOCKER_SECCOMP)


def _most() -> str:
    return "sudo sysctl -w user.max_user_namespaces=65536"


def _namespaces() -> str:
    """Which of the several switches is off."""
    if _setting("kernel/unprivileged_userns_clone") == "0":
        return "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if _setting("user/max_user_namespaces") == "0":
        return _most()
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return _APPARMOR_PROFILE
    return _DOCKER_SECCOMP


def _setting(name: str) -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys", name).read_text().strip()
    return ""
