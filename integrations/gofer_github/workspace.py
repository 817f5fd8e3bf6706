"""A job's shell: git through the proxy, one repository, branches of our own. No token enters it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from gofer.errors import Permanent
from gofer.integration import Account, EgressRule, Equipment, Incoming
from gofer.sanitize import defuse
from gofer_github.access import GIT, GIT_READ, READ, Access
from gofer_github.client import Client, is_missing
from gofer_github.people import is_fork
from gofer_github.place import Place, is_repository
from gofer_github.settings import PUBLIC, Settings
from gofer_github.submodules import allowed
from gofer_github.workflows import chosen

MOST_MERGES = 30
"""Merged branches of one conversation that are looked past."""
RULE = "github"
"""What the way to the repository is called."""
HOOKS = ".config/git/hooks"
MAX_COMMITS = 20
"""Commits of one fetch that are looked up because no branch or tag names them."""
_CONFIG = """[user]
	name = {name}
	email = {email}
[core]
	hooksPath = ~/{hooks}
[init]
	defaultBranch = main
[submodule]
	recurse = false
[protocol "file"]
	allow = never
[advice]
	detachedHead = false
[include]
	path = gofer
"""
# Appended to each commit, so that the person who asked has their part in it.
# What a push refers to is uploaded first, where git-lfs is there to do it.
_PRE_PUSH = """#!/bin/sh
command -v git-lfs >/dev/null 2>&1 || exit 0
exec git lfs pre-push "$@"
"""
_SETUP = (
    f"chmod -f +x ~/{HOOKS}/* || true; "
    "command -v git-lfs >/dev/null 2>&1 && git lfs install --skip-repo >/dev/null 2>&1 || true"
)
_CO_AUTHOR = """#!/bin/sh
exec git interpret-trailers --in-place --if-exists addIfDifferent --trailer "Co-authored-by: {name} <{email}>" "$1"
"""


# People named at the end of a message, with addresses that look like mentions or HTML.
_SIGNED_OFF = re.compile(r"^[A-Za-z-]{1,40}-by: [^<>\n]{1,200}<[^<>\s]{1,200}>$", re.M)


@dataclass(frozen=True, slots=True)
class Branches:
    """Where a conversation may push."""

    own: str
    """The branch to begin on."""
    allowed: tuple[str, ...]
    base: str
    repository: int
    """The repository's number, which it keeps whatever it is called."""
    note: str = ""
    """Why it is another branch than before, if it is."""

    def may_push_to(self, branch: str) -> bool:
        """Whether a branch is one of this conversation's."""
        return any(fnmatchcase(branch, name) for name in self.allowed)


async def branches(access: Access, account: Account, message: Incoming) -> Branches | None:
    """The branches of a conversation; None for a pull request from a fork, which gets no repository at all."""
    place = Place.of(message.conversation, message.lasting)
    prefix = Settings.model_validate(account.settings).branch_prefix
    own = f"{prefix}{place.number}"
    names: tuple[str, ...] = (own, f"{own}-*")
    client = await access.to(account, place.repository, READ)
    if message.kind != "pull":
        repository = await client.get(f"/repos/{place.repository}")
        base, number = str(repository["default_branch"]), int(repository["id"])
        own, note = await unmerged(client, place.repository, own, base)
        return Branches(own, names, base, number, note)
    pull = await client.get(f"/repos/{place.repository}/pulls/{place.number}")
    if is_fork(pull):
        return None
    head, base, number = str(pull["head"]["ref"]), str(pull["base"]["ref"]), int(pull["base"]["repo"]["id"])
    if pull.get("merged_at"):
        # What is asked for after a merge is another change: it begins where the merge went.
        own, note = await unmerged(client, place.repository, own, base)
        return Branches(own, names, base, number, note or f"#{place.number} was merged into {base}.")
    if head.startswith(prefix):
        # A pull request of ours is worked on where it is.
        return Branches(head, (head, *names), base, number)
    own, note = await unmerged(client, place.repository, own, head)
    return Branches(own, names, head, number, note)


async def unmerged(client: Client, repository: str, branch: str, base: str) -> tuple[str, str]:
    """The first of a branch's names (gofer/7, gofer/7-2, …) that was not merged yet, and why it is not the first of
    all. One that was merged may still be there, with commits that a squash made superfluous."""
    owner, note, name = repository.partition("/")[0], "", branch
    for number in range(2, MOST_MERGES):
        query = {"head": f"{owner}:{name}", "state": "all"}
        pulls = await client.get(f"/repos/{repository}/pulls", **query)
        merged = [pull for pull in pulls if pull.get("merged_at")]
        if not merged or any(pull["state"] == "open" for pull in pulls):
            break
        note = f"{name} was merged (#{merged[0]['number']}), so the work begins anew from {base}."
        name = f"{branch}-{number}"
    return name, note


async def acting_commits(
    client: Client, place: Place, base: str, branch: str, people: Sequence[str]
) -> list[str]:
    """The commits of a branch whose messages do something where they are merged, by their short numbers."""
    path = f"/repos/{place.repository}/compare/{quote(base)}...{quote(branch)}"
    try:
        found = (await client.get(path))["commits"]
    except Permanent as error:
        if is_missing(error):
            return []  # nothing was pushed
        raise
    here = f"{place.repository}#{place.number}"
    messages = {str(one["sha"])[:10]: _SIGNED_OFF.sub("", one["commit"]["message"]) for one in found}
    return [sha for sha, text in messages.items() if defuse(text, here=here, people=people) != text]


async def equip(access: Access, account: Account, message: Incoming) -> Equipment:
    """The way to the repository for one job, with tokens minted for it alone."""
    found = await branches(access, account, message)
    if found is None:
        return Equipment()
    place = Place.of(message.conversation, message.lasting)
    settings = Settings.model_validate(account.settings)
    pushes = chosen(message, settings).may_push
    token = partial(access.token, account, place.repository, GIT if pushes else GIT_READ)
    await token("")  # a repository that is closed to us says so now, not to git
    rule = EgressRule(
        name=RULE,
        upstream=settings.web_url,
        paths=(f"/{place.repository}",),
        git_push=tuple(f"refs/heads/{name}" for name in found.allowed) if pushes else (),
        git_objections=partial(_closed, access, account, place.repository),
        git_commit_objections=partial(_unmerged, access, account, place.repository),
        # Who set another address than GitHub's own meant it, wherever it is.
        allow_private=settings.web_url != PUBLIC,
        # By its number: another repository that has its name one day is another.
        keep=str(found.repository),
        moved=partial(_now_at, access, account, place.repository, found.repository),
    )
    rules = (rule, *await _modules(access, account, message, rule))
    client = await access.to(account, place.repository, READ)
    number = await access.own_number(account, client) or settings.app_id or 0
    files = _files(settings, number, message.facts)
    return Equipment(rules, "x-access-token", token, files, _SETUP)


async def _closed(
    access: Access, account: Account, repository: str, refs: Sequence[str]
) -> Mapping[str, str]:
    """Which of these a push may not change although they lie below our prefix, and why: as GitHub has it now."""
    client = await access.to(account, repository, READ)
    default = str((await client.get(f"/repos/{repository}"))["default_branch"])
    names = {ref: ref.removeprefix("refs/heads/") for ref in refs}
    found = {ref: "it is the default branch" for ref, name in names.items() if name == default}
    for ref, name in names.items():
        if ref not in found and await _is_protected(client, repository, name):
            found[ref] = "it is a protected branch"
    return found


async def _unmerged(
    access: Access, account: Account, repository: str, commits: Sequence[str]
) -> Mapping[str, str]:
    """Which commits that no branch or tag names are not part of the default branch either: anybody who opens a pull
    request puts commits into a repository that git would hand out by their numbers."""
    if len(commits) > MAX_COMMITS:
        return dict.fromkeys(commits, f"at most {MAX_COMMITS} commits can be asked for by their numbers")
    client = await access.to(account, repository, GIT_READ)
    default = str((await client.get(f"/repos/{repository}"))["default_branch"])
    found = {}
    for commit in commits:
        if not await _is_part_of(client, repository, default, commit):
            found[commit] = f"it is no branch or tag, and not part of {default}"
    return found


async def _is_part_of(client: Client, repository: str, branch: str, commit: str) -> bool:
    try:
        path = f"/repos/{repository}/compare/{quote(branch)}...{commit}"
        return (await client.get(path, per_page=1))["status"] in ("behind", "identical")
    except Permanent as error:
        if is_missing(error):
            return False
        raise


async def _now_at(access: Access, account: Account, repository: str, number: int) -> tuple[str, ...]:
    """Where git finds the repository by now; nowhere, if the name leads to another one."""
    client = await access.to(account, repository, READ)
    found = await client.get(f"/repos/{repository}")
    name = str(found["full_name"])
    return (f"/{name}", f"/{name}.git") if found["id"] == number and is_repository(name) else ()


async def _is_protected(client: Client, repository: str, branch: str) -> bool:
    try:
        return bool((await client.get(f"/repos/{repository}/branches/{quote(branch)}"))["protected"])
    except Permanent as error:
        if is_missing(error):
            return False  # it is made by this push; a rule that forbids that is GitHub's to apply
        raise


async def _modules(
    access: Access, account: Account, message: Incoming, rule: EgressRule
) -> tuple[EgressRule, ...]:
    """Ways to the submodules, where they are allowed: for reading alone, each with a token that can do no more."""
    found = await allowed(access, account, message)
    tokens = [partial(access.token, account, name, GIT_READ) for name in found]
    return tuple(
        replace(
            rule,
            name=f"{RULE}-{n}",
            paths=(f"/{name}",),
            git_push=(),
            git_objections=None,
            git_commit_objections=partial(_unmerged, access, account, name),
            keep="",
            moved=None,
            password=token,
        )
        for n, (name, token) in enumerate(zip(found, tokens, strict=True))
    )


def _files(settings: Settings, number: int, facts: Mapping[str, Any]) -> dict[str, bytes]:
    """Git's configuration: commits are ours, with the requester as co-author."""
    host = urlsplit(settings.web_url).hostname or "github.com"
    us = settings.login or f"{settings.handle}[bot]"
    files = {
        ".config/git/config": _CONFIG.format(
            name=us, email=f"{number}+{us}@users.noreply.{host}", hooks=HOOKS
        )
    }
    files[f"{HOOKS}/pre-push"] = _PRE_PUSH
    login = str(facts.get("login", ""))
    if re.fullmatch(r"[A-Za-z0-9_-]{1,39}", login):
        email = f"{int(facts['sender'])}+{login}@users.noreply.{host}"
        files[f"{HOOKS}/commit-msg"] = _CO_AUTHOR.format(name=login, email=email)
    return {name: text.encode() for name, text in files.items()}
