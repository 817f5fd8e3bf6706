"""Files of a real sandbox, read and changed from outside, and every way we know to trick that."""

from __future__ import annotations

import contextlib
import difflib
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gofer_sandbox.errors import InvalidInput, SandboxError, SandboxGone
from gofer_sandbox.files import (
    BinaryFile,
    ConfinedFiles,
    Edit,
    EditRefused,
    FileBusy,
    FileError,
    FileMissing,
    FileRefused,
    FileTooLarge,
    InvalidPath,
    NoSpace,
    NotAFile,
    confinement,
    text,
)
from sandbox.bare_box import AS_ROOT, BareBox, bare_box


@pytest.fixture(scope="module")
def shared_box() -> Iterator[BareBox]:
    with bare_box() as box:
        yield box


@pytest.fixture
def box(shared_box: BareBox) -> BareBox:
    shared_box.sh("cd /workspace; chmod -R u+rwX . ; rm -rf /workspace/* /workspace/.[!.]* /tmp/*")
    return shared_box


@pytest.fixture
def files(box: BareBox) -> Iterator[ConfinedFiles]:
    with contextlib.closing(ConfinedFiles(box.pid, box.uid, box.gid, "/workspace")) as files:
        yield files


# Reading


def test_a_text_file_is_read_line_by_line(box: BareBox, files: ConfinedFiles) -> None:
    box.sh("printf 'one\\ntwo\\r\\nthree' > a.txt")
    page = files.read_text("a.txt")
    assert page.lines == ("one", "two", "three")
    assert (page.total_lines, page.next_line, page.size, page.lossy) == (3, None, 14, False)


def test_pages_join_to_the_whole_file(box: BareBox, files: ConfinedFiles) -> None:
    box.sh("seq 1 2500 > n")
    seen: list[str] = []
    line: int | None = 1
    while line:
        page = files.read_text("n", first_line=line, lines=999)
        seen += page.lines
        line = page.next_line
    assert seen == [str(n) for n in range(1, 2501)]
    assert page.total_lines == 2500


def test_an_empty_file_and_a_page_beyond_the_end_have_no_lines(box: BareBox, files: ConfinedFiles) -> None:
    box.sh("touch empty; echo x > one")
    assert files.read_text("empty").lines == ()
    beyond = files.read_text("one", first_line=9)
    assert (beyond.lines, beyond.next_line, beyond.total_lines) == ((), None, 1)


def test_long_lines_are_cut_between_characters_and_counted(
    box: BareBox, files: ConfinedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.sh("""printf '%*s' 5000 '' | tr ' ' x > long; printf '\\nshort\\n' >> long; printf 'aé\\n' > cut""")
    monkeypatch.setattr(text, "MAX_LINE", 100)
    page = files.read_text("long")
    assert [len(line) for line in page.lines] == [100, 5]
    assert page.shortened == 1
    monkeypatch.setattr(text, "MAX_LINE", 2)
    page = files.read_text("cut")
    assert (page.lines, page.shortened, page.lossy) == (("a",), 1, False)


def test_a_page_has_a_limit_in_bytes_and_the_next_goes_on(
    box: BareBox, files: ConfinedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.sh("seq 100000 100999 > n")
    monkeypatch.setattr(text, "MAX_PAGE", 600)
    page = files.read_text("n")
    assert len(page.lines) == 100
    assert page.next_line == 101
    assert files.read_text("n", first_line=101).lines[0] == "100100"


def test_an_endless_sparse_file_is_neither_counted_nor_loaded(
    box: BareBox, files: ConfinedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.sh("seq 1 5000 > s; truncate -s 1T s")
    monkeypatch.setattr(text, "MAX_SCANNED", 1 << 20)
    page = files.read_text("s", lines=10)
    assert (len(page.lines), page.total_lines, page.next_line, page.size) == (10, None, 11, 1 << 40)
    with pytest.raises(FileTooLarge, match="sed -n"):
        files.read_text("s", first_line=10**9)
    assert len(files.read_bytes("s").data) == confinement.MAX_READ


def test_bytes_that_are_not_utf8_are_shown_and_said(box: BareBox, files: ConfinedFiles) -> None:
    box.sh("printf 'caf\\xe9\\n' > latin; printf 'ok \\xef\\xbf\\xbd\\n' > real")
    assert files.read_text("latin").lines == ("caf\ufffd",)
    assert files.read_text("latin").lossy
    assert not files.read_text("real").lossy


def test_binary_is_recognised_and_can_be_read_as_bytes(box: BareBox, files: ConfinedFiles) -> None:
    box.sh("printf 'a\\0b' > bin")
    with pytest.raises(BinaryFile, match="3 bytes"):
        files.read_text("bin")
    assert files.read_bytes("bin").data == b"a\0b"
    part = files.read_bytes("bin", offset=1, limit=1)
    assert (part.data, part.offset, part.size) == (b"\0", 1, 3)
    assert files.read_bytes("bin", offset=99).data == b""


# Writing


def test_a_write_makes_directories_and_belongs_to_the_session(box: BareBox, files: ConfinedFiles) -> None:
    written = files.write("a/b/../c/d.txt", b"hello\n")
    assert (written.path, written.size, written.created) == ("/workspace/a/b/../c/d.txt", 6, True)
    assert box.sh("cat a/c/d.txt; stat -c %u:%g:%a a/c/d.txt") == f"hello\n{box.uid}:{box.gid}:644"
    assert not files.write("a/c/d.txt", b"").created


def test_a_write_keeps_the_mode_and_leaves_no_other_file(box: BareBox, files: ConfinedFiles) -> None:
    box.sh("echo old > run.sh; chmod 4755 run.sh")
    files.write("run.sh", b"new\n")
    assert box.sh("stat -c %a run.sh; ls -A") == "755\nrun.sh"


def test_a_write_through_a_link_changes_the_target_and_keeps_the_link(
    box: BareBox, files: ConfinedFiles
) -> None:
    box.sh("mkdir d e; ln -s ../e/real d/link; ln -s d/link top; ln -s /workspace/new dangling")
    files.write("top", b"1\n")
    files.write("dangling", b"2\n")
    assert box.sh("cat e/real new; readlink top dangling") == "1\n2\nd/link\n/workspace/new"


def test_readers_see_the_old_or_the_new_content_never_a_mixture(box: BareBox, files: ConfinedFiles) -> None:
    files.write("f", b"a" * 100_000)
    box.sh(
        "( for i in $(seq 60); do s=$(cat f); case $s in *a*b*|*b*a*) echo torn >> torn;; esac;"
        " [ ${#s} = 100000 ] || echo short >> torn; done; touch done ) >/dev/null 2>&1 &"
    )
    turn = 0
    while not (box.workspace / "done").exists():
        turn += 1
        files.write("f", (b"a", b"b")[turn % 2] * 100_000)
    assert turn > 10
    assert not (box.workspace / "torn").exists()


def test_a_hard_link_to_a_shared_file_is_replaced_not_written_through(
    box: BareBox, files: ConfinedFiles
) -> None:
    """A cache that links one file into many workspaces must not change under the others."""
    shared = box.home / "shared"
    shared.write_text("cached\n")
    os.chown(shared, box.uid, box.gid)
    os.link(shared, box.workspace / "module.py")
    files.edit("module.py", [Edit("cached", "mine")])
    assert shared.read_text() == "cached\n"
    assert box.sh("cat module.py") == "mine"


def test_a_full_disk_is_said_and_the_old_file_stays(box: BareBox, files: ConfinedFiles) -> None:
    files.write("/tmp/f", b"old")
    with pytest.raises(NoSpace):
        files.write("/tmp/f", b"x" * (2 << 20))
    assert box.sh("cat /tmp/f; ls -A /tmp") == "oldf"


def test_too_much_is_refused_before_it_is_written(
    files: ConfinedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confinement, "MAX_WRITE", 10)
    with pytest.raises(FileTooLarge, match="at most 10"):
        files.write("f", b"x" * 11)


def test_what_a_command_could_not_write_is_not_replaced_either(box: BareBox, files: ConfinedFiles) -> None:
    box.sh("echo keep > ro; chmod 444 ro; mkdir closed; chmod 555 closed")
    for path in ("ro", "closed/new", "/usr/new", "/new", "/dev/new"):
        with pytest.raises(FileRefused):
            files.write(path, b"x")
    assert box.sh("cat ro") == "keep"


# Editing


def test_edits_apply_together_and_show_their_diff(box: BareBox, files: ConfinedFiles) -> None:
    files.write("f.py", b"a = 1\nb = 2\nc = 3\n")
    edited = files.edit("f.py", [Edit("c = 3", "c = 30"), Edit("a = 1\n", "")])
    assert box.sh("cat f.py") == "b = 2\nc = 30\n".rstrip("\n")
    assert edited.diff.splitlines()[2:] == ["@@ -1,3 +1,2 @@", "-a = 1", " b = 2", "-c = 3", "+c = 30"]


@pytest.mark.parametrize(
    ("content", "edits", "message"),
    [
        (b"x\nx\n", [Edit("x", "y")], r"in the file 2 times \(lines 1, 2\)"),
        (b"aaa", [Edit("aa", "b")], "2 times"),
        (b"x", [Edit("y", "z")], "not in the file"),
        (b"def f():\n\treturn 1\n", [Edit("def f():\n    return 1", "")], "line 1 it differs only in spaces"),
        (b"\n\n  a b\n", [Edit("a  b", "c")], "at line 3 it differs only"),
        (b"a\r\nb\r\n", [Edit("a\nb", "c")], "CRLF"),
        (b"one\ntwo\n", [Edit("one\nthree", "c")], "first line is at line 1, but"),
        (b"x", [Edit("", "y")], "use write"),
        (b"x", [Edit("x", "x")], "the same"),
        (b"x", [], "no edits"),
        (b"abc", [Edit("ab", "1"), Edit("bc", "2")], "overlap"),
        (b"abc", [Edit("ab", "1"), Edit("zz", "2")], "the old text of edit 2 is not"),
        (b"x", [Edit("x", "\ud800")], "surrogates"),
    ],
)
def test_an_edit_that_is_not_certain_changes_nothing(
    files: ConfinedFiles, content: bytes, edits: list[Edit], message: str
) -> None:
    files.write("f", content)
    with pytest.raises(EditRefused, match=message):
        files.edit("f", edits)
    assert files.read_bytes("f").data == content


def test_the_diff_of_edits_far_apart_is_what_comparing_whole_files_gives(files: ConfinedFiles) -> None:
    lines = [f"line {n}\n" for n in range(1, 61)]
    files.write("f", "".join(lines).encode())
    edits = [
        Edit("line 2\n", ""),
        Edit("line 8\nline 9\n", "new\n" * 5),
        Edit("ne 40\n", "x\ny\n"),
        Edit("60\n", "end"),
    ]
    diff = files.edit("f", edits).diff
    after = files.read_bytes("f").data.decode().splitlines(keepends=True)
    expected = "".join(difflib.unified_diff(lines, after, "a/workspace/f", "b/workspace/f"))
    assert diff == expected + "\n\\ No newline at end of file\n"


@pytest.mark.parametrize(
    ("content", "old", "found"),
    [
        (b"a b\n" * 200_000, "a  b\n" * 100_000 + "z", False),
        (b"a" * 4_000_000, "a" * 100_000, False),
        (b"needle\n" + b"".join(b"%d\n" % (n * n % 401) for n in range(401)) * 1000, "needle", True),
    ],
)
def test_no_edit_keeps_the_server_busy(files: ConfinedFiles, content: bytes, old: str, found: bool) -> None:
    """Each would take hours if lines or matches were compared one by one."""
    files.write("f", content)
    began = time.monotonic()
    with contextlib.nullcontext() if found else pytest.raises(EditRefused):
        files.edit("f", [Edit(old, "new")])
    assert time.monotonic() - began < 5


def test_edits_keep_bytes_that_are_not_utf8_and_a_missing_last_newline(files: ConfinedFiles) -> None:
    files.write("f", b"\xff\xfe one\r\ntwo")
    assert "\\ No newline at end of file" in files.edit("f", [Edit("two", "2")]).diff
    assert files.read_bytes("f").data == b"\xff\xfe one\r\n2"


def test_binary_large_and_missing_files_cannot_be_edited(box: BareBox, files: ConfinedFiles) -> None:
    box.sh("printf '\\0' > bin; truncate -s 1G big")
    with pytest.raises(BinaryFile):
        files.edit("bin", [Edit("a", "b")])
    with pytest.raises(FileTooLarge, match="sed"):
        files.edit("big", [Edit("a", "b")])
    with pytest.raises(FileMissing):
        files.edit("none/at/all", [Edit("a", "b")])
    assert box.sh("ls -A") == "big\nbin"


def test_an_edit_follows_links_as_a_command_would(box: BareBox, files: ConfinedFiles) -> None:
    box.sh("echo one > real; ln -s real link")
    files.edit("link", [Edit("one", "two")])
    assert box.sh("cat real; readlink link") == "two\nreal"


# Listing


def test_a_directory_is_listed_by_name_with_kinds(box: BareBox, files: ConfinedFiles) -> None:
    box.sh("mkdir d; echo abc > f; ln -s f l; mkfifo p; printf x > $'bad\\xff'")
    listing = files.list(".")
    assert [(e.name, e.kind) for e in listing.entries] == [
        ("bad\\xff", "file"),
        ("d", "directory"),
        ("f", "file"),
        ("l", "link"),
        ("p", "pipe"),
    ]
    assert (listing.entries[2].size, listing.entries[3].target, listing.more) == (4, "f", 0)


def test_a_large_directory_is_listed_in_part(box: BareBox, files: ConfinedFiles) -> None:
    box.sh("for i in $(seq 1000 1299); do : > $i; done")
    listing = files.list("/workspace", limit=10)
    assert [e.name for e in listing.entries] == [str(n) for n in range(1000, 1010)]
    assert listing.more == 290


# Bad input


@pytest.mark.parametrize(
    "path",
    ["", "a\0b", "\ud800", "x" * 256, "a/" * 2048 + "b", "a/" * 200 + "b", None, 7, b"bytes"],
    ids=["empty", "nul", "surrogate", "name", "long", "deep", "none", "number", "bytes"],
)
def test_what_cannot_be_a_path_is_refused(files: ConfinedFiles, path: object) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: files.read_bytes(path),  # type: ignore[arg-type]
        lambda: files.read_text(path),  # type: ignore[arg-type]
        lambda: files.write(path, b""),  # type: ignore[arg-type]
        lambda: files.edit(path, [Edit("a", "b")]),  # type: ignore[arg-type]
        lambda: files.list(path),  # type: ignore[arg-type]
    ]
    for attempt in attempts:
        with pytest.raises(InvalidPath) as caught:
            attempt()
        assert isinstance(caught.value, InvalidInput)
        assert str(caught.value).isprintable()


def test_numbers_that_make_no_sense_are_refused(files: ConfinedFiles) -> None:
    files.write("f", b"x")
    for attempt in (
        lambda: files.read_bytes("f", offset=-1),
        lambda: files.read_bytes("f", limit=-1),
        lambda: files.read_text("f", first_line=0),
        lambda: files.read_text("f", lines=0),
        lambda: files.list("/", limit=0),
    ):
        with pytest.raises(InvalidPath):
            attempt()


def test_a_directory_is_not_a_file_and_a_file_is_not_a_directory(box: BareBox, files: ConfinedFiles) -> None:
    box.sh("mkdir d; echo x > f")
    for attempt in (
        lambda: files.read_text("d"),
        lambda: files.write("d", b"x"),
        lambda: files.edit("d", [Edit("a", "b")]),
    ):
        with pytest.raises(NotAFile, match="directory"):
            attempt()
    for path in ("d/", "d/.", "d/.."):
        with pytest.raises(InvalidPath, match="names a directory"):
            files.write(path, b"x")
    for path in ("f/x", "f/"):
        with pytest.raises(FileError):
            files.write(path, b"x")
    with pytest.raises(FileMissing):
        files.list("f")


# Tricks

OUTSIDE = "host secret\n"


@pytest.fixture
def outside(box: BareBox) -> Path:
    """A file of the host that the session must never see."""
    path = box.home / "secret"
    path.write_text(OUTSIDE)
    path.chmod(0o644)
    return path


@pytest.mark.parametrize(
    "link",
    [
        "{secret}",
        "../../../../../../../..{secret}",
        "/proc/self/root{secret}",
        "/proc/1/root{secret}",
        "/proc/1/cwd/../../{secret}",
        "/proc/self/fd/0",
        "/proc/1/environ",
        "/proc/sys/kernel/hostname",
        "/run/s/c",
        "/workspace/../run/s/c",
        "/dev/zero",
        "/dev/tty",
        "/dev/stdin",
        "/dev/fd/0",
        "pipe",
        "socket",
        "loop",
    ],
)
def test_a_link_leads_nowhere_a_session_may_not_go(
    box: BareBox, files: ConfinedFiles, outside: Path, link: str
) -> None:
    box.sh("mkfifo pipe; ln -s loop loop")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(box.workspace / "socket"))
    box.sh(f"ln -s {link.format(secret=outside)} trap")
    attempts: list[Callable[[], object]] = [
        lambda: files.read_bytes("trap"),
        lambda: files.read_text("trap"),
        lambda: files.edit("trap", [Edit("host", "x")]),
        lambda: files.list("trap"),
    ]
    for attempt in attempts:
        with pytest.raises(FileError):
            attempt()
    with pytest.raises(FileError):
        files.write("trap/x", b"x")
    assert outside.read_text() == OUTSIDE


@pytest.mark.parametrize(
    "path", ["/run/s/c", "/run/s/new", "/run/s/a/b", "/run/../run/s/c", "/proc/self/comm"]
)
def test_the_sandbox_s_own_files_are_refused_by_name(box: BareBox, files: ConfinedFiles, path: str) -> None:
    for attempt in (lambda: files.read_bytes(path), lambda: files.write(path, b"x")):
        with pytest.raises(FileError):
            attempt()
    with pytest.raises(FileRefused, match="sandbox itself"):
        files.list("/run/s")
    with pytest.raises(FileRefused, match="/proc"):
        files.list("/proc/1")
    assert (box.home / "control" / "c").read_text() == "control\n"


def test_a_write_that_climbs_out_stays_inside(box: BareBox, files: ConfinedFiles, outside: Path) -> None:
    box.sh("ln -s / slash")
    files.write("/../../../tmp/a", b"1")
    files.write("slash/../../tmp/b", b"2")
    assert box.sh("cat /tmp/a /tmp/b") == "12"


def test_a_lease_cannot_make_the_server_wait(box: BareBox, files: ConfinedFiles) -> None:
    """A process may hold a lease so that whoever opens the file waits up to 45 s for it."""
    files.write("f", b"x")
    box.sh(
        "python3 -c 'import fcntl,os,signal,time; signal.signal(signal.SIGIO, signal.SIG_IGN);"
        'f=os.open("f",os.O_RDWR); fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK);'
        'open("held","w"); time.sleep(30)\''
        " >/dev/null 2>&1 & until [ -e held ]; do sleep 0.01; done"
    )
    with pytest.raises(FileBusy):
        files.read_bytes("f")
    box.sh("kill %1; wait")


SWAPPING = """
import contextlib, os
def put(name):
    with open(name, "w") as file:
        file.write("inside\\n")
open("begun", "w").close()
while not os.path.exists("stop"):
    for change, *names in {swaps}:
        with contextlib.suppress(OSError):
            change(*names)
"""
"""Some hundred times as often as `mv` would."""
SWAP_DIRECTORIES = (
    '[(os.rename, "d", "d4"), (os.rename, "d3", "d"), (os.rename, "d", "d3"), (os.rename, "d4", "d")]'
)
SWAP_FILES = '[(os.symlink, "s3", "s5"), (os.rename, "s5", "s"), (put, "s6"), (os.rename, "s6", "s")]'


def test_swapping_files_for_links_never_shows_the_host(
    box: BareBox, files: ConfinedFiles, outside: Path
) -> None:
    box.sh(
        f"mkdir d d2; echo inside > d/secret; ln -s {outside.parent} d3; echo inside > s; ln -s {outside} s3"
    )
    for swaps in (SWAP_DIRECTORIES, SWAP_FILES):
        box.sh(
            f"python3 -c '{SWAPPING.format(swaps=swaps)}' >/dev/null 2>&1 & until [ -e begun ]; do :; done; rm begun"
        )
    seen = set()
    for _ in range(500):
        for path in ("d/secret", "s"):
            try:
                seen.add(files.read_bytes(path).data)
            except SandboxError:
                seen.add(b"refused")
    for _ in range(100):
        for path in ("d/secret", "s"):
            with contextlib.suppress(SandboxError):
                files.write(path, b"inside\n")
    box.sh("touch stop; wait")
    assert seen <= {b"inside\n", b"", b"refused"}
    assert b"inside\n" in seen
    assert outside.read_text() == OUTSIDE


@pytest.mark.skipif(not AS_ROOT, reason="needs root: the ordinary user's server has no rights to lend")
def test_root_lends_the_session_none_of_its_rights(
    box: BareBox, files: ConfinedFiles, request: pytest.FixtureRequest
) -> None:
    """Files of other users in the workspace, hard-linked or not, are as closed as to a command inside."""
    before = os.getgroups()
    os.setgroups([*before, 4242])
    request.addfinalizer(lambda: os.setgroups(before))
    for name, owner, mode in (("root600", 0, 0o600), ("group640", 0, 0o640), ("other600", 12345, 0o600)):
        path = box.workspace / name
        path.write_text("secret\n")
        os.chown(path, owner, 4242)
        path.chmod(mode)
        os.link(path, box.workspace / f"{name}-link")
    closed = box.workspace / "closed"
    closed.mkdir(mode=0o700)
    (closed / "f").write_text("secret\n")
    for name in ("root600", "group640", "other600-link", "closed/f"):
        with pytest.raises(FileRefused):
            files.read_bytes(name)
        with pytest.raises(FileRefused):
            files.write(name, b"x")
        with pytest.raises(FileRefused):
            files.edit(name, [Edit("secret", "x")])
    with pytest.raises(FileRefused):
        files.list("closed")
    for name in ("root600", "group640", "other600"):
        assert (box.workspace / name).read_text() == "secret\n"  # and this thread has root's rights again
    assert 4242 in os.getgroups()


@pytest.mark.skipif(not AS_ROOT, reason="needs root to change the thread's identity")
def test_many_threads_each_keep_their_own_identity(box: BareBox, files: ConfinedFiles) -> None:
    secret = box.workspace / "rooted"
    secret.write_text("x")
    secret.chmod(0o600)
    failures = []

    def work(n: int) -> None:
        for i in range(100):
            files.write(f"t{n}-{i % 3}", b"x")
            if os.stat(box.workspace / f"t{n}-{i % 3}").st_uid != box.uid:
                failures.append("owner")
            try:
                files.read_bytes("rooted")
                failures.append("read")
            except FileRefused:
                pass
            if secret.read_text() != "x":
                failures.append("lost rights")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_sandbox_that_has_ended_is_said_and_its_pid_is_never_reused() -> None:
    with bare_box() as box:
        files = ConfinedFiles(box.pid, box.uid, box.gid, "/")
        box.end()
        for attempt in (lambda: files.read_bytes("/f"), lambda: files.write("/f", b"")):
            with pytest.raises(SandboxGone):
                attempt()
        files.close()
        with pytest.raises(SandboxGone):
            ConfinedFiles(2**22 - 3, box.uid, box.gid, "/")


def test_no_descriptor_is_left_open(box: BareBox, files: ConfinedFiles) -> None:
    box.sh("echo abc > f; mkfifo p; ln -s loop loop")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        files.read_text("f")
        files.write("d/e/f", b"x")
        files.list("/")
        for path in ("p", "loop", "none", "/proc/1/comm", "/run/s/c"):
            with pytest.raises(FileError):
                files.read_bytes(path)
            with pytest.raises(FileError):
                files.edit(path, [Edit("a", "b")])
    assert len(os.listdir("/proc/self/fd")) == before
    assert stat.S_ISFIFO(os.stat(box.workspace / "p").st_mode)
