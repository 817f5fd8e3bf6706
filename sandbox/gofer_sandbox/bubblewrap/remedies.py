"""What bubblewrap's messages mean, and the command or flag that helps."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gofer_sandbox.bubblewrap import binary
from gofer_sandbox.provider import Feature

CGROUPS = (
    "as an ordinary user: systemd-run --user --scope -p Delegate=yes <command>; as a systemd service: "
    "Delegate=yes and KillMode=process in its unit; in Docker 28 or newer: docker run "
    "--security-opt writable-cgroups=true"
)
QUOTA = (
    "run the server as root and let project quotas be enforced where its data is; on ext4: tune2fs -O project,quota "
    "DEVICE while it is not mounted, then mount -o prjquota; on XFS: mount -o prjquota"
)
OWN_USER = "run the server as root; it becomes another user for each session"

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
class Cause:
    """A message, what it is about, and what to do given the path of bwrap."""

    pattern: str
    feature: str
    fix: Callable[[Path], str]


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


CAUSES = (
    Cause(r"No permissions to creat(e|ing) (a )?new namespace", "namespaces", _namespaces),
    Cause(r"reating new namespace failed: .*(No space|resource)", "namespaces", lambda _: _MORE_NAMESPACES),
    Cause(r"reating new namespace failed", "namespaces", _namespaces),
    Cause(r"setting up uid map: Permission denied", "user namespaces", _apparmor),
    Cause(r"setting up [ug]id map", "user namespaces", lambda _: _CONTAINER_SECCOMP),
    Cause(r"Can't mount proc|max_user_namespaces: Read-only", "a fresh /proc", lambda _: _CONTAINER_PROC),
    Cause(r"make / slave|pivot_root|bind mount|mount tmpfs", "mounts", lambda _: _CONTAINER_MOUNTS),
    Cause(r"loopback: |RTM_NEW", "a network of its own", lambda _: _CONTAINER_NETWORK),
    Cause(r"Unknown option", "bubblewrap", lambda _: binary.INSTALL),
    Cause(r"seccomp|SECCOMP", "system call filter", lambda _: "the kernel needs CONFIG_SECCOMP_FILTER=y"),
    Cause(r"execvp bash", "bash", lambda _: "install bash: apt-get install bash, or apk add bash"),
)


def explain(said: str, bwrap: Path) -> Feature:
    """The feature that failed, with what bubblewrap said and what helps."""
    text = said.strip() or "bwrap said nothing"
    for cause in CAUSES:
        if re.search(cause.pattern, text):
            return Feature(cause.feature, False, text, cause.fix(bwrap))
    return Feature("namespaces", False, text, _CONTAINER_SECCOMP)
