"""A job's shell: git through the proxy, one repository, branches of our own. No token enters it."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from gofer.errors import Permanent
from gofer.integration import ConnectionContext, EgressRule, Incoming, ShellAccess, defuse
from gofer_github.access import GIT, GIT_READ, LOOK, READ, Access
from gofer_github.client import Client, is_missing
from gofer_github.people import is_fork, permission_of
from gofer_github.place import Place, is_repository
from gofer_github.settings import PUBLIC, Settings
from gofer_github.workflows import chosen

MAX_MERGES = 30
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


async def branches(access: Access, account: ConnectionContext, message: Incoming) -> Branches | None:
    """The branches of a conversation; None for a pull request from a fork, which gets no repository at all."""
    place = Place.of(message.conversation, message.stable_id)
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
    for number in range(2, MAX_MERGES):
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


async def shell_access(access: Access, account: ConnectionContext, message: Incoming) -> ShellAccess:
    """The way to the repository for one job, with tokens minted for it alone."""
    found = await branches(access, account, message)
    if found is None:
        return ShellAccess()
    place = Place.of(message.conversation, message.stable_id)
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
    return ShellAccess(rules, "x-access-token", token, files, _SETUP)


async def _closed(
    access: Access, account: ConnectionContext, repository: str, refs: Sequence[str]
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
    access: Access, account: ConnectionContext, repository: str, commits: Sequence[str]
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


async def _now_at(
    access: Access, account: ConnectionContext, repository: str, number: int
) -> tuple[str, ...]:
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
    access: Access, account: ConnectionContext, message: Incoming, rule: EgressRule
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


MODULES = ".gitmodules"
MAX_SUBMODULES = 10
_URL = re.compile(r"^[^\S\n]*+url[^\S\n]*+=[^\S\n]*+\"?([^\s\"]{1,300})\"?[^\S\n]*+$", re.M)


async def allowed(access: Access, account: ConnectionContext, message: Incoming) -> tuple[str, ...]:
    """Full names of the repositories; none where nobody asked, such as for a failing check."""
    settings, place = (
        Settings.model_validate(account.settings),
        Place.of(message.conversation, message.stable_id),
    )
    if not settings.submodules or not message.facts.get("login"):
        return ()
    client = await access.to(account, place.repository, READ)
    try:
        text = await client.file(place.repository, MODULES)
    except Permanent as error:
        if is_missing(error) or error.reason == "github.not_text":
            return ()
        raise
    named = named_in(text, place.repository, settings.web_url)[:MAX_SUBMODULES]
    return tuple([name for name in named if await _may_read(access, account, message, name)])


def named_in(text: str, repository: str, web_url: str) -> list[str]:
    """The repositories that a .gitmodules names, of the same owner on the same server."""
    owner = repository.partition("/")[0].lower()
    found = dict.fromkeys(_named(url, repository, web_url) for url in _URL.findall(text))
    return [
        name
        for name in found
        if is_repository(name) and name.partition("/")[0].lower() == owner and name != repository
    ]


def _named(url: str, repository: str, web_url: str) -> str:
    """The full name behind an address, as git would resolve it; anything at all for what is elsewhere."""
    host = urlsplit(web_url).hostname
    if url.startswith(("./", "../")):
        path = posixpath.normpath(f"/{repository}/{url}")
    elif url.startswith(f"git@{host}:"):
        path = url.partition(":")[2]
    elif url.startswith((f"{web_url}/", f"ssh://git@{host}/")):
        path = urlsplit(url).path
    else:
        return ""
    return path.strip("/").removesuffix(".git")


async def _may_read(access: Access, account: ConnectionContext, message: Incoming, name: str) -> bool:
    """Whether the App reaches it, and whoever asks may see it: the run tells them what is in there."""
    try:
        client = await access.to(account, name, LOOK)
        login = str(message.facts["login"])
        permission = await permission_of(client, name, login, str(message.facts["sender"]))
    except Permanent:
        return False
    return not permission.startswith("none")


DEPTH = 50

# One by one: those that may not be reached do not keep the others away.
_MODULES = r"""[ ! -f .gitmodules ] || git config -f .gitmodules --get-regexp '^submodule\..*\.path$' |
sed 's/^[^ ]* //' | while IFS= read -r module; do git submodule update --quiet --init --depth 1 -- "$module" \
2>/dev/null || echo "The submodule $module could not be fetched."; done"""

# Bring $branch to where it is at GitHub ($branch there, else $base), without losing what was done here: fast-forward
# what is behind, rebase what was not pushed, and put aside what does not fit.
_UPDATE = r"""
at() { git rev-parse --quiet --verify "$1^{commit}" || true; }
within() { git merge-base --is-ancestor "$1" "$2" 2>/dev/null; }
count() { git rev-list --count "$1..$2" 2>/dev/null || echo some; }
here=$(at "refs/heads/$branch"); there=$(at "refs/remotes/origin/$branch"); onto=$there; name="$branch at GitHub"
if [ -z "$there" ]; then onto=$(at "refs/remotes/origin/$base"); name=$base; fi
[ -n "$onto" ] || { echo "There is no branch $base at GitHub."; exit 1; }
for state in rebase-merge rebase-apply MERGE_HEAD CHERRY_PICK_HEAD; do
  if [ -e "$(git rev-parse --git-path "$state")" ]; then
    echo "A rebase, merge or cherry-pick is under way here, and was left as it is. End it (git status says how), then"
    echo "ask for the checkout again."
    exit 0
  fi
done
dirty=; stays=
if [ "$(git symbolic-ref --quiet --short HEAD || true)" = "$branch" ] && within "$onto" "$here"; then stays=1; fi
if [ -z "$stays" ] && [ -n "$(git status --porcelain)" ]; then git stash push --quiet --include-untracked; dirty=1; fi
aside() {
  kept="kept-$(git rev-parse --short "$here")"
  git branch --quiet --force "$kept" "$here"
  git checkout --quiet -B "$branch" "$onto"
  echo "Commits made here that were not pushed $1: they are on the local branch $kept, and $branch is as $name is."
  echo "Bring over what is still wanted, such as with git cherry-pick."
}
if [ -z "$here" ]; then
  git checkout --quiet -b "$branch" "$onto"
  if [ -n "$there" ]; then echo "$branch is as it is at GitHub."; else echo "Began $branch from $base."; fi
elif [ "$here" = "$onto" ]; then
  git checkout --quiet "$branch"; echo "$branch is as $name is."
elif within "$here" "$onto"; then
  came=$(count "$here" "$onto")
  git checkout --quiet -B "$branch" "$onto"; echo "Fast-forwarded $branch: $came commits came from $name."
elif within "$onto" "$here"; then
  git checkout --quiet "$branch"; echo "$branch has $(count "$onto" "$here") commits that are not pushed yet."
elif [ -n "$was" ] && within "$here" "$was"; then
  git checkout --quiet -B "$branch" "$onto"; echo "$branch was rewritten at GitHub; it was taken over as it is there."
else
  since=$was
  if [ -z "$since" ] || ! within "$since" "$here"; then since=$(git merge-base "$here" "$onto" || true); fi
  if [ -z "$since" ]; then aside "have nothing in common with $name"
  elif git checkout --quiet "$branch" && git rebase --quiet --onto "$onto" "$since" "$branch" >/dev/null 2>&1; then
    echo "Rebased $(count "$onto" "$branch") commits that were not pushed onto $name."
  else git rebase --abort 2>/dev/null || true; aside "conflict with $name"; fi
fi
if [ -n "$there" ] && [ "$base" != "$branch" ] && ! within "refs/remotes/origin/$base" "refs/heads/$branch"; then
  echo "$base has $(count "$branch" "origin/$base") commits that $branch does not have."
fi
if ! command -v git-lfs >/dev/null 2>&1 && git grep -q 'filter=lfs' -- '*.gitattributes' 2>/dev/null; then
  echo "Some files here are kept by Git LFS, and git-lfs is not installed: they are pointers of three lines."
fi
if [ -n "$dirty" ] && ! git stash pop --quiet >/dev/null 2>&1; then
  git reset --quiet --hard
  echo "Changes that were not committed do not fit any more; they are kept in git stash."
fi
"""


def checkout(url: str, directory: str, branch: str, base: str, seed: str, submodules: bool) -> str:
    """Shallow, and repeatable: a clone that is there is brought up to date instead. One that begins from a seed
    is made of what is fetched when the seed is of no use."""
    q = shlex.quote
    part, fetch = q(f"{directory}.part"), f"git fetch --quiet --depth {DEPTH} --prune origin"
    clone = f"git clone --quiet --depth {DEPTH} --no-single-branch --no-recurse-submodules {q(url)} {part}"
    if seed:
        # What is in the seed was checked when it was unpacked; what is fetched, git checks itself.
        grown = f"mv {seed} {part} && git -C {part} remote add origin {q(url)} && ( cd {part} && {fetch} )"
        clone = f"( {grown} ) 2>/dev/null || {{ rm -rf {part}; {clone}; }}"
    return (
        f"( set -e; cd ~; branch={q(branch)}; base={q(base)}; was=; "
        f"[ -d {q(directory)}/.git ] || {{ rm -rf {part}; {clone}; mv {part} {q(directory)}; }}; "
        f"cd {q(directory)}; git remote set-url origin {q(url)}; "
        f'was=$(git rev-parse --quiet --verify "refs/remotes/origin/$branch" || true); {fetch}\n'
        f"{_UPDATE}{_MODULES if submodules else 'true'} )"
    )
