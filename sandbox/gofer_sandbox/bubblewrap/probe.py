"""Trying, for real, what this machine lets a sandbox have, and saying how to get what is missing."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from gofer_sandbox.bubblewrap import binary, cgroups, etc, remedies, seccomp, trial
from gofer_sandbox.errors import IsolationUnavailable
from gofer_sandbox.levels import Level
from gofer_sandbox.provider import Feature, Report

_NAME = "bubblewrap"
_UNTRIED = Feature(
    "system calls refused, and vsock", True, "not tried: there is no perl inside", "apt-get install perl-base"
)


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
        shared = etc.make(base)
        groups, why = cgroups.find() if use_cgroups else (None, "not to be used")
        trial.forget(base, groups)
        return cls._judged(base, found, shared, groups, why)

    @classmethod
    def _judged(cls, base: Path, bwrap: Path, shared: Path, groups: cgroups.Groups | None, why: str) -> Probe:
        tried = trial.run(base, bwrap, shared, groups)
        features = _isolation(tried) if tried.complete else [remedies.explain(tried.words, bwrap)]
        isolated = all(feature.ok for feature in features)
        if tried.unlimited:
            groups, why = None, tried.unlimited
        root = os.geteuid() == 0
        features += [
            Feature("limits for a session as a whole", groups is not None, why, remedies.CGROUPS),
            Feature("a user id for each session", root, "the server is not root", remedies.OWN_USER),
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
