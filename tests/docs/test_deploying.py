"""The Dockerfile, compose.yaml and the systemd unit against the code: what they name exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gofer.cli.commands import COMMANDS, NOUNS
from gofer.settings import PREFIX, Settings
from gofer_sandbox.bubblewrap import cgroups

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = (ROOT / "compose.yaml").read_text(encoding="utf-8")
UNIT = (ROOT / "deploy" / "gofer.service").read_text(encoding="utf-8")
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
    roles = re.findall(r"^    command: \[([a-z]+)\]", COMPOSE, re.M)
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
    assert 'ENTRYPOINT ["/usr/bin/tini", "--", "gofer"]' in DOCKERFILE
    assert 'CMD ["gofer", "status", "--running"]' in DOCKERFILE
