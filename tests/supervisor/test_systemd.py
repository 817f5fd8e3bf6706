"""The unit under a real systemd, which is the first process of namespaces of its own: where root can make those."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.releases import SOURCE, Supervised, eventually

SYSTEMD = "/lib/systemd/systemd"
UNIT = (SOURCE.parent / "deploy" / "gofer.service").read_text(encoding="utf-8")
KEPT = r"(?:Type|KillMode|Timeout\w+|Restart\w*|OOMPolicy)=.*"
"""What the unit says about starting, stopping and restarting. Its users and directories are not here."""
ALONE = (
    "unshare",
    "--pid",
    "--fork",
    "--mount",
    "--uts",
    "--ipc",
    "--cgroup",
    "--mount-proc",
    "--kill-child",
)
AS_FIRST = "mount --make-rprivate /; mount -t tmpfs tmpfs /run; exec {systemd} --system --unit=test.target"
AFTER = """
[Unit]
DefaultDependencies=no
After=gofer.service
[Service]
Type=oneshot
ExecStart=touch {mark}
"""


class Systemd:
    """A systemd with the unit of Gofer, a target that wants it, and something that comes after it."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self.mark, self.log = folder / "mark", folder / "log"
        units = folder / "units"
        units.mkdir()
        script = folder / "up"
        script.write_text(f"#!/bin/sh\nexec {shlex.join(command)} 2>>{self.log}\n")
        script.chmod(0o755)
        kept = re.findall(f"^{KEPT}$", UNIT, re.M)
        service = [
            "[Unit]",
            "DefaultDependencies=no",
            "[Service]",
            *kept,
            "WatchdogSec=5",
            f"ExecStart={script}",
        ]
        (units / "gofer.service").write_text("\n".join(service))
        (units / "after.service").write_text(AFTER.format(mark=self.mark))
        wants = "[Unit]\nDefaultDependencies=no\nWants=gofer.service after.service\n"
        (units / "test.target").write_text(wants)
        environment = {**os.environ, "SYSTEMD_UNIT_PATH": str(units), "container": "test"}
        first = ["sh", "-c", AS_FIRST.format(systemd=SYSTEMD)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*ALONE, *first], env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def run(self, *command: str) -> str:
        """Run something where systemd is the first process."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        inside = ["nsenter", "--target", children[0], "--mount", "--pid"] if children else ["false"]
        return subprocess.run([*inside, *command], capture_output=True, text=True, timeout=120).stdout.strip()

    def said(self, name: str) -> str:
        """What systemd knows of the unit."""
        return self.run("systemctl", "show", "--value", "--property", name, "gofer.service")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def systemd(gofer: Supervised, tmp_path: Path) -> Iterator[Systemd]:
    names = ("unshare", "nsenter", "systemctl")
    if os.geteuid() != 0 or not os.access(SYSTEMD, os.X_OK) or not all(map(shutil.which, names)):
        pytest.skip("needs systemd, and root to run it in namespaces of its own")
    if subprocess.run([*ALONE, "true"], capture_output=True, timeout=60).returncode != 0:
        pytest.skip("namespaces cannot be made here")
    one = Systemd(tmp_path, gofer.command(gofer.add("one", f"waits {tmp_path / 'gate'}")))
    yield one
    one.end()


@pytest.mark.slow
def test_systemd_starts_watches_restarts_and_stops_the_supervisor(
    gofer: Supervised, systemd: Systemd, tmp_path: Path
) -> None:
    eventually(lambda: gofer.did == ["one serve"])
    assert systemd.said("ActiveState") == "activating", "it is not ready yet"
    assert not systemd.mark.exists()
    (tmp_path / "gate").touch()
    eventually(lambda: systemd.said("ActiveState") == "active" and gofer.serves("one"))
    eventually(systemd.mark.exists)

    restarts = int(systemd.said("NRestarts"))
    hung = systemd.said("MainPID")
    systemd.run("kill", "-STOP", hung)
    eventually(lambda: int(systemd.said("NRestarts")) > restarts, 60)
    eventually(lambda: systemd.said("ActiveState") == "active" and gofer.serves("one"), 60)
    assert systemd.said("MainPID") != hung
    assert gofer.events("worker.spawned")[-1]["build"] == "one"

    systemd.run("systemctl", "stop", "gofer.service")
    assert (systemd.said("ActiveState"), systemd.said("Result")) == ("inactive", "success")
    assert gofer.did[-1] == "one stopped"
