"""Threat: a stranger's code gets into a run that may still do everything, through git.

On a forge anybody makes refs by opening a pull request. The proxy hides them, and hands out no commit that only they
name, whichever protocol git speaks and whatever a program writes by hand.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from gofer_sandbox.network import Credential, Egress, GitAccess, Rule, Unanswered
from gofer_sandbox.network.git import FetchRequest, Known, RefFilter
from gofer_sandbox.records import Reference
from sandbox.bare_box import BareBox, bare_box
from sandbox.upstream import PASSWORD, USER, Upstream, seed_repositories, upstream

PROTOCOLS = (0, 1, 2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    """A repository with a stranger's pull request, whose server hands out any commit, as GitHub's does."""
    directory = tmp_path_factory.mktemp("forge")
    seed_repositories(directory)
    with upstream(directory) as running:
        running.git("config", "uploadpack.allowAnySHA1InWant", "true")
        running.git("config", "uploadpack.allowFilter", "true")
        made = commit(running, "a stranger's", "main")
        running.git("update-ref", "refs/pull/77/head", made)
        running.git("update-ref", "refs/merge-requests/5/head", made)
        running.git("update-ref", "refs/heads/main", commit(running, "second", "main"))
        yield running


def commit(server: Upstream, message: str, parent: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return server.git(*who, "commit-tree", f"{parent}^{{tree}}", "-p", parent, "-m", message).strip()


@pytest.fixture(scope="module")
def box() -> Iterator[BareBox]:
    with bare_box() as running:
        yield running


@asynccontextmanager
async def opened(box: BareBox, server: Upstream, access: GitAccess) -> AsyncIterator[tuple[Egress, Rule]]:
    async def loopback(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    rule = Rule(
        "code", f"http://git.test:{server.port}", ("/org/repo",),
        credential=Credential.basic(USER, PASSWORD), git=access, allow_private=True,
    )  # fmt: skip
    egress = Egress(resolve=loopback)
    await egress.open(Reference(pid=box.pid))
    config = box.workspace / ".gitconfig"
    config.write_text(egress.git_config(rule))
    os.chown(config, box.uid, box.gid)
    exports = "".join(f"export {name}={value};" for name, value in egress.environment.items())
    box.prelude = f"{exports} export GIT_TERMINAL_PROMPT=0; cd /workspace;"
    try:
        async with egress.grant(rule):
            yield egress, rule
    finally:
        await egress.close()
        for repository in box.workspace.glob("repo*"):
            shutil.rmtree(repository)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_refs_of_pull_requests_are_not_seen(box: BareBox, server: Upstream, protocol: int) -> None:
    async with opened(box, server, GitAccess()) as (_, rule):
        git = f"git -c protocol.version={protocol}"
        listed = await asyncio.to_thread(box.sh, f"{git} ls-remote {rule.upstream}/org/repo")
        asked = await asyncio.to_thread(
            box.sh, f"{git} ls-remote {rule.upstream}/org/repo 'refs/pull/*' refs/merge-requests/5/head"
        )
        fetched = await asyncio.to_thread(
            box.sh,
            f"{git} clone -q {rule.upstream}/org/repo repo && cd repo && git log -1 --format=%s;"
            f"{git} fetch origin refs/pull/77/head; {git} fetch origin '+refs/pull/*:refs/remotes/pr/*';"
            "git for-each-ref",
        )
    assert {line.split()[1] for line in listed.splitlines()} == {
        "HEAD", "refs/heads/main", "refs/heads/work/old",
    }  # fmt: skip
    assert asked == ""
    assert fetched.startswith("second")
    assert "couldn't find remote ref refs/pull/77/head" in fetched
    assert "pr/" not in fetched


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_nor_are_their_commits_had_by_their_numbers(
    box: BareBox, server: Upstream, protocol: int
) -> None:
    strangers = server.git("rev-parse", "refs/pull/77/head").strip()
    async with opened(box, server, GitAccess()) as (egress, rule):
        said = await asyncio.to_thread(
            box.sh,
            f"git clone -q {rule.upstream}/org/repo repo && cd repo &&"
            f" git -c protocol.version={protocol} fetch origin {strangers}; git cat-file -t {strangers}",
        )
    assert "no branch or tag names it" in said
    assert "commit" not in said.splitlines()[-1] or "fatal" in said.splitlines()[-1]
    assert "no branch or tag names it" in egress.refusals[-1].reason


async def test_a_commit_that_the_rule_vouches_for_is_had(box: BareBox, server: Upstream) -> None:
    """Such as what a submodule is pinned to."""
    first = server.git("rev-parse", "main~1").strip()
    server.git("update-ref", "-d", "refs/heads/work/old")
    strangers = server.git("rev-parse", "refs/pull/77/head").strip()
    asked: list[str] = []

    async def objections(commits: Sequence[str]) -> Mapping[str, str]:
        asked.extend(commits)
        return {one: "not ours" for one in commits if one != first}

    async def silent(commits: Sequence[str]) -> Mapping[str, str]:
        raise Unanswered("nobody knows")

    fetch = (
        "git init -q repo; cd repo; git fetch -q --depth 1 {}/org/repo {}; git log -1 --format=%s FETCH_HEAD"
    )
    try:
        async with opened(box, server, GitAccess(commit_objections=objections)) as (_, rule):
            had = await asyncio.to_thread(box.sh, fetch.format(rule.upstream, first))
            not_had = await asyncio.to_thread(box.sh, fetch.format(rule.upstream, strangers))
        async with opened(box, server, GitAccess(commit_objections=silent)) as (_, rule):
            unanswered = await asyncio.to_thread(box.sh, fetch.format(rule.upstream, first))
    finally:
        server.git("update-ref", "refs/heads/work/old", first)
    assert had == "first"
    assert "not ours" in not_had
    assert "nobody knows" in unanswered
    assert asked == [first, strangers]


async def test_a_partial_clone_becomes_a_whole_one(box: BareBox, server: Upstream) -> None:
    """It would fetch files later by numbers that no ref names."""
    async with opened(box, server, GitAccess()) as (egress, rule):
        for protocol in PROTOCOLS:
            said = await asyncio.to_thread(
                box.sh,
                f"git -c protocol.version={protocol} clone -q --filter=blob:none {rule.upstream}/org/repo"
                f" repo{protocol}; git -C repo{protocol} log -1 --format=%s",
            )
            assert said.endswith("second")
    assert egress.refusals == ()


def line(text: bytes) -> bytes:
    return f"{len(text) + 4:04x}".encode() + text


async def test_what_a_program_writes_by_hand_gets_no_further(box: BareBox, server: Upstream) -> None:
    strangers = server.git("rev-parse", "refs/pull/77/head").strip().encode()
    want = line(b"want " + strangers + b"\n")
    fetch = line(b"command=fetch") + b"0001" + want + line(b"done\n") + b"0000"
    forged = {
        "protocol 2": (fetch, ""),
        "protocol 0": (want + b"0000" + line(b"done\n"), ""),
        "packed": (gzip.compress(fetch), "gzip"),
        "packed behind something else": (gzip.compress(b"0000") + gzip.compress(fetch), "gzip"),
        "packed in another way": (fetch, "deflate"),
        "by its name": (line(b"command=fetch") + b"0001" + line(b"want-ref refs/pull/77/head") + b"0000", ""),
        "a second command": (line(b"command=ls-refs") + b"0000" + fetch, ""),
        "another command": (line(b"command=object-info") + b"0001" + line(b"oid " + strangers) + b"0000", ""),
        "upper case": (fetch.replace(strangers, strangers.upper()), ""),
        "upper case length": (want.replace(b"0032", b"003A") + b"0000", ""),
        "two spaces": (line(b"command=fetch") + b"0001" + line(b"want  " + strangers) + b"0000", ""),
        "cut off": (fetch[:-10], ""),
    }
    before = len(server.seen)
    async with opened(box, server, GitAccess()) as (egress, rule):
        url = egress.url(rule, "/org/repo.git/git-upload-pack")
        for name, (body, packed) in forged.items():
            (box.workspace / "body").write_bytes(body)
            said = await asyncio.to_thread(
                box.sh,
                f"curl -s --data-binary @body -H 'Git-Protocol: version=2' -H 'Content-Encoding: {packed}'"
                f" -H 'Content-Type: application/x-git-upload-pack-request' {url}",
            )
            assert "not be fetched" in said or "not fetched" in said or said.startswith("Refused"), name
    assert len(server.seen) == before


def test_capabilities_outlive_a_first_ref_that_is_hidden() -> None:
    object_ = b"a" * 40
    first = line(object_ + b" refs/pull/1/head\0multi_ack filter agent=x\n")
    known = Known()
    passed = RefFilter(known)
    alone = passed.feed(first + b"0000") + passed.rest()
    assert alone == line(b"0" * 40 + b" capabilities^{}\0multi_ack agent=x\n") + b"0000"
    passed = RefFilter(known)
    whole = first + line(b"b" * 40 + b" refs/tags/v1\n") + b"0000"
    pieces = b"".join(passed.feed(whole[at : at + 1]) for at in range(len(whole))) + passed.rest()
    assert pieces == line(b"b" * 40 + b" refs/tags/v1\0multi_ack agent=x\n") + b"0000"
    assert known.objects == {b"b" * 40}


def test_a_request_is_read_whole() -> None:
    asked = FetchRequest.parse(
        line(b"want " + b"c" * 40 + b" multi_ack\n") + line(b"want " + b"d" * 64) + b"0000"
    )
    assert asked.wants == (b"c" * 40, b"d" * 64)
