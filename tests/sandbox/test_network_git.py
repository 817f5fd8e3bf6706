"""Real git in a real sandbox, through the reverse proxy, against a real git server that wants a password."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gofer_sandbox.errors import InvalidInput
from gofer_sandbox.network import BlockedRequest, Credential, Egress, GitAccess, Rule
from gofer_sandbox.records import Reference
from sandbox.bare_box import BareBox, bare_box
from sandbox.upstream import PASSWORD, USER, Upstream, seed_repositories, upstream
from support.patience import patience


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("seed")
    seed_repositories(directory)
    return directory


@pytest.fixture
def server(tmp_path: Path, seed: Path) -> Iterator[Upstream]:
    shutil.copytree(seed, tmp_path, dirs_exist_ok=True)
    with upstream(tmp_path) as running:
        yield running


class Site:
    """A sandbox whose git is told of the proxy, the upstream behind it, and a rule for one repository."""

    def __init__(self, box: BareBox, server: Upstream, egress: Egress, rule: Rule) -> None:
        self.box = box
        self.server = server
        self.egress = egress
        self.rule = rule

    async def sh(self, script: str) -> str:
        return await asyncio.to_thread(self.box.sh, script)

    @property
    def remote(self) -> str:
        return f"{self.rule.upstream}/org/repo"

    async def clone(self) -> str:
        return await self.sh(
            f"git clone -q {self.remote} repo && cd repo && git config user.name a"
            " && git config user.email a@b && echo change > f && git add f"
            " && git commit -qm second && echo cloned"
        )


def rule_for(server: Upstream, **changes: object) -> Rule:
    values: dict[str, object] = {
        "name": "code",
        "upstream": f"http://git.test:{server.port}",
        "paths": ("/org/repo",),
        "credential": Credential.basic(USER, PASSWORD),
        "git": GitAccess(push=("refs/heads/work/*",)),
        "allow_private": True,
    }
    return Rule(**(values | changes))  # type: ignore[arg-type]


async def loopback(host: str, port: int) -> list[str]:
    """Every name is this machine: the test's own DNS."""
    return ["127.0.0.1"]


@pytest.fixture
async def site(server: Upstream) -> AsyncIterator[Site]:
    rule = rule_for(server)
    with bare_box() as box:
        egress = Egress(resolve=loopback)
        await egress.open(Reference(pid=box.pid))
        exports = "".join(f"export {name}={value};" for name, value in egress.environment.items())
        (box.workspace / ".gitconfig").write_text(egress.git_config(rule))
        os.chown(box.workspace / ".gitconfig", box.uid, box.gid)
        running = Site(box, server, egress, rule)
        box.prelude = f"{exports} export GIT_TERMINAL_PROMPT=0;"
        yield running
        await egress.close()


async def test_git_clones_and_pushes_its_own_branch_without_ever_seeing_the_credential(site: Site) -> None:
    async with site.egress.grant(site.rule):
        assert await site.clone() == "cloned"
        said = await site.sh("cd repo && git push origin HEAD:refs/heads/work/issue-7/fix; echo $?")
    assert said.endswith("0")
    assert "second" in site.server.git("log", "--format=%s", "work/issue-7/fix")
    assert site.egress.refusals == ()
    secrets = [secret.decode() for secret in site.rule.credential.secrets]  # type: ignore[union-attr]
    for secret in secrets:
        searched = await site.sh(
            f"grep -rlaF -e '{secret}' /workspace /tmp /run /proc/[0-9]*/environ 2>/dev/null;"
            f" env | grep -F '{secret}'"
        )
        assert searched == ""
    assert all("Basic" in seen.headers["authorization"] for seen in site.server.seen)


async def test_ssh_style_remotes_go_through_the_proxy_too(site: Site) -> None:
    async with site.egress.grant(site.rule):
        assert await site.sh("git ls-remote git@git.test:org/repo.git | grep -c refs/heads/") == "2"


@pytest.mark.parametrize(
    ("push", "reason"),
    [
        ("HEAD:refs/heads/main", "may push only to refs/heads/work/*"),
        ("HEAD:refs/heads/workaround", "may push only to refs/heads/work/*"),
        (":refs/heads/work/old", "deleting is not allowed"),
        (":refs/heads/main", "deleting is not allowed"),
        ("HEAD:refs/tags/v1", "tags may not be pushed"),
        ("HEAD:refs/heads/work/new HEAD:refs/heads/main", "may push only to refs/heads/work/*"),
        ("HEAD:refs/notes/commits", "may push only to refs/heads/work/*"),
    ],
)
async def test_a_push_elsewhere_is_refused_in_git_s_own_words(site: Site, push: str, reason: str) -> None:
    before = site.server.git("for-each-ref")
    async with site.egress.grant(site.rule):
        assert await site.clone() == "cloned"
        said = await site.sh(f"cd repo && git push origin {push}; echo code $?")
    assert "remote rejected" in said
    assert reason in said
    assert said.endswith("code 1")
    assert site.server.git("for-each-ref") == before
    assert not any(seen.path.endswith("/git-receive-pack") for seen in site.server.seen)
    [refusal] = site.egress.refusals
    assert (refusal.proxy, refusal.method, refusal.host) == ("reverse", "POST", "git.test")
    assert reason in refusal.reason
    assert "git-remote-http" in refusal.command or "git remote-http" in refusal.command
    assert abs(refusal.when - time.time()) < 3600


async def test_deletes_and_tags_are_possible_where_the_rule_says_so(site: Site) -> None:
    access = GitAccess(push=("refs/heads/work/*", "refs/tags/v*"), deletes=True, tags=True)
    async with site.egress.grant(rule_for(site.server, git=access)):
        await site.clone()
        said = await site.sh(
            "cd repo && git push origin :refs/heads/work/old HEAD:refs/tags/v1; echo code $?"
        )
    assert said.endswith("code 0")
    assert "refs/tags/v1" in site.server.git("for-each-ref")
    assert "work/old" not in site.server.git("for-each-ref")


async def test_a_large_push_in_chunks_arrives_whole(site: Site) -> None:
    async with site.egress.grant(site.rule):
        await site.clone()
        said = await site.sh(
            "cd repo && head -c 3000000 /dev/urandom > big && git add big && git commit -qm big &&"
            " git push -q origin HEAD:refs/heads/work/big && git rev-parse HEAD"
        )
    assert said.endswith(site.server.git("rev-parse", "work/big").strip())
    pushes = [seen for seen in site.server.seen if seen.path.endswith("/git-receive-pack")]
    assert pushes[-1].headers["transfer-encoding"] == "chunked"


async def test_push_options_and_a_repository_only_for_reading(site: Site) -> None:
    site.server.git("config", "receive.advertisePushOptions", "true")
    async with site.egress.grant(site.rule):
        await site.clone()
        said = await site.sh("cd repo && git push -o ci.skip origin HEAD:refs/heads/work/x; echo code $?")
        assert "push options are not allowed" in said
    async with site.egress.grant(rule_for(site.server, git=GitAccess())):
        said = await site.sh(
            "cd repo && git fetch -q && echo fetched; git push origin HEAD:refs/heads/work/x"
        )
        assert said.startswith("fetched")
        assert "403" in said
    assert "may not push here" in site.egress.refusals[-1].reason


NOT_GIT = [
    "/org/other.git/info/refs?service=git-upload-pack",
    "/org/repo.git/../other.git/info/refs?service=git-upload-pack",
    "/org/repo.git/%2e%2e/other.git/info/refs?service=git-upload-pack",
    "/org/repo.git%2f..%2fother.git/info/refs?service=git-upload-pack",
    "/org//repo.git/info/refs?service=git-upload-pack",
    "/org/repo.git/info/refs?service=git-upload-archive",
    "/org/repo.git/info/refs?service=git-upload-pack&service=git-receive-pack",
    "/org/repo.git/info/refs",
    "/org/repo.git/HEAD",
    "/org/repo.git/objects/info/packs",
    "/org/repo.git/info/lfs/objects/batch",
    "/org/repo2.git/info/refs?service=git-upload-pack",
    "/echo",
    "/org/repo.git/info/refs%3fservice=git-upload-pack",
    "/org\\repo.git/info/refs?service=git-upload-pack",
]


async def test_nothing_but_git_s_protocol_to_that_repository_passes(site: Site) -> None:
    urls = [site.egress.url(site.rule, path) for path in NOT_GIT]
    async with site.egress.grant(site.rule):
        for url in urls:
            said = await site.sh(f"curl -s --path-as-is -w ' %{{http_code}}' '{url}'")
            assert said.startswith("Refused by the sandbox: "), url
            assert said[-3:] in ("403", "400"), url
    assert site.server.seen == []
    assert len(site.egress.refusals) == len(NOT_GIT)


async def test_another_repository_is_refused_to_git(site: Site) -> None:
    async with site.egress.grant(site.rule):
        said = await site.sh(f"git clone {site.egress.url(site.rule, '/org/other.git')} o; ls")
    assert "403" in said
    assert site.server.seen == []


async def test_the_rule_is_open_only_while_it_is_granted(site: Site) -> None:
    ask = f"git ls-remote {site.remote} >/dev/null && echo reached"
    assert "reached" not in await site.sh(ask)
    async with site.egress.grant(site.rule):
        assert await site.sh(ask) == "reached"
        async with site.egress.grant(site.rule):
            pass
        assert await site.sh(ask) == "reached"
        with pytest.raises(InvalidInput, match="another rule"):
            async with site.egress.grant(rule_for(site.server, git=GitAccess())):
                pass
    assert "reached" not in await site.sh(ask)
    assert [r.reason for r in site.egress.refusals] == ["no access named 'code' is open now"] * 2


async def test_the_end_of_a_grant_cuts_off_what_is_under_way(site: Site) -> None:
    got = site.box.workspace / "got"
    rule = Rule("slow", site.rule.upstream, ("/stall",), allow_private=True)
    async with site.egress.grant(rule):
        curl = asyncio.create_task(site.sh(f"curl -s -N {site.egress.url(rule, '/stall')} | tee got"))
        while not (got.exists() and got.read_text()):
            await asyncio.sleep(0.01)
    assert await asyncio.wait_for(curl, patience(20)) == "beginning"
    assert "grant ended" in site.egress.refusals[-1].reason


async def test_a_wrong_credential_is_told_to_the_caller_and_git_does_not_ask(site: Site) -> None:
    async with site.egress.grant(rule_for(site.server, credential=Credential.basic(USER, "stale"))):
        said = await site.sh(f"git ls-remote {site.remote}; echo code $?")
    assert "403" in said
    assert "Username" not in said
    assert site.egress.refusals[-1].reason == "the upstream did not accept the credential"


def raw_push(*lines: bytes) -> bytes:
    return b"".join(f"{len(line) + 4:04x}".encode() + line for line in lines)


ZERO, ONE = b"0" * 40, b"1" * 40


def update(ref: bytes, capabilities: bytes = b"") -> bytes:
    return ZERO + b" " + ONE + b" " + ref + capabilities


FORGED = {
    "main": raw_push(update(b"refs/heads/main")) + b"0000",
    "delimiter": raw_push(update(b"refs/heads/work/a", b"\0 report-status"))
    + b"0001"
    + raw_push(update(b"refs/heads/main"))
    + b"0000",
    "signed": raw_push(b"push-cert\0x", update(b"refs/heads/main")) + b"0000",
    "dots": raw_push(update(b"refs/heads/work/../main")) + b"0000",
    "spaces": raw_push(ZERO + b"  " + ONE + b" refs/heads/work/a") + b"0000",
    "newline": raw_push(update(b"refs/heads/work/a\nrefs/heads/main")) + b"0000",
    "twice": raw_push(update(b"refs/heads/work/a"), update(b"refs/heads/work/a")) + b"0000",
    "head": raw_push(update(b"HEAD")) + b"0000",
    "length": b"004Z",
    "upper case length": b"00" + b"3F" + update(b"refs/heads/main") + b"0000",
    "empty packets": b"0004" * 3 + b"0000",
    "cut off": b"ffff" + b"x" * 10,
    "many": raw_push(*[update(b"refs/heads/work/%d" % n) for n in range(300)]) + b"0000",
    "nothing": b"",
    "behind an empty one": b"0000" + raw_push(update(b"refs/heads/main")) + b"0000",
    # Git takes both for `push-options`: a feature may have a value, and its text ends at a NUL.
    "push options with a value": raw_push(update(b"refs/heads/work/a", b"\0push-options=1")) + b"0000",
    "push options and a NUL": raw_push(update(b"refs/heads/work/a", b"\0push-options\0x")) + b"0000",
}


async def test_a_push_made_by_hand_reaches_nothing(site: Site) -> None:
    async with site.egress.grant(site.rule):
        url = site.egress.url(site.rule, "/org/repo.git/git-receive-pack")
        for name, body in FORGED.items():
            (site.box.workspace / "body").write_bytes(body)
            said = await site.sh(
                "curl -s -o /tmp/o -w '%{http_code}' --data-binary @body"
                f" -H 'Content-Type: application/x-git-receive-pack-request' {url}"
            )
            assert said in ("400", "403"), name
    assert site.server.seen == []


async def test_a_compressed_push_is_refused(site: Site) -> None:
    async with site.egress.grant(site.rule):
        url = site.egress.url(site.rule, "/org/repo.git/git-receive-pack")
        said = await site.sh(f"curl -s -w '%{{http_code}}' -H 'Content-Encoding: gzip' -d x {url}")
    assert said.endswith("415")
    assert site.server.seen == []


async def test_every_refusal_is_told_at_once(server: Upstream) -> None:
    told: list[BlockedRequest] = []
    with bare_box() as box:
        egress = Egress(on_refusal=told.append)
        await egress.open(Reference(pid=box.pid))
        await asyncio.to_thread(
            box.sh, "curl -s http://127.0.0.1:3129/$'x\\x1b[31m'; curl -s 127.0.0.1:3129/nope/a"
        )
        await egress.close()
    assert [(r.method, r.path) for r in told][-1] == ("GET", "/a")
    assert all(r.reason.isprintable() and r.host.isprintable() for r in told)
