"""A command's output, whatever its size: what the result shows of it, and what is kept on disk."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from gofer_sandbox.output import Capture


def shown(whole: bytes, cap: int) -> str:
    """What a result has to show: all of it, or as much of both ends."""
    half = max(1, cap // 2)
    if len(whole) <= 2 * half:
        return whole.decode()
    left_out = len(whole) - 2 * half
    return f"{whole[:half].decode()}\n[… {left_out} bytes left out …]\n{whole[-half:].decode()}"


def captured(capture: Capture, whole: bytes, chunk: int, seen: bytearray | None = None) -> None:
    """Through a pipe, as from a command."""
    reader, writer = os.pipe2(os.O_NONBLOCK)
    for start in range(0, len(whole), 777):
        os.write(writer, whole[start : start + 777])
        show = None if seen is None else seen.extend
        with contextlib.suppress(BlockingIOError):
            while True:
                assert capture.take(reader, chunk, show)
    os.close(writer)
    assert capture.take(reader, chunk) == 0
    os.close(reader)


WHOLE = b"".join(b"%d\n" % number for number in range(3000))
CASES = [(cap, spool) for cap in (2, 64, 999, 5000, 50_000) for spool in (1, 30, 700, 5000, 50_000)]


@pytest.mark.parametrize(("cap", "spool"), CASES)
@pytest.mark.parametrize("size", [0, 1, 40, 999, 1000, len(WHOLE)])
def test_both_ends_are_shown_and_the_beginning_is_in_the_file(
    tmp_path: Path, cap: int, spool: int, size: int
) -> None:
    whole, seen = WHOLE[:size], bytearray()
    capture = Capture(str(tmp_path / "out"), cap, spool)
    captured(capture, whole, 500, seen)
    kept = (tmp_path / "out").read_bytes() if size else b""
    path = capture.close()
    assert (capture.text, bytes(seen), kept) == (shown(whole, cap), whole, whole[:spool])
    assert (capture.total, capture.kept + capture.dropped) == (size, size)
    capture.discard()
    assert (tmp_path / "out").exists() == bool(path) == bool(capture.dropped)


@pytest.mark.parametrize("cap", [64, 999, 50_000])
@pytest.mark.parametrize("room", [0, 20, 600])
def test_a_full_disk_costs_the_file_and_not_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cap: int, room: int
) -> None:
    splice = os.splice

    def full(source: int, file: int, size: int, **options: int) -> int:
        if options["offset_dst"] >= room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return splice(source, file, min(size, room - options["offset_dst"]), **options)

    monkeypatch.setattr(os, "splice", full)
    capture = Capture(str(tmp_path / "out"), cap, 50_000)
    captured(capture, WHOLE, 500)
    capture.close()
    assert capture.text == shown(WHOLE, cap)


@pytest.mark.parametrize("before", [0, 50, 5000])
def test_another_server_goes_on_behind_what_is_in_the_file(tmp_path: Path, before: int) -> None:
    (tmp_path / "out").write_bytes(WHOLE[:before])
    capture = Capture(str(tmp_path / "out"), 900, 8000)
    assert capture.recover()
    captured(capture, WHOLE[before:], 500)
    capture.close()
    assert capture.text == shown(WHOLE, 900)
