"""A whole sandbox with its gate: the network opens with it, follows it when made again, and ends with it."""

from __future__ import annotations

import asyncio
import base64
import os
import select
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gofer_sandbox import Bubblewrap, GateBlocked, Record, Sandbox
from gofer_sandbox.network import AllowedHost, Callers, Credential, Egress, GitAccess, Rule, Unanswered
from sandbox.upstream import PASSWORD, USER, Upstream, seed_repositories, upstream


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Upstream]:
    seed_repositories(tmp_path)
    with upstream(tmp_path) as running:
        running.pages["/"] = (200, {}, b"hello\n")
        yield running


THIEF = b"""
import socket, time
while True:
    try:
        taken = socket.create_server(("127.0.0.1", 3128))
        break
    except OSError:
        time.sleep(0.01)
open("taken", "w").close()
time.sleep(600)
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    """A session's directory; not pytest's, which other users cannot pass through."""
    path = Path(tempfile.mkdtemp(prefix="gate-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


async def here(host: str, port: int) -> list[str]:
    """Every name is this machine: the test's own DNS."""
    return ["127.0.0.1"]


def gate_for(server: Upstream) -> Egress:
    return Egress([AllowedHost("ok.test", (server.port,), allow_private=True)], resolve=here)


def _end(pid: int) -> None:
    """Kill a process and wait until it has gone."""
    handle = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([handle], [], [], 10)
    os.close(handle)


async def test_the_gate_follows_the_sandbox(server: Upstream) -> None:
    ask = f"curl -s http://ok.test:{server.port}/"
    gate = gate_for(server)
    sandbox = Sandbox(Bubblewrap(), gate=gate)
    await sandbox.start()
    assert (await sandbox.run(ask)).output == "hello\n"
    _end(sandbox.record.reference.pid)
    assert (await sandbox.run("true")).recreated
    assert (await sandbox.run(ask)).output == "hello\n"
    record = sandbox.record.to_json()
    await sandbox.detach()
    second = await Sandbox.attach(Record.from_json(record), Bubblewrap(), gate=gate_for(server))
    try:
        assert (await second.run(ask)).output == "hello\n"
    finally:
        await second.close()


async def test_restoring_goes_on_where_a_process_has_taken_the_gate_s_port(
    server: Upstream, directory: Path
) -> None:
    sandbox = Sandbox(Bubblewrap(), directory=directory, gate=gate_for(server))
    await sandbox.start()
    await sandbox.write("thief.py", THIEF)
    await sandbox.run("A=kept; python3 thief.py &>/dev/null &")
    record = sandbox.record
    await sandbox.detach()
    while not (directory / "workspace" / "taken").exists():
        await asyncio.sleep(0.02)
    with pytest.raises(GateBlocked, match="already listens"):
        await Sandbox.attach(record, Bubblewrap(), gate=gate_for(server))
    assert os.path.exists(f"/proc/{record.reference.pid}")
    restored = await Sandbox.restore(record, Bubblewrap(), gate=gate_for(server))
    try:
        result = await restored.run(f"echo $A; curl -s http://ok.test:{server.port}/")
        assert result.output == "kept\nhello\n"
        assert result.recreated
        assert len(result.background_lost) == 1
        assert any("already listens" in note and "made again" in note for note in result.notes)
        assert not os.path.exists(f"/proc/{record.reference.pid}")
    finally:
        await restored.close()


async def test_without_a_gate_nothing_is_reached(server: Upstream) -> None:
    async with Sandbox(Bubblewrap()) as sandbox:
        assert (await sandbox.run(f"curl -s http://127.0.0.1:{server.port}/")).exit_code == 7
        assert (await sandbox.run("env | grep -i proxy")).output == ""


async def test_git_works_with_the_configuration_we_give_and_a_grant(server: Upstream) -> None:
    rule = Rule(
        "code",
        f"http://git.test:{server.port}",
        ("/org/repo",),
        credential=Credential.basic(USER, PASSWORD),
        git=GitAccess(push=("refs/heads/work/*",)),
        allow_private=True,
    )
    gate = gate_for(server)
    async with Sandbox(Bubblewrap(), gate=gate) as sandbox:
        await sandbox.write(".gitconfig", gate.git_config(rule) + "[user]\n\tname = a\n\temail = a@b\n")
        clone = (
            f"git clone -q {rule.upstream}/org/repo.git && cd repo && git commit -q --allow-empty -m second"
        )
        assert (await sandbox.run(clone)).exit_code != 0
        async with gate.grant(rule):
            assert (await sandbox.run(clone)).ok
            assert (await sandbox.run("git push -q origin HEAD:work/fix")).ok
            refused = await sandbox.run("git push -q origin HEAD:main")
        assert "may push only to refs/heads/work/*" in refused.output
        assert (await sandbox.run("git push -q origin HEAD:work/late")).exit_code != 0
    assert "work/fix" in server.git("for-each-ref")
    assert "work/late" not in server.git("for-each-ref")
    assert [r.host for r in gate.refusals] == ["code", "git.test", "code"]
    shutil.rmtree(server.repositories, ignore_errors=True)


async def test_a_grant_may_be_for_what_the_shell_starts_from_then_on(server: Upstream) -> None:
    server.pages["/page"] = (200, {}, b"hello")
    upstream = f"http://git.test:{server.port}"
    lent: list[str] = []

    async def lend(refused: Credential | None) -> Credential:
        if len(lent) == 2:
            raise Unanswered("nobody is there")
        lent.append(PASSWORD)
        return Credential.basic(USER, PASSWORD)

    rule = Rule("api", upstream, ("/",), allow_private=True, lender=lend)
    gate = gate_for(server)
    get = f"curl -s {gate.url(rule, '/page')}"
    async with Sandbox(Bubblewrap(), gate=gate) as sandbox:
        before = f"until [ -e go ]; do sleep 0.02; done; {get} > $0; touch $0.done"
        await sandbox.run(f"bash -c '{before}' stays & (setsid bash -c '{before}' leaves &)")
        async with gate.grant(rule, Callers.from_now(lambda: sandbox.shell)):
            assert (await sandbox.run(f"bash -c '{get}'; ({get} & wait)")).output == "hellohello"
            waited = "touch go; until [ -e stays.done -a -e leaves.done ]; do sleep 0.02; done"
            said = await sandbox.run(f"{waited}; cat stays leaves")
            assert said.output.count("Refused by the sandbox: this program was not started by") == 2
            assert "nobody is there" in (await sandbox.run(get)).output
    assert len(lent) == 2


async def test_a_program_does_not_pass_for_another_by_its_port(server: Upstream) -> None:
    """A port is somebody's at one address; at every other address of the loopback it is free to all."""
    server.pages["/page"] = (200, {}, b"hello")
    rule = Rule("api", f"http://git.test:{server.port}", ("/",), allow_private=True)
    gate = gate_for(server)
    url = gate.url(rule, "/page")
    port = int(url.split("/")[2].partition(":")[2])
    tries = f"for n in $(seq 2 9); do curl -s --interface 127.0.0.$n --local-port $(cat port) {url}; done"
    connect = f"exec 9<>/dev/tcp/127.0.0.1/{port}"
    find = f"""awk '$4 == "01" && $3 ~ /:{port:04X}$/ {{ split($2, at, ":"); print at[2] }}' /proc/net/tcp"""
    async with Sandbox(Bubblewrap(), gate=gate) as sandbox:
        await sandbox.run(f"bash -c 'until [ -e go ]; do sleep 0.02; done; {tries} > theirs; touch done' &")
        async with gate.grant(rule, Callers.from_now(lambda: sandbox.shell)):
            await sandbox.run(f"{connect}; echo $((16#$({find}))) > port; touch go")
            said = (await sandbox.run("until [ -e done ]; do sleep 0.02; done; cat port theirs")).output
    assert "hello" not in said
    assert said.count("this program was not started by") == 8


async def test_a_credential_that_comes_back_in_odd_places_does_not_enter(server: Upstream) -> None:
    packed = base64.b64encode(f"X-Seen: {PASSWORD}".encode())
    server.pages["/named"] = (200, {PASSWORD: "1", "X": PASSWORD}, PASSWORD.encode() + b" " + packed)
    server.pages["/broken"] = (200, {f"{PASSWORD} no header": "1"}, b"")
    rule = Rule(
        "api",
        f"http://git.test:{server.port}",
        ("/",),
        credential=Credential.basic(USER, PASSWORD),
        allow_private=True,
    )
    gate = gate_for(server)
    async with Sandbox(Bubblewrap(), gate=gate) as sandbox, gate.grant(rule):
        for path, status in (("/named", "200"), ("/broken", "502")):
            said = (await sandbox.run(f"curl -si {gate.url(rule, path)}")).output
            assert said.startswith(f"HTTP/1.1 {status}")
            assert PASSWORD not in said
            assert packed.decode()[12:-4] not in said
    assert PASSWORD not in repr(gate.refusals)
