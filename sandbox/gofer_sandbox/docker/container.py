"""What the engine is told of a sandbox: everything closed that can be closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gofer_sandbox.limits import Limits
from gofer_sandbox.shell import scripts

HOME = "/workspace"
SESSION_LABEL = "gofer-sandbox.session"
OWNER_LABEL = "gofer-sandbox.base"

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "USER": "agent",
    "LOGNAME": "agent",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One container-to-be. `user` is what the engine shall run it as, `uid` and `gid` what that is inside."""

    session: str
    owner: str
    image: str
    runtime: str | None
    processors: int
    uid: int
    gid: int
    workspace: Path
    control: Path
    limits: Limits
    environment: Mapping[str, str]
    readonly: Sequence[Path]

    @property
    def name(self) -> str:
        """The container's name, which also keeps a session from being made twice."""
        return f"gofer-sandbox-{self.session}"

    def body(self) -> dict[str, Any]:
        """The request for `POST /containers/create`."""
        return {
            "Image": self.image,
            "Entrypoint": ["bash"],
            "Cmd": [*scripts.KEEPER_OPTIONS, f"{scripts.INSIDE}/keeper"],
            "User": f"{self.uid}:{self.gid}",
            "WorkingDir": HOME,
            "Hostname": "sandbox",
            "Env": [f"{name}={value}" for name, value in {**ENVIRONMENT, **self.environment}.items()],
            "Labels": {SESSION_LABEL: self.session, OWNER_LABEL: self.owner},
            "AttachStdin": False,
            "AttachStdout": False,
            "AttachStderr": False,
            "OpenStdin": False,
            "Tty": False,
            "NetworkDisabled": True,
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": self._host(),
        }

    def _host(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "Privileged": False,
            "PublishAllPorts": False,
            "AutoRemove": False,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "none", "Config": {}},
            "Init": False,  # the keeper is PID 1 and reaps
            "Mounts": self._mounts(),
            "Tmpfs": self._tmpfs(),
            **self._resources(),
        }
        return options | ({"Runtime": self.runtime} if self.runtime else {})

    def _resources(self) -> dict[str, Any]:
        limits = self.limits
        return {
            "Memory": limits.memory,
            "MemorySwap": limits.memory,  # memory and swap together: none
            "NanoCpus": int(min(limits.cpus, self.processors) * 1e9),  # more than there are is refused
            "PidsLimit": limits.processes,
            "ShmSize": limits.shm,
            "Ulimits": [
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files},
                {"Name": "fsize", "Soft": limits.file_size, "Hard": limits.file_size},
            ],
        }

    def _mounts(self) -> list[dict[str, Any]]:
        shown = [_bind(self.control, scripts.INSIDE, True), _bind(self.workspace, HOME, False)]
        return shown + [_bind(path, str(path), True) for path in self.readonly]

    def _tmpfs(self) -> dict[str, str]:
        return {
            "/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={self.limits.tmp}",  # noqa: S108 a path inside
        }


def _bind(source: Path, target: str, readonly: bool) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": target,
        "ReadOnly": readonly,
        "BindOptions": {"Propagation": "rprivate"},
    }
