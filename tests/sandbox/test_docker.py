"""The docker provider against a strict stand-in of the engine whose containers really run."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gofer_sandbox import (
    Bubblewrap,
    IsolationUnavailable,
    Level,
    Limits,
    Record,
    Reference,
    Sandbox,
    SandboxGone,
    StartFailed,
    Unconfined,
    processes,
    reap,
    records,
)
from gofer_sandbox.docker import Docker, Engine, EngineError
from gofer_sandbox.errors import InvalidInput
from gofer_sandbox.network import AllowedHost, Egress
from sandbox.docker_engine import FakeEngine, Refusal, docker_engine
from sandbox.upstream import upstream
from support.patience import eventually

AS_ROOT = os.geteuid() == 0


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory every session's user can pass through."""
    directory = Path(tempfile.mkdtemp(prefix="docker-"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def engine(place: Path) -> Iterator[FakeEngine]:
    with docker_engine(place) as running:
        yield running


@pytest.fixture
def docker(engine: FakeEngine, place: Path) -> Docker:
    return provider(engine, place)


def provider(engine: FakeEngine, place: Path, image: str = "debian:12", **options: object) -> Docker:
    base = place / "base"
    base.mkdir(mode=0o711, exist_ok=True)
    return Docker(image, engine=engine.address, base=base, **options)  # type: ignore[arg-type]


def left_over(engine: FakeEngine, place: Path) -> list[str]:
    """What should not be there when no session is: containers and control directories."""
    names = [path.name for path in (place / "base").iterdir() if path.name not in ("uids", "records")]
    names += [path.name for path in (place / "base" / "records").glob("*")]
    claims = [path.name for path in (place / "base" / "uids").glob("*")]
    return [*engine.containers, *names, *claims]


async def test_a_container_is_asked_for_with_everything_closed(
    docker: Docker, engine: FakeEngine, place: Path
) -> None:
    limits = Limits(memory=256 << 20, cpus=99.0, processes=50, tmp=16 << 20, shm=8 << 20)
    async with Sandbox(docker, limits=limits, environment={"GREETING": "hello"}) as sandbox:
        [container] = engine.containers.values()
        reference = sandbox.record.reference
    config, host = container.config, container.config["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert "CapAdd" not in host
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["Privileged"] is False
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (256 << 20, 256 << 20, 50)
    assert host["NanoCpus"] == (os.cpu_count() or 1) * 10**9, "more processors than there are is refused"
    assert "size=16777216" in host["Tmpfs"]["/tmp"]
    assert {mount["Target"]: mount["ReadOnly"] for mount in host["Mounts"]} == {
        "/run/s": True,
        "/workspace": False,
    }
    assert config["User"] == f"{reference.uid}:{reference.gid}"
    assert (reference.uid >= 2_000_000_000) is AS_ROOT
    assert "GREETING=hello" in config["Env"]
    assert not any(value in " ".join(config["Env"]) for value in ("PYTEST", str(place)))
    assert config["Labels"]["gofer-sandbox.session"] == sandbox.id
    assert left_over(engine, place) == []


async def test_the_shell_keeps_its_state_and_survives_what_commands_do(docker: Docker) -> None:
    async with Sandbox(docker) as sandbox:
        assert (await sandbox.run("cd /tmp; x=1; f() { echo f$x; }; sleep 300 & echo $$")).ok
        assert (await sandbox.run("f; pwd")).output == "f1\n/tmp\n"
        ended = await sandbox.run("exit 3")
        assert (ended.exit_code, ended.restarted) == (3, True)
        late = await sandbox.run("echo begun; sleep 50; echo NO", timeout=0.3)
        assert (late.output, late.timed_out) == ("begun\n", True)
        after = await sandbox.run("f; pwd; touch /root-file; echo $?")
        assert after.output.startswith("f1\n/tmp\n")
        assert "Read-only" in after.output
        assert after.background == ("sleep 300",)


async def test_files_are_read_and_written_from_outside(docker: Docker) -> None:
    async with Sandbox(docker) as sandbox:
        await sandbox.write("a/b.txt", "one\ntwo\n")
        assert (await sandbox.run("cat a/b.txt; echo three >> a/b.txt")).output == "one\ntwo\n"
        assert (await sandbox.read("a/b.txt")).lines == ("one", "two", "three")
        await sandbox.run("echo inner > /tmp/t")
        assert (await sandbox.read("/tmp/t")).lines == ("inner",)


async def test_a_session_is_attached_to_by_its_record(
    docker: Docker, engine: FakeEngine, place: Path
) -> None:
    first = Sandbox(docker)
    await first.start()
    await first.run("x=kept")
    record = first.record.to_json()
    await first.detach()
    second = await Sandbox.attach(Record.from_json(record), provider(engine, place))
    try:
        assert (await second.run("echo $x")).output == "kept\n"
        assert len(engine.containers) == 1
    finally:
        await second.close()
    with pytest.raises(SandboxGone):
        await Sandbox.attach(Record.from_json(record), provider(engine, place))
    assert left_over(engine, place) == []


async def test_a_lost_container_is_made_again_with_files_and_state(
    docker: Docker, engine: FakeEngine, place: Path
) -> None:
    async with Sandbox(docker) as sandbox:
        await sandbox.run("x=kept; echo file > f")
        await sandbox.snapshot()
        [container] = engine.containers.values()
        container.kill()
        lost = await sandbox.run("echo again")
        assert lost.recreated
        assert (await sandbox.run("echo $x; cat f")).output == "kept\nfile\n"
        assert container.id not in engine.containers
    assert left_over(engine, place) == []


async def test_it_ends_even_when_the_engine_does_not_answer(engine: FakeEngine, place: Path) -> None:
    sandbox = Sandbox(provider(engine, place))
    await sandbox.start()
    await sandbox.run("sleep 1000 & disown")
    pid, control = sandbox.record.reference.pid, sandbox.record.reference.control
    engine.fail_next["remove"] = Refusal(500, "the engine is unwell")
    with pytest.raises(EngineError, match="unwell"):
        await sandbox.close()
    assert processes.start_time(pid) is None
    [container] = engine.containers.values()
    await eventually(lambda: not container.running)  # the engine hears of it a moment later
    assert not Path(control).exists()
    shutil.rmtree(sandbox.workspace.parent)


async def test_an_image_is_pulled_when_it_is_missing(engine: FakeEngine, place: Path) -> None:
    async with Sandbox(provider(engine, place, "debian:13")) as sandbox:
        assert (await sandbox.run("echo $HOME")).output == "/workspace\n"
    with pytest.raises(StartFailed, match=r"nonesuch:latest not found: manifest unknown"):
        await Sandbox(provider(engine, place, "nonesuch")).start()
    with pytest.raises(StartFailed, match="docker pull nonesuch"):
        await Sandbox(provider(engine, place, "nonesuch", pull=False)).start()
    assert left_over(engine, place) == []


@pytest.mark.parametrize("route", ["create", "start", "inspect"])
async def test_a_failed_start_leaves_nothing(engine: FakeEngine, place: Path, route: str) -> None:
    docker = provider(engine, place)
    await docker.probe()
    engine.fail_next[route] = Refusal(500, "no space left on device")
    with pytest.raises(StartFailed, match="Docker: no space left on device"):
        await Sandbox(docker).start()
    assert left_over(engine, place) == []


async def test_processes_that_cannot_be_seen_are_said_with_what_to_do(
    engine: FakeEngine, place: Path
) -> None:
    engine.hide_pids = True
    with pytest.raises(StartFailed, match="--pid=host"):
        await Sandbox(provider(engine, place)).start()
    assert left_over(engine, place) == []


def _spoil_security(engine: FakeEngine) -> None:
    engine.security = ["name=cgroupns"]


def _remap(engine: FakeEngine) -> None:
    engine.security.append("name=userns")


def _windows(engine: FakeEngine) -> None:
    engine.info["OSType"] = "windows"


@pytest.mark.parametrize(
    ("spoil", "options", "words"),
    [
        (_spoil_security, {}, "the engine filters no system calls"),
        (_remap, {}, "userns-remap"),
        (_windows, {}, "switch it to Linux containers"),
        (lambda engine: None, {"runtime": "kata"}, "/etc/docker/daemon.json under runtimes: kata"),
        (
            lambda engine: engine.info.update(PidsLimit=False),
            {"minimum": Level.LIMITED},
            "limit of processes",
        ),
    ],
)
async def test_an_engine_that_gives_too_little_is_refused_with_the_fix(
    engine: FakeEngine,
    place: Path,
    spoil: Callable[[FakeEngine], None],
    options: dict[str, object],
    words: str,
) -> None:
    spoil(engine)
    with pytest.raises(IsolationUnavailable, match=words):
        await Sandbox(provider(engine, place, **options)).start()  # type: ignore[arg-type]
    assert not any(method == "POST" for method, _ in engine.calls)


async def test_the_level_says_what_the_engine_can_limit(engine: FakeEngine, place: Path) -> None:
    best = Level.SEPARATED if AS_ROOT else Level.LIMITED
    assert (await provider(engine, place).probe()).level is best
    engine.info["MemoryLimit"] = False
    report = await provider(engine, place).probe()
    assert report.level is Level.ISOLATED
    assert "limit of memory" in report.words


async def test_the_level_says_that_reports_can_be_forged(engine: FakeEngine, place: Path) -> None:
    """An engine passes no socket on which the kernel would say who speaks."""
    forgeable = "what is left running can forge a later command's exit code"
    assert forgeable in (await provider(engine, place).probe()).summary
    assert forgeable in (await Unconfined().probe()).summary
    assert forgeable not in (await Bubblewrap(base=place).probe()).summary


async def test_a_runtime_is_passed_on(engine: FakeEngine, place: Path) -> None:
    async with Sandbox(provider(engine, place, runtime="runsc")):
        [container] = engine.containers.values()
        assert container.config["HostConfig"]["Runtime"] == "runsc"


@pytest.mark.parametrize(
    ("api", "spoken"), [(("1.24", "1.43"), "1.43"), (("1.44", "1.52"), "1.44"), (("1.24", "1.41"), "1.41")]
)
async def test_the_version_is_one_both_know(engine: FakeEngine, api: tuple[str, str], spoken: str) -> None:
    engine.api = api
    await Engine(engine.address).info()
    assert engine.calls[-1] == ("GET", f"/v{spoken}/info")


async def test_tcp_is_spoken_too(place: Path) -> None:
    with docker_engine(place, tcp=True) as engine:
        async with Sandbox(provider(engine, place)) as sandbox:
            assert (await sandbox.run("echo over tcp")).output == "over tcp\n"


async def test_an_engine_that_is_not_there_is_said_with_what_to_do(place: Path) -> None:
    missing = Docker("debian:12", engine=f"unix://{place}/none.sock", base=place)
    with pytest.raises(IsolationUnavailable, match="is the engine running"):
        await Sandbox(missing).start()
    for address in ("http://x", "unix://", "tcp://host", "nonsense"):
        with pytest.raises(InvalidInput):
            Engine(address)
    with upstream(place) as other:
        report = await Docker("debian:12", engine=f"tcp://127.0.0.1:{other.port}", base=place).probe()
    assert report.level is Level.NONE
    assert "is not Docker's engine" in report.words


async def test_the_reaper_ends_a_start_that_was_cut_short_and_nothing_else(
    engine: FakeEngine, place: Path
) -> None:
    docker = provider(engine, place)
    kept, lost = Sandbox(docker, directory=place / "kept"), Sandbox(docker, directory=place / "lost")
    for sandbox in (kept, lost):
        await sandbox.start()
    await Engine(engine.address).create("somebody-else-s", _plain(engine))
    record = lost.record  # as it is written ahead, before the engine has answered
    ahead = Reference(boot=record.reference.boot, control=record.reference.control)
    await lost.detach()
    records.put(docker.base, replace(record, reference=ahead))
    assert await reap(docker, {kept.id}, within=place) == [lost.id]
    assert {container.name for container in engine.containers.values()} == {
        f"gofer-sandbox-{kept.id}",
        "somebody-else-s",
    }
    assert (await kept.run("echo here")).output == "here\n"
    await kept.close()


def _plain(engine: FakeEngine) -> dict[str, object]:
    return {"Image": "debian:12", "Cmd": ["true"], "HostConfig": {}}


async def test_removing_twice_and_names_in_use(engine: FakeEngine) -> None:
    client = Engine(engine.address)
    container = await client.create("one", _plain(engine))
    with pytest.raises(EngineError, match="already in use") as caught:
        await client.create("one", _plain(engine))
    assert caught.value.status == 409
    await client.remove(container)
    await client.remove(container)
    assert await client.inspect(container) is None


async def test_its_network_is_opened_like_any_other(docker: Docker, place: Path) -> None:
    async def here(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    with upstream(place) as server:
        server.pages["/"] = (200, {}, b"hello\n")
        gate = Egress([AllowedHost("ok.test", (server.port,), allow_private=True)], resolve=here)
        async with Sandbox(docker, gate=gate) as sandbox:
            assert (await sandbox.run(f"curl -s http://ok.test:{server.port}/")).output == "hello\n"
            assert "403" in (await sandbox.run("curl -sv http://evil.test/ 2>&1")).output
        assert gate.refusals[-1].host == "evil.test"


def test_the_library_does_not_load_an_http_client_for_those_who_do_not_use_docker() -> None:
    code = "import sys, gofer_sandbox, gofer_sandbox.docker; sys.exit('httpx2' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": os.pathsep.join(sys.path)})


async def test_sessions_at_once_do_not_meet(docker: Docker) -> None:
    async def one(number: int) -> str:
        async with Sandbox(docker) as sandbox:
            await sandbox.write("f", str(number))
            return (await sandbox.run("cat f; ls /workspace | wc -l")).output

    assert await asyncio.gather(*(one(n) for n in range(5))) == [f"{n}1\n" for n in range(5)]
