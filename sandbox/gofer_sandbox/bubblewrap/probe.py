"""Trying, for real, what this machine lets a sandbox have, and saying how to get what is missing."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gofer_sandbox.bubblewrap import arguments, binary, cgroups, etc, remedies, seccomp, spawn
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
        features.append(Feature("limits for a session as a whole", groups is not None, why, remedies.CGROUPS))
        root = os.geteuid() == 0
        features.append(
            Feature("a user id for each session", root, "the server is not root", remedies.OWN_USER)
        )
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
        return [remedies.explain(said[1] if said else "it took too long", bwrap)]
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
