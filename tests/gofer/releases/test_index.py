"""An index at an address says which releases there are, and nothing that it says is believed without a signature."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gofer.releases import index
from gofer.releases.index import download, fetch, newer_in_index, recommended
from gofer.releases.keys import sign, trust_key, trusted_keys, untrust_key
from gofer.releases.stage import build_release, manifest_of, stage
from gofer.releases.wheel import ReleaseRefused
from gofer_supervisor.home import Home
from support.releases import small_source, write_key

WHEEL = "gofer-99.0.0-py3-none-any.whl"


class Pages(BaseHTTPRequestHandler):
    files: dict[str, bytes]

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/index.json")
            self.end_headers()
            return
        if self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            while not self.wfile.closed:
                try:
                    self.wfile.write(b" ")
                    time.sleep(0.01)
                except OSError:
                    return
        content = self.files.get(self.path)
        self.send_response(200 if content is not None else 404)
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A web server on this machine: its address and its files."""
    files: dict[str, bytes] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Site", (Pages,), {"files": files}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", files
    server.shutdown()
    server.server_close()


Site = tuple[str, dict[str, bytes]]


def test_the_newest_release_of_an_index_comes_first(site: Site) -> None:
    url, files = site
    releases = [{"version": v, "wheel": f"wheels/gofer-{v}.whl"} for v in ("0.0.1", "99.0.9", "99.1.0")]
    files["/index.json"] = json.dumps({"releases": releases}).encode()
    found = newer_in_index(f"{url}/index.json")
    assert found == [
        ("99.1.0", f"{url}/wheels/gofer-99.1.0.whl"),
        ("99.0.9", f"{url}/wheels/gofer-99.0.9.whl"),
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"releases": 3}',
        b'{"releases": [3]}',
        b'{"releases": [{"version": "9"}]}',
        b"[" * 9999,
    ],
)
def test_what_is_no_index_is_said_to_be_none(site: Site, content: bytes) -> None:
    url, files = site
    files["/index.json"] = content
    with pytest.raises(ReleaseRefused, match="no index of releases"):
        newer_in_index(f"{url}/index.json")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://example.org/index.json", "use https://"),
        ("http://127.0.0.1.example.org/index.json", "use https://"),
        ("file:///etc/passwd", "use https://"),
        ("https://ada:secret@example.org/index.json", "password"),
        ("https://[::1", "no address"),
    ],
)
def test_an_address_that_anybody_could_change_on_the_way_is_not_fetched(address: str, why: str) -> None:
    with pytest.raises(ReleaseRefused, match=why):
        fetch(address, 1000, 1)


def test_an_index_cannot_lead_to_such_an_address(site: Site) -> None:
    url, files = site
    listed = [{"version": "99.0.0", "wheel": f"http://example.org/{WHEEL}"}]
    files["/index.json"] = json.dumps({"releases": listed}).encode()
    with pytest.raises(ReleaseRefused, match="use https://"):
        newer_in_index(f"{url}/index.json")


def unsign(wheel: Path) -> None:
    manifest = json.loads(manifest_of(wheel).read_text())
    manifest.pop("signature")
    manifest_of(wheel).write_text(json.dumps(manifest))


def flip_a_bit(place: Path) -> None:
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 1
    place.write_bytes(content)


def truncate(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-100])


def promise_more(wheel: Path) -> None:
    manifest_of(wheel).write_text(manifest_of(wheel).read_text().replace("99.2.0", "99.9.0"))


def sign_with_another_key(wheel: Path) -> None:
    manifest = json.loads(manifest_of(wheel).read_text())
    manifest["signature"] = sign(manifest, write_key(wheel.with_name("other.pem")))
    manifest_of(wheel).write_text(json.dumps(manifest))


def step_out(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("../../outside.py", "")


TAMPERINGS: tuple[Callable[[Path], object], ...] = (
    lambda wheel: None,
    flip_a_bit,
    lambda wheel: flip_a_bit(manifest_of(wheel)),
    lambda wheel: manifest_of(wheel).unlink(),
    truncate,
    unsign,
    promise_more,
    sign_with_another_key,
    step_out,
    lambda wheel: wheel.write_bytes(b""),
)
"""What is done to the newest release; nothing at first."""


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two signed releases and the key that signed them."""
    folder = tmp_path_factory.mktemp("signed")
    key = write_key(folder / "release.pem")
    for version in ("99.1.0", "99.2.0"):
        build_release(small_source(folder / version, version), folder / "dist", key=key)
    return folder


@pytest.mark.parametrize("at", ["directory", "address"])
def test_only_what_could_be_staged_is_recommended(site: Site, signed: Path, tmp_path: Path, at: str) -> None:
    """Whoever follows the recommendation must not learn only then that the newest release was tampered with."""
    url, files = site
    home = Home(str(tmp_path / "home"))
    home.prepare()
    trust_key(home, signed / "release.pub")
    newest = "gofer-99.2.0-py3-none-any.whl"
    for number, tamper in enumerate(TAMPERINGS):
        dist = tmp_path / f"dist-{number}"
        shutil.copytree(signed / "dist", dist)
        tamper(dist / newest)
        if at == "address":
            files.clear()
            files |= {f"/{place.name}": place.read_bytes() for place in dist.iterdir()}
            listed = [{"version": v, "wheel": f"gofer-{v}-py3-none-any.whl"} for v in ("99.1.0", "99.2.0")]
            files["/index.json"] = json.dumps({"releases": listed}).encode()
        good, refused = recommended(home, f"{url}/index.json" if at == "address" else str(dist))
        versions = [one["version"] for one in good]
        assert versions == (["99.1.0"] if number else ["99.2.0", "99.1.0"]), number
        assert all(one["reason"] for one in refused)
        with pytest.raises(ReleaseRefused) if number else contextlib.nullcontext():
            stage(home, dist / newest, lambda release: "fine")
        assert len(home.builds()) == 1, "nothing stays of what was refused"
    untrust_key(home, *trusted_keys(home))
    good, refused = recommended(home, str(signed / "dist"))
    assert (good, len(refused)) == ([], 2)
    assert "gofer update trust" in refused[0]["reason"]


def test_size_time_redirects_and_errors_are_bounded(site: Site) -> None:
    url, files = site
    files["/large"] = b"x" * 2000
    with pytest.raises(ReleaseRefused, match="larger than"):
        fetch(f"{url}/large", 1024, 60)
    with pytest.raises(ReleaseRefused, match="did not come within"):
        fetch(f"{url}/endless", 10**9, 0.3)
    for path, status in (("moved", "302"), ("missing", "404")):
        with pytest.raises(ReleaseRefused, match=status):
            fetch(f"{url}/{path}", 1024, 60)
    with pytest.raises(ReleaseRefused, match="cannot be fetched"):
        fetch("http://127.0.0.1:1/index.json", 1024, 60)


def test_a_wheel_of_an_index_is_staged_only_if_it_is_signed(site: Site, tmp_path: Path) -> None:
    url, files = site
    files[f"/{WHEEL}"] = b"PK nonsense"
    with pytest.raises(ReleaseRefused, match="404"):
        download(f"{url}/{WHEEL}", tmp_path)  # no manifest beside it
    files[f"/{WHEEL}.json"] = b"{}"
    place = download(f"{url}/{WHEEL}", tmp_path)
    home = Home(str(tmp_path / "home"))
    home.prepare()
    with pytest.raises(ReleaseRefused):
        stage(home, place, lambda release: "fine")
    assert home.builds() == []
    with pytest.raises(ReleaseRefused, match="no wheel"):
        download(f"{url}/index.json", tmp_path)
    assert index.MAX_WHEEL > 10_000_000
