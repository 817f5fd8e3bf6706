"""A release is its own source, and a diff changes exactly what it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gofer.releases.source import (
    MAX_DIFF,
    apply_diff,
    describe_changes,
    parse_diff,
    release_source,
    source_archive,
    source_digest,
    write_source,
)
from gofer.releases.wheel import ReleaseRefused, build_wheel, unpack_wheel

ROOT = Path(__file__).parents[3]
FILES = {
    "platform/gofer/hello.py": b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n",
    "platform/gofer/old.py": b"going\n",
    "docs/plain.md": b"no newline at the end",
    "pyproject.toml": b"[project]\n",
}


def git(folder: Path, *command: str) -> bytes:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", *who, *command], cwd=folder, check=True, capture_output=True).stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files in a git repository, as an agent has them."""
    write_source(FILES, tmp_path / "tree")
    git(tmp_path / "tree", "init", "-q")
    git(tmp_path / "tree", "add", "-A")
    git(tmp_path / "tree", "commit", "-qm", "base")
    return tmp_path / "tree"


def diff_of(tree: Path) -> bytes:
    git(tree, "add", "-A", "-N", ".")
    return git(tree, "diff", "--no-renames", "HEAD")


def test_a_wheel_gives_the_source_that_it_was_built_from(tmp_path: Path) -> None:
    wheel = build_wheel(ROOT, tmp_path)
    unpack_wheel(wheel, tmp_path / "lib")
    look = "from gofer.releases.source import *; print(source_digest(release_source()))"
    seen = subprocess.run(
        [sys.executable, "-c", look],
        env={"PYTHONPATH": str(tmp_path / "lib")},
        capture_output=True,
        text=True,
        check=True,
    )
    source = release_source()
    assert seen.stdout.strip() == source_digest(source)
    write_source(source, tmp_path / "source")
    assert build_wheel(tmp_path / "source", tmp_path / "again").read_bytes() == wheel.read_bytes()
    assert len(source_archive(source)) < sum(map(len, source.values()))


def test_what_git_says_has_changed_is_what_is_changed(tree: Path) -> None:
    (tree / "platform/gofer/hello.py").write_text(
        "zero\none\nthree\nfour\nfive\nsix\nseven\neight\nNINE\nten"
    )
    (tree / "platform/gofer/old.py").unlink()
    (tree / "docs/plain.md").write_text("now with one\n")
    (tree / "docs/new.md").write_text("ein Zeichen: ü\n")
    changes = parse_diff(diff_of(tree))
    after = apply_diff(FILES, changes)
    assert after == {
        "platform/gofer/hello.py": (tree / "platform/gofer/hello.py").read_bytes(),
        "docs/plain.md": b"now with one\n",
        "docs/new.md": "ein Zeichen: ü\n".encode(),
        "pyproject.toml": FILES["pyproject.toml"],
    }
    assert describe_changes(changes).startswith("4 files (+5 −5 lines): `docs/new.md`")


def test_a_change_is_refused_where_the_source_is_another_one(tree: Path) -> None:
    (tree / "platform/gofer/hello.py").write_text("one\nTWO\n")
    changes = parse_diff(diff_of(tree))
    with pytest.raises(ReleaseRefused, match="not what the change was made for"):
        apply_diff({**FILES, "platform/gofer/hello.py": b"one\ntwo and a half\n"}, changes)
    with pytest.raises(ReleaseRefused, match="not there"):
        apply_diff({"pyproject.toml": b""}, changes)


HEAD = "diff --git a/{0} b/{0}\nindex 1..2 100644\n--- a/{0}\n+++ b/{0}\n"
HUNK = "@@ -1 +1 @@\n-going\n+{}\n"
NEW = "diff --git a/{0} b/{0}\nnew file mode {1}\nindex 0..2\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+{2}\n"
HOSTILE = {
    "nothing": ("", "Nothing is changed"),
    "no diff": ("hello\n", "no line of a plain diff"),
    "a way out": (NEW.format("../evil.py", "100644", "x"), "no file of the source"),
    "an absolute path": (NEW.format("/etc/evil", "100644", "x"), "no file of the source"),
    "a hidden file": (NEW.format(".git/hooks/post-commit", "100644", "x"), "no file of the source"),
    "a link": (NEW.format("docs/link", "120000", "/etc/passwd"), "cannot be changed so"),
    "other packages": (HEAD.format("requirements.lock") + HUNK.format("x"), "cannot bring other packages"),
    "another project": (HEAD.format("pyproject.toml") + HUNK.format("x"), "cannot bring other packages"),
    "another mode": (
        "diff --git a/docs/plain.md b/docs/plain.md\nold mode 100644\nnew mode 100755\n",
        "cannot be changed so",
    ),
    "no text": (
        "diff --git a/x.png b/x.png\nindex 1..2 100644\nBinary files a/x.png and b/x.png differ\n",
        "no text",
    ),
    "a renamed file": ("diff --git a/x b/y\nsimilarity index 100%\n", "no line of a plain diff"),
    "two names": (HEAD.format("platform/gofer/old.py").replace("+++ b/", "+++ b/x") + HUNK, "two files"),
    "what is cut off": (HEAD.format("platform/gofer/old.py") + "@@ -1,3 +1,3 @@\n-going\n", "cut off"),
    "hidden text": (HEAD.format("platform/gofer/old.py") + HUNK.format("a\u202eb"), "invisible"),
    "escape sequences": (HEAD.format("platform/gofer/old.py") + HUNK.format("a\x1b[31mb"), "invisible"),
    "too much": ("x" * (MAX_DIFF + 1), "larger than"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_plain_change_of_text_is_refused(what: str) -> None:
    diff, why = HOSTILE[what]
    with pytest.raises(ReleaseRefused, match=why):
        apply_diff(FILES, parse_diff(diff.encode()))
