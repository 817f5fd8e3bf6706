"""What this machine lets a sandbox have, tried for real, and the command or flag that gets what is missing."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gofer_sandbox.bubblewrap import arguments, binary, cgroups, seccomp, trial
from gofer_sandbox.errors import IsolationUnavailable
from gofer_sandbox.levels import Level
from gofer_sandbox.provider import Feature, Report

_NAME = "bubblewrap"
_UNTRIED = Feature(
    "system calls refused, and vsock", True, "not tried: there is no perl inside", "apt-get install perl-base"
)

_CGROUPS_FIX = (
    "as an ordinary user: systemd-run --user --scope -p Delegate=yes <command>; as a systemd service: "
    "Delegate=yes and KillMode=process in its unit; in Docker 28 or newer: docker run "
    "--security-opt writable-cgroups=true"
)
QUOTA_FIX = (
    "run the server as root and let project quotas be enforced where its data is; on ext4: tune2fs -O project,quota "
    "DEVICE while it is not mounted, then mount -o prjquota; on XFS: mount -o prjquota"
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
        trial.remove_leftovers(base, groups)
        return cls._judged(base, found, shared, groups, why)

    @classmethod
    def _judged(cls, base: Path, bwrap: Path, shared: Path, groups: cgroups.Groups | None, why: str) -> Probe:
        tried = trial.run(base, bwrap, shared, groups)
        features = _isolation(tried) if tried.complete else [_explain(tried.words, bwrap)]
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
        return cls(Report(_NAME, level, tuple(features), attested=True), bwrap, shared, groups)

    @classmethod
    def _nothing(cls, feature: Feature) -> Probe:
        return cls(Report(_NAME, Level.NONE, (feature,), attested=True), None, None, None)


def _isolation(tried: trial.Trial) -> list[Feature]:
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
