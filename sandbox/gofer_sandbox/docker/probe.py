"""What an engine gives: asked of it, since its options are only as good as its machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from gofer_sandbox.docker.engine import Engine, EngineError
from gofer_sandbox.levels import Level
from gofer_sandbox.provider import Feature, Report

_LIMITS = {"MemoryLimit": "memory", "PidsLimit": "processes", "CpuCfsQuota": "cpu"}


@dataclass(frozen=True, slots=True)
class Probe:
    """The report, and what starting a container needs to know."""

    report: Report
    processors: int = 1
    rootless: bool = False


async def probe(engine: Engine, image: str, runtime: str | None) -> Probe:
    """Ask the engine about itself, its limits, the runtime and the image."""
    try:
        info = await engine.info()
        image_there = await engine.has_image(image)
    except EngineError as error:
        feature = Feature("engine", False, str(error), "start Docker, or give its address")
        return Probe(Report("docker", Level.NONE, (feature,)))
    features = [Feature("engine", True), *_isolation(info, runtime), *_limits(info)]
    features.append(_image(image, image_there))
    options = " ".join(map(str, info.get("SecurityOptions") or ()))
    level = _level(features, os.geteuid() == 0)
    return Probe(
        Report("docker", level, tuple(features)), int(info.get("NCPU") or 1), "name=rootless" in options
    )


def _isolation(info: dict[str, Any], runtime: str | None) -> list[Feature]:
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    remapped = any(option.startswith("name=userns") for option in options)
    return [
        Feature(
            "Linux containers",
            info.get("OSType") == "linux",
            f"this engine runs {info.get('OSType')} containers",
            "switch it to Linux containers",
        ),
        Feature(
            "seccomp",
            any(option.startswith("name=seccomp") for option in options),
            "the engine filters no system calls",
            "use an engine and kernel with seccomp, and do not start it with an unconfined profile",
        ),
        Feature(
            "user ids",
            not remapped,
            "the engine remaps user ids, so its containers cannot open our FIFOs",
            "use an engine without userns-remap, or a rootless one",
        ),
        Feature(
            "runtime",
            runtime is None or runtime in (info.get("Runtimes") or {}),
            f"the engine has no runtime named {runtime}",
            f"install it and add it to /etc/docker/daemon.json under runtimes: {runtime}",
        ),
    ]


def _limits(info: dict[str, Any]) -> list[Feature]:
    fix = "enable this control group on the engine's machine"
    return [
        Feature(f"limit of {word}", bool(info.get(key)), "the engine cannot set it", fix)
        for key, word in _LIMITS.items()
    ]


def _image(image: str, there: bool) -> Feature:
    return Feature("image", there, f"{image} is not there yet", f"docker pull {image}")


def _level(features: list[Feature], own_users: bool) -> Level:
    failed = {feature.name for feature in features if not feature.ok} - {"image"}
    if not failed:
        return Level.SEPARATED if own_users else Level.LIMITED
    return Level.ISOLATED if all(name.startswith("limit of ") for name in failed) else Level.NONE
