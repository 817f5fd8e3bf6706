"""An index of releases at an address: a static JSON file that names wheels, each with its manifest beside it.

    {"releases": [{"version": "0.2.0", "wheel": "gofer-0.2.0-py3-none-any.whl"}]}

Nothing of it is believed: what is staged from it has to be signed with a trusted key, as from anywhere else.
"""

from __future__ import annotations

import json
import tempfile
import time
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from urllib.parse import urljoin, urlsplit

import httpx2

import gofer
from gofer.releases.stage import (
    MAX_MANIFEST,
    manifest_of,
    newer_releases,
    ordered_version,
    verify_release,
)
from gofer.releases.wheel import ReleaseRefused
from gofer_supervisor.home import Home

MAX_INDEX = 1024 * 1024
MAX_WHEEL = 128 * 1024 * 1024
INDEX_TIMEOUT, WHEEL_TIMEOUT = 30.0, 600.0
"""Seconds for a whole file, however slowly it comes."""
READ_TIMEOUT = 10.0
MAX_LISTED, MAX_CHECKED = 1000, 5


def is_address(text: str) -> bool:
    """Whether an index or a wheel is named by its address, and not by its path."""
    return text.startswith(("https://", "http://"))


def recommended(home: Home, index: str) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The releases of a directory or an index that are newer than this one and could be staged, the newest first, and
    those that could not, each with its `reason`. Only the newest few are looked at."""
    newer = newer_in_index(index) if is_address(index) else newer_releases(Path(index))
    good: list[dict[str, str]] = []
    refused: list[dict[str, str]] = []
    for version, place in newer[:MAX_CHECKED]:
        one = {"version": version, "wheel": str(place)}
        try:
            with tempfile.TemporaryDirectory(prefix="gofer-release-") as folder:
                found = verify_release(
                    home, download(place, Path(folder)) if isinstance(place, str) else place
                )
            if found != version:
                raise ReleaseRefused(f"The wheel is of version {found}.")
            good.append(one)
        except ReleaseRefused as error:
            refused.append({**one, "reason": str(error)})
    return good, refused


def newer_in_index(url: str) -> list[tuple[str, str]]:
    """The version and the address of each release that is newer than this one, the newest first; raises
    ReleaseRefused."""
    content = fetch(url, MAX_INDEX, INDEX_TIMEOUT)
    try:
        listed = json.loads(content)["releases"][:MAX_LISTED]
        found = [(str(one["version"]), urljoin(url, str(one["wheel"]))) for one in listed]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReleaseRefused(
            f'{url} is no index of releases: it should be {{"releases": [{{"version": …, "wheel": …}}]}}.'
        ) from error
    newer = [one for one in found if ordered_version(one[0]) > ordered_version(gofer.__version__)]
    for _, wheel in newer:
        _check_address(wheel)
    return sorted(newer, key=lambda one: ordered_version(one[0]), reverse=True)


def download(url: str, folder: Path) -> Path:
    """Fetch a wheel and the manifest beside it into a folder; raises ReleaseRefused. Neither is checked yet."""
    name = PurePosixPath(urlsplit(url).path).name
    if not name.endswith(".whl"):
        raise ReleaseRefused(f"{url} is no wheel: its address should end with .whl.")
    wheel = folder / name
    manifest_of(wheel).write_bytes(fetch(f"{url}.json", MAX_MANIFEST, INDEX_TIMEOUT))
    wheel.write_bytes(fetch(url, MAX_WHEEL, WHEEL_TIMEOUT))
    return wheel


def fetch(url: str, limit: int, within: float) -> bytes:
    """The bytes at an address; raises ReleaseRefused when they are late or too large."""
    _check_address(url)
    give_up = time.monotonic() + within
    content = bytearray()
    try:
        asked = {"Accept-Encoding": "identity"}
        with httpx2.stream("GET", url, headers=asked, timeout=READ_TIMEOUT, follow_redirects=False) as answer:
            if answer.status_code != 200:
                raise ReleaseRefused(f"{url} was answered with {answer.status_code}.")
            for part in answer.iter_raw():  # as it comes: whoever sends a byte a second is not waited for
                content += part
                if len(content) > limit:
                    raise ReleaseRefused(f"{url} is larger than {limit // 1024} KiB.")
                if time.monotonic() > give_up:
                    raise ReleaseRefused(f"{url} did not come within {within:g} seconds.")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ReleaseRefused(f"{url} cannot be fetched: {error or type(error).__name__}") from error
    return bytes(content)


def _check_address(url: str) -> None:
    """Only HTTPS, or HTTP on this machine: what an index says should not be readable and changeable on the way."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise ReleaseRefused(f"{url[:200]!r} is no address.") from error
    if parts.username or parts.password:
        raise ReleaseRefused("An address with a password in it would be shown and logged. Leave it out.")
    if parts.scheme == "https" and host:
        return
    if parts.scheme != "http" or not _is_loopback(host):
        raise ReleaseRefused(f"{url[:200]} is not fetched: use https://, or http:// on this machine.")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
