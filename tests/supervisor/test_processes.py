"""The supervisor keeps a release running: whatever ends it, it is started again, and nobody is refused meanwhile."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gofer_sandbox.bubblewrap import binary
from gofer_supervisor.system import is_crash_loop, restart_delay
from supervisor.releases import SOURCE, Supervised, alive, eventually

pytestmark = pytest.mark.waits


def test_a_release_is_started_and_proves_itself(gofer: Supervised) -> None:
    gofer.start(gofer.add("one"))
    eventually(lambda: bool(gofer.events("revision.promoted")))
    assert gofer.serves("one")
    told = [event["kind"] for event in gofer.events()]
    assert told == ["revision.started", "worker.spawned", "revision.promoted"]
    assert gofer.stop() == 0
    assert gofer.did == ["one serve", "one stopped"]
    last = gofer.events("worker.exited")[-1]
    assert (last["asked"], last["code"], last["build"]) == (True, 0, "one")


def test_a_killed_process_is_started_again_and_its_visitors_wait(gofer: Supervised) -> None:
    gofer.start(gofer.add("one"))
    eventually(lambda: gofer.proved("one"))
    pid = gofer.events("worker.spawned")[0]["pid"]
    os.kill(pid, signal.SIGKILL)
    assert gofer.get() == (200, "one")  # asked while nothing listened: not refused
    ended = gofer.events("worker.exited")[0]
    assert (ended["code"], ended["asked"]) == (-signal.SIGKILL, False)


def test_processes_that_end_together_are_no_crash_loop(gofer: Supervised) -> None:
    gofer.start(gofer.add("one"), processes={"web": 4}, rolling=True)
    eventually(lambda: gofer.proved("one"))
    assert gofer.process is not None
    gofer.process.send_signal(signal.SIGSTOP)  # so that it learns of everything in one look
    for pid, _ in gofer.home.load().processes.values():
        os.kill(pid, signal.SIGKILL)
    gofer.process.send_signal(signal.SIGCONT)
    assert gofer.get() == (200, "one")
    eventually(lambda: len(gofer.events("worker.spawned")) == 8)
    assert not gofer.events("worker.crash_loop")


def test_the_last_lines_of_a_process_say_why_it_ended(gofer: Supervised) -> None:
    gofer.start(gofer.add("one", "start"))
    eventually(lambda: bool(gofer.events("worker.crash_loop")))
    assert gofer.events("worker.exited")[0]["last_lines"] == ["it cannot import itself"]


def test_while_nothing_can_run_a_page_says_so(gofer: Supervised) -> None:
    gofer.start(gofer.add("one", "start"))
    eventually(lambda: bool(gofer.events("worker.crash_loop")))
    status, page = gofer.get(Accept="text/html")
    assert status == 503
    assert "Gofer is not running" in page
    assert "gofer update list" in page
    status, problem = gofer.get("/hooks/telegram")
    assert (status, json.loads(problem)["status"]) == (503, 503)
    # Three starts were enough to see it; it rests now instead of trying for ever.
    assert len(gofer.events("worker.spawned")) == 3
    (told,) = gofer.events("worker.crash_loop")
    assert told["outage"] > 0
    gofer.kill()
    gofer.start(gofer.home.release("one"))
    eventually(lambda: len(gofer.events("worker.crash_loop")) == 2)
    assert gofer.events("worker.crash_loop")[-1]["outage"] == told["outage"], "it is one outage, told of once"


def test_a_visitor_who_says_nothing_does_not_hold_the_page(gofer: Supervised) -> None:
    gofer.start(gofer.add("one", "configuration"))
    eventually(lambda: bool(gofer.events("worker.crash_loop")))
    silent = [socket.create_connection(("127.0.0.1", gofer.port)) for _ in range(80)]
    for one in silent[:40]:
        one.close()
    eventually(lambda: gofer.get()[0] == 503)
    for one in silent:
        one.close()


def test_settings_that_cannot_work_are_not_tried_again_at_once(gofer: Supervised) -> None:
    gofer.start(gofer.add("one", "configuration"))
    eventually(lambda: bool(gofer.events("worker.crash_loop")))
    assert len(gofer.events("worker.spawned")) == 1


def test_a_process_without_a_sign_of_life_is_replaced(gofer: Supervised) -> None:
    gofer.start(gofer.add("one", "hangs"), watchdog=1, probation=60)
    eventually(lambda: len(gofer.events("worker.spawned")) >= 2)
    assert "no sign of life" in gofer.events("worker.unhealthy")[0]["reason"]


def test_a_process_that_answers_nobody_is_replaced(gofer: Supervised) -> None:
    gofer.start(gofer.add("one", "unhealthy"), health_every=0.1, probation=60)
    eventually(lambda: len(gofer.events("worker.spawned")) >= 2)
    assert "/healthz" in gofer.events("worker.unhealthy")[0]["reason"]


def test_a_process_that_never_gets_ready_is_given_up(gofer: Supervised) -> None:
    gofer.start(gofer.add("one", "silent"), ready_within=1)
    eventually(lambda: bool(gofer.events("worker.unhealthy")))
    assert "not ready" in gofer.events("worker.unhealthy")[0]["reason"]


SIGNALS_FIRST = """
from selectors import DefaultSelector
select = DefaultSelector.select
DefaultSelector.select = lambda self, within: sorted(select(self, within), key=lambda found: found[0].fd)
"""
"""The kernel promises no order; this one has the supervisor reap processes before it looks at what they said."""


def test_processes_that_end_all_at_once_do_not_end_the_supervisor(gofer: Supervised) -> None:
    gofer.start(gofer.add("one"), processes={"web": 3}, rolling=True, first=SIGNALS_FIRST)
    eventually(lambda: gofer.proved("one"))
    assert gofer.process is not None
    gofer.process.send_signal(signal.SIGSTOP)  # so that it learns of everything in one look
    for event in gofer.events("worker.spawned"):
        os.kill(event["pid"], signal.SIGKILL)
    eventually(lambda: not any(alive(event["pid"]) for event in gofer.events("worker.spawned")))
    gofer.process.send_signal(signal.SIGCONT)
    eventually(lambda: len(gofer.events("worker.exited")) == 3)
    assert gofer.get()[0] in (200, 503)
    assert gofer.process.poll() is None


def test_without_descriptors_the_supervisor_tries_again_and_keeps_the_release(gofer: Supervised) -> None:
    gofer.start(gofer.add("one"))
    eventually(lambda: gofer.proved("one"))
    gofer.add("two")
    gofer.ask(do="deploy", build="two")
    eventually(lambda: gofer.proved("two"))
    assert gofer.process is not None
    before = resource.prlimit(gofer.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(gofer.process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    gofer.end_process()
    eventually(lambda: gofer.logged.count("tries again") >= 2)
    resource.prlimit(gofer.process.pid, resource.RLIMIT_NOFILE, before)
    eventually(lambda: gofer.serves("two"))
    assert gofer.process.poll() is None
    assert gofer.home.linked("current") == "two"
    assert not gofer.events("revision.rolled_back")


def test_only_what_cannot_work_keeps_systemd_from_starting_it_again(gofer: Supervised) -> None:
    installed = gofer.add("one")
    lock = Path(gofer.home.path, "supervisor.lock")
    lock.mkdir()
    gofer.start(installed)
    assert gofer.process is not None
    assert gofer.process.wait(20) == 1
    lock.rmdir()
    gofer.start(installed, home=str(Path(gofer.home.path, "releases", "one", "manifest.json")))
    assert gofer.process.wait(20) == 78


def test_a_process_that_lives_and_is_not_ready_any_more_is_replaced(gofer: Supervised) -> None:
    unready = Path(gofer.home.path, "unready")
    gofer.start(gofer.add("one", f"unready {unready}"), unready_within=1)
    eventually(lambda: gofer.proved("one"))
    unready.touch()
    eventually(lambda: bool(gofer.events("worker.unhealthy")))
    unready.unlink()
    assert "not ready for 1 seconds: no connection is free" in gofer.events("worker.unhealthy")[0]["reason"]
    eventually(lambda: gofer.did.count("one serve") == 2 and gofer.serves("one"))


def test_a_process_that_is_ready_again_in_time_goes_on(gofer: Supervised) -> None:
    unready = Path(gofer.home.path, "unready")
    gofer.start(gofer.add("one", f"unready {unready}"), unready_within=30, probation=1)
    unready.touch()
    eventually(lambda: gofer.serves("one"))
    assert gofer.home.linked("good") == "", "while it is not ready, it proves nothing"
    unready.unlink()
    eventually(lambda: gofer.proved("one"))
    assert gofer.events("worker.unhealthy") == []
    assert gofer.did == ["one serve"]


def test_a_supervisor_that_was_killed_finds_and_ends_what_it_left(gofer: Supervised) -> None:
    one = gofer.add("one")
    gofer.start(one)
    eventually(lambda: gofer.proved("one"))
    gofer.kill()
    gofer.start(one)
    eventually(lambda: len(gofer.events("worker.spawned")) == 2 and gofer.serves("one"))
    first, second = (event["pid"] for event in gofer.events("worker.spawned"))
    assert not alive(first)
    assert alive(second)


def test_nobody_else_can_say_that_a_process_is_ready(gofer: Supervised) -> None:
    gofer.start(gofer.add("one", "silent"), ready_within=60)
    eventually(lambda: gofer.did == ["one serve"])
    pid = gofer.events("worker.spawned")[0]["pid"]
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    address = next(one for one in environ if one.startswith(b"NOTIFY_SOCKET=")).partition(b"=")[2]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.connect(b"\0" + address[1:])
        stranger.send(b"READY=1")
    eventually(lambda: gofer.trial() is not None)
    assert gofer.home.linked("good") == ""
    os.kill(pid, signal.SIGKILL)


def test_orphans_are_reaped_as_the_first_process_of_a_container_must(gofer: Supervised) -> None:
    gofer.start(gofer.add("one"))
    eventually(lambda: gofer.proved("one"))
    assert gofer.process is not None
    children = Path(f"/proc/{gofer.process.pid}/task/{gofer.process.pid}/children").read_text().split()
    assert len(children) == 1


def test_many_visitors_at_once_are_all_served_through_a_restart(gofer: Supervised) -> None:
    gofer.start(gofer.add("one"))
    eventually(lambda: gofer.proved("one"))
    answers: list[tuple[int, str]] = []
    visitors = [threading.Thread(target=lambda: answers.append(gofer.get())) for _ in range(20)]
    assert gofer.process is not None
    gofer.process.send_signal(signal.SIGHUP)  # every process is started anew
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    assert answers == [(200, "one")] * 20


def test_it_needs_nothing_but_the_standard_library() -> None:
    seen = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(SOURCE)!r}); "
         "import gofer_supervisor.__main__; print(*sorted(sys.modules))"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    roots = {name.partition(".")[0] for name in seen}
    assert roots - set(sys.stdlib_module_names) == {"gofer_supervisor", "__main__"} - set(
        sys.stdlib_module_names
    )


def test_a_crash_loop_is_three_ends_in_a_minute_or_ten_in_ten() -> None:
    assert not is_crash_loop([0, 59], now=59)
    assert is_crash_loop([0, 30, 59], now=59)
    assert not is_crash_loop([0, 30, 61], now=61)
    assert is_crash_loop([60.0 * n for n in range(10)], now=541)
    assert [restart_delay(n) for n in (1, 2, 3, 12)] == [0.5, 1, 2, 30]


def test_systemd_is_told_when_gofer_is_ready_lives_and_ends(gofer: Supervised, tmp_path: Path) -> None:
    place = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(place)
        systemd.settimeout(60)
        environment = {"NOTIFY_SOCKET": place, "WATCHDOG_USEC": "10000000"}
        gofer.start(gofer.add("one"), environment=environment)
        heard = [systemd.recv(200)]
        while b"READY=1" not in heard or heard[-1] != b"WATCHDOG=1":
            heard.append(systemd.recv(200))
        assert gofer.serves("one")
        (pid,) = (event["pid"] for event in gofer.events("worker.spawned"))
        given = Path(f"/proc/{pid}/environ").read_bytes()
        assert place.encode() not in given, "a release speaks to the supervisor, not to systemd"
        assert gofer.stop() == 0
        while heard[-1] != b"STOPPING=1":
            heard.append(systemd.recv(200))
    assert heard.count(b"READY=1") == heard.count(b"STOPPING=1") == 1
    assert set(heard) == {b"READY=1", b"WATCHDOG=1", b"STOPPING=1"}


def test_systemd_reads_why_nothing_can_run(gofer: Supervised, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        gofer.start(gofer.add("one", "start"), environment={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert systemd.recv(500).startswith(b"STATUS=The process serve ended by itself (exit code 1)")


def test_as_the_first_process_of_a_container_it_reaps_what_others_leave(gofer: Supervised) -> None:
    """In a namespace of process ids, as in an image, where whoever loses its parent becomes a child of the first."""
    alone = [str(binary.find()), "--dev-bind", "/", "/", "--unshare-pid", "--as-pid-1", "--proc", "/proc"]
    gofer.start(gofer.add("one", "orphans"), inside=[*alone, "--die-with-parent"])
    eventually(lambda: gofer.proved("one"))
    assert gofer.process is not None
    (first,) = Path(f"/proc/{gofer.process.pid}/task/{gofer.process.pid}/children").read_text().split()
    assert Path(f"/proc/{first}/status").read_text().split("NSpid:")[1].split()[1] == "1"
    assert "one made orphans" in gofer.did

    def only_the_release() -> bool:
        return len(Path(f"/proc/{first}/task/{first}/children").read_text().split()) == 1

    eventually(only_the_release)
    os.kill(int(first), signal.SIGTERM)
    assert gofer.process.wait(60) == 0
