"""The Dockerfile, compose.yaml and the systemd unit against the code: what they name exists."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from gofer.cli.commands import COMMANDS, NOUNS
from gofer.settings import PREFIX, Settings
from gofer_sandbox.bubblewrap import cgroups
from support.servers import valkey_binary

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = (ROOT / "compose.yaml").read_text(encoding="utf-8")
UNIT = (ROOT / "deploy" / "gofer.service").read_text(encoding="utf-8")
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE)["services"]
PAGE = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text", [DOCKERFILE, COMPOSE, UNIT, PAGE], ids=["Dockerfile", "compose", "unit", "page"]
)
def test_every_setting_that_is_named_exists(text: str) -> None:
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    named = set(re.findall(r"GOFER_[A-Z_]*[A-Z]", text))
    assert {name.removesuffix("_FILE") for name in named} <= known


@pytest.mark.parametrize("text", [DOCKERFILE, UNIT, PAGE], ids=["Dockerfile", "unit", "page"])
def test_every_command_that_is_named_exists(text: str) -> None:
    named = re.findall(r"(?:bin/gofer|exec gofer gofer|`gofer) ([a-z]+)", text)
    named += re.findall(r'CMD \["gofer", "([a-z]+)"', text)
    named += re.findall(r'^CMD \["([a-z]+)"\]', text, re.M)
    assert named
    assert set(named) <= {*COMMANDS, *NOUNS}


def test_the_roles_in_compose_are_commands() -> None:
    roles = re.findall(r"^    command: \[up, --processes, ([a-z]+)\]", COMPOSE, re.M)
    assert set(roles) == {"web", "worker"} <= set(COMMANDS)


def test_the_image_gets_every_file_it_is_built_from() -> None:
    let_through = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.M))
    copied = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if re.match(r"COPY (?!--from)", line)]
    names = {name for line in copied for name in line}
    assert names == let_through
    assert all((ROOT / name).exists() for name in names)


def test_what_stops_it_waits_longer_than_it_takes() -> None:
    longest = Settings.model_fields["stop_within"].default
    (of_compose,) = re.findall(r"stop_grace_period: (\d+)s # longer", COMPOSE)
    (of_unit,) = re.findall(r"TimeoutStopSec=(\d+)", UNIT)
    assert min(int(of_compose), int(of_unit)) > longest


def test_a_restart_by_systemd_spares_the_shells_and_a_container_says_it_does_not() -> None:
    assert "\nKillMode=process\n" in UNIT
    assert "GOFER_KEEP_SHELLS=false" in DOCKERFILE
    assert "Shells do not survive the container." in PAGE


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed")
    (tmp_path / "gofer.service").write_text(UNIT.replace("/opt/gofer/bin/gofer up", "/bin/true up"))
    told = subprocess.run(
        [analyze, "verify", str(tmp_path / "gofer.service")], capture_output=True, text=True, timeout=60
    )
    # systemd before 254 does not know that line, as the unit says.
    wrong = [line for line in told.stderr.splitlines() if "'DelegateSubgroup'" not in line]
    assert [line for line in wrong if "gofer.service" in line] == []


def test_systemd_is_told_by_the_supervisor_that_gofer_is_ready_and_lives() -> None:
    assert "\nType=notify\n" in UNIT
    assert "\nWatchdogSec=60\n" in UNIT
    assert re.search(r"^ExecStart=\S+/gofer up$", UNIT, re.M)
    assert re.search(r"^RestartPreventExitStatus=78$", UNIT, re.M)


@pytest.mark.parametrize("moved", [True, False])
def test_what_keeps_an_older_systemd_from_starting_the_next_server_is_taken_away(
    tmp_path: Path, moved: bool
) -> None:
    """Run as systemd would; that it then starts one was seen with systemd 252."""
    assert f"\nDelegateSubgroup={cgroups.GIVEN}\n" in UNIT
    (line,) = re.findall(r"^ExecStopPost=-/bin/sh -c '(.+?)'$", UNIT.replace("\\\n", " "), re.M)
    own = tmp_path / "fs" / "system.slice" / "gofer.service"
    (own / (cgroups.MOVED if moved else cgroups.GIVEN)).mkdir(parents=True)
    (own / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (tmp_path / "cgroup").write_text("0::/system.slice/gofer.service/.control\n")
    script = line.replace("$$", "$").replace("%%", "%")
    script = script.replace("/proc/self/cgroup", f"{tmp_path}/cgroup").replace(
        "/sys/fs/cgroup", f"{tmp_path}/fs"
    )
    subprocess.run(["/bin/sh", "-c", script], check=True)
    written = (own / "cgroup.subtree_control").read_text()
    assert written == ("-memory -pids -cpu\n" if moved else "cpu memory pids\n")


def test_the_image_runs_as_nobody_in_particular_under_an_init_with_a_health_check() -> None:
    assert re.search(r"^USER 10001:10001$", DOCKERFILE, re.M)
    assert 'ENTRYPOINT ["gofer"]' in DOCKERFILE
    assert 'CMD ["up"]' in DOCKERFILE
    assert 'CMD ["gofer", "status", "--running"]' in DOCKERFILE


def test_every_container_has_a_bound_on_memory_and_processes() -> None:
    assert {name for name, one in SERVICES.items() if not (one["mem_limit"] and one["pids_limit"])} == set()


def test_only_who_listens_has_the_owners_password() -> None:
    having = {name for name, one in SERVICES.items() if "owner_password" in one["secrets"]}
    assert having == {"gofer", "web", "web-redis"}
    told = {
        name
        for name, one in SERVICES.items()
        if "GOFER_OWNER_PASSWORD_FILE" in (one.get("environment") or {})
    }
    assert told == having


def test_every_secret_of_a_service_exists_and_is_explained() -> None:
    known = yaml.safe_load(COMPOSE)["secrets"]
    assert {name for one in SERVICES.values() for name in one["secrets"]} == set(known)
    assert all(f"secrets/{name}" in PAGE for name in known)


def test_the_store_and_redis_are_reached_by_gofer_alone_and_reach_nothing() -> None:
    networks = yaml.safe_load(COMPOSE)["networks"]
    for name in ("db", "redis"):
        assert all(networks[network]["internal"] for network in SERVICES[name]["networks"])
        assert "ports" not in SERVICES[name]
    assert not {*SERVICES["db"]["networks"]} & {*SERVICES["redis"]["networks"]}
    assert not {*SERVICES["web"]["networks"]} & {*SERVICES["worker"]["networks"]} - {"store"}
    assert {name for one in SERVICES.values() for name in one["networks"]} == set(networks)


def test_redis_answers_nobody_without_its_password(tmp_path: Path) -> None:
    """Run as its container would, but for the places."""
    (tmp_path / "redis_password").write_text("of-the-test\n")
    *shell, script = SERVICES["redis"]["command"]
    script = script.replace("$$", "$").replace("/run/secrets", str(tmp_path)).replace("/data", str(tmp_path))
    script = script.replace("exec valkey-server", f"exec {valkey_binary()}").rstrip()
    place = tmp_path / "socket"
    server = subprocess.Popen([*shell, f"{script} --port 0 --unixsocket {place}"], stdout=subprocess.DEVNULL)
    try:
        while not place.exists():
            assert server.poll() is None
            time.sleep(0.01)
        assert _said(place, "PING") == "-NOAUTH Authentication required."
        assert _said(place, "AUTH of-the-test") == "+OK"
        assert "of-the-test" not in Path(f"/proc/{server.pid}/cmdline").read_text()
        assert (tmp_path / "conf").stat().st_mode & 0o077 == 0
    finally:
        server.kill()
        server.wait()


def _said(place: Path, command: str) -> str:
    with socket.socket(socket.AF_UNIX) as speaking:
        speaking.connect(str(place))
        speaking.sendall(f"{command}\r\n".encode())
        return speaking.recv(1000).decode().strip()


def test_the_unit_gives_shells_what_they_need_and_the_server_no_more() -> None:
    settings = dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.M))
    assert settings["PrivateTmp"] == settings["PrivateDevices"] == settings["NoNewPrivileges"] == "yes"
    assert settings["LimitCORE"] == "0"
    # The sandbox's filter allows the same four; without netlink bubblewrap cannot bring up a loopback.
    assert settings["RestrictAddressFamilies"].split() == ["AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"]
    assert not {"RestrictNamespaces", "SystemCallFilter", "ProtectHostname", "ProtectKernelTunables"} & set(
        settings
    )
