"""Every tool in a real sandbox, as the platform lends it: what the model is told is what the shell did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.conftest import Make
from agent.pictures import PNG
from agent.stopwatch import stopwatch
from gofer.agent.outcome import Answered, Stopped
from gofer.runs.conversation_shell import ConversationShell
from gofer_sandbox import Bubblewrap, IsolationUnavailable, Sandbox
from gofer_standins.anthropic import Reply, call, calls, say
from support.patience import patience


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[ConversationShell]:
    async def opening() -> Sandbox:
        sandbox = Sandbox(Bubblewrap(), directory=tmp_path / "box")
        await sandbox.start()
        return sandbox

    (tmp_path / "box").mkdir()
    shell = ConversationShell(tmp_path / "box", opening)
    try:
        await shell._sandbox()
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    yield shell
    assert shell.sandbox is not None
    await shell.sandbox.close()


def told(request: dict[str, Any]) -> list[str]:
    """What the last message says of each call."""
    return [block["content"][0]["text"] for block in request["messages"][-1]["content"] if "content" in block]


async def test_a_task_of_several_calls_is_really_done(direct: Make, shell: ConversationShell) -> None:
    def script(request: Any) -> Reply:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        if turn == 0:
            return calls(
                call("write", path="src/sum.py", content="print(sum(range(101)))\n"),
                call("bash", command="cd src; export WHO=shell; python3 sum.py || python sum.py"),
            )
        if turn == 1:
            return calls(
                call("edit", path="src/sum.py", edits=[{"old": "101", "new": "11"}]),
                call("bash", command='python3 sum.py; echo "$WHO in $(basename $PWD)"'),
                call("read", path="src/sum.py"),
            )
        if turn == 2:
            return calls(
                call("ls", path="src"),
                call("find", pattern="*.py", path="/workspace"),
                call("grep", pattern="range", path="/workspace"),
                call("bash", command="exit 7"),
            )
        return say(f"The shell printed {told(request)[3]}.")

    world, service = direct(script)
    world.shell = shell
    assert await world.run() == Answered("The shell printed [exit code 7].", included_to=1)
    assert told(service.received[1])[1] == "5050"
    assert told(service.received[2])[1] == "55\nshell in src"
    assert "print(sum(range(11)))" in told(service.received[2])[2]
    listed, found, hits, _ = told(service.received[3])
    assert "sum.py" in listed
    assert found == "/workspace/src/sum.py"
    assert hits == "/workspace/src/sum.py:1:print(sum(range(11)))"


async def test_background_images_and_long_output(direct: Make, shell: ConversationShell) -> None:
    def script(request: Any) -> Reply:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        if turn == 0:
            start = call("bash", command="echo begun; sleep 600", background=True)
            return calls(start, call("bash", command="seq 1 300000"), call("read", path="dot.png"))
        job = told(service.received[1])[0].split("job ", 1)[1].split(".")[0]
        if turn == 1:
            return calls(call("bash_job", action="output", job=job), call("bash_job", action="kill", job=job))
        if turn == 2:
            return calls(call("bash_job", action="list"), call("bash", command="pgrep -c sleep"))
        return say("Seen.")

    world, service = direct(script)
    world.shell = shell
    await shell.write("dot.png", PNG)
    assert await world.run() == Answered("Seen.", included_to=1)
    _, long, picture = service.received[1]["messages"][-1]["content"]
    assert "lines left out" in long["content"][0]["text"]
    assert "300000" in long["content"][0]["text"]
    assert [block["type"] for block in picture["content"]] == ["text", "image"]
    output, killed = told(service.received[2])
    assert output.startswith("begun\n\n[running")
    assert killed == "Killed."
    listed, sleeping = told(service.received[3])
    assert "exited killed" in listed
    assert sleeping.startswith("0")


async def test_stop_ends_a_command_in_the_sandbox(direct: Make, shell: ConversationShell) -> None:
    world, _ = direct(calls(call("bash", command="echo begun; sleep 600; echo never")))
    world.shell = shell
    running = asyncio.ensure_future(world.run())
    while "tool.delta" not in [kind for kind, _ in world.heard]:
        await asyncio.sleep(0.01)
    async with stopwatch() as watch:
        world.inbox.stop()
        assert isinstance(await running, Stopped)
        assert watch.seconds < 2
    assert "begun" in world.journal.last("tool.finished")["content"]
    assert (await shell.run("pgrep -c sleep", timeout=patience(10))).output == b"0\n"


async def test_files_outside_are_not_there(direct: Make, shell: ConversationShell, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("secret")
    paths = [str(tmp_path / "outside.txt"), "../../../outside.txt", "/proc/1/environ", "/run/s/in", "a\0b"]
    world, service = direct(calls(*(call("read", path=path) for path in paths)), say("No."))
    world.shell = shell
    assert isinstance(await world.run(), Answered)
    for path, text in zip(paths, told(service.received[1]), strict=True):
        assert "secret" not in text, path
    results = service.received[1]["messages"][-1]["content"]
    assert [bool(result.get("is_error")) for result in results][:2] == [True, True]


async def test_whether_a_command_changed_files_is_seen_from_outside(shell: ConversationShell) -> None:
    async def changed(command: str) -> bool:
        return (await shell.run(command, timeout=patience(10))).changed

    await changed("mkdir -p src; echo 1 >src/a")
    assert not await changed("cat src/a; mkdir -p __pycache__; echo x >__pycache__/a.pyc")
    assert await changed("echo 22 >src/a")
    assert not await changed("cat src/a")
    await shell.write("src/a", b"333")
    assert not await changed("cat src/a"), "what `write` did is told by `write`"
    assert await changed("rm -r src")
