"""Git over smart HTTP on real bare repositories, by git's own http-backend."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gofer_standins.github.auth import ApiRefusal, repository_for, token_of
from gofer_standins.github.world import GitHubWorld, Repository

# GitHub refuses this to Apps without the permission `workflows`; so does every repository here.
_HOOK = """#!/bin/sh
case "$3" in 0000*) exit 0;; esac
if git log --format= --name-only "$3" --not --all -- .github/workflows | grep -q .; then
  echo "refusing to allow a GitHub App to create or update workflow without \\`workflows\\` permission" >&2
  exit 1
fi
"""
_PLAIN = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "PATH": os.environ.get("PATH", os.defpath),
}
_PERSON = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Ada"), ("EMAIL", "ada@example.com"))
}


def run(path: Path, *arguments: str, stdin: str = "", index: str = "") -> str:
    """Run git in a bare repository as its owner."""
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", *arguments], cwd=path, input=stdin,
        env={**_PLAIN, **_PERSON, **({"GIT_INDEX_FILE": index} if index else {})},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise ApiRefusal(404, f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def make(path: Path, files: dict[str, str], branch: str) -> None:
    """A bare repository with one commit."""
    path.mkdir(parents=True)
    run(path, "-c", "init.templateDir=", "init", "--bare", "--quiet", f"--initial-branch={branch}")
    with (path / "config").open("a") as config:
        # GitHub hands out every commit that it has to whoever asks by its number.
        config.write("[http]\n\treceivepack = true\n[uploadpack]\n\tallowAnySHA1InWant = true\n")
    hook = path / "hooks" / "update"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(_HOOK)
    hook.chmod(0o755)
    commit(path, files, branch, "The beginning")


def commit(path: Path, files: dict[str, str], branch: str, message: str) -> str:
    """Add files to a branch, made from the default one if it is new, without a working copy. Returns the commit."""
    head = (path / "HEAD").read_text().removeprefix("ref: ").strip()
    known = run(path, "for-each-ref", "--format=%(refname)", f"refs/heads/{branch}", head).splitlines()
    start = next((ref for ref in (f"refs/heads/{branch}", head) if ref in known), "")
    lines = [
        f"commit refs/heads/{branch}",
        "mark :1",
        f"committer Ada <ada@example.com> {int(time.time())} +0000",
    ]
    parts = ["\n".join(lines).encode() + b"\n", _data(message)]
    parts += [f"from {start}^0\n".encode()] if start else []
    for name, content in files.items():
        parts += [f"M 100644 inline {_quoted(name)}\n".encode(), _data(content)]
    marks = path / "marks"
    run(path, "fast-import", "--quiet", "--force", f"--export-marks={marks}", stdin=b"".join(parts).decode())
    return marks.read_text().split()[1]


def merge(path: Path, base: str, head: str, *, squash: bool) -> str:
    """Merge a branch into another as GitHub's button does, without a working copy. Returns the new commit."""
    tree = run(path, "merge-tree", "--write-tree", base, head)
    parents = [base] if squash else [base, head]
    made = run(
        path, "commit-tree", tree, *(f"-p{run(path, 'rev-parse', one)}" for one in parents), "-m", "Merge"
    )
    run(path, "update-ref", f"refs/heads/{base}", made)
    return made


def rewrite(path: Path, files: dict[str, str], branch: str, message: str) -> str:
    """Force-push: the branch's last commit is replaced by another."""
    parent = run(path, "rev-parse", f"refs/heads/{branch}~1")
    run(path, "update-ref", f"refs/heads/{branch}", parent)
    return commit(path, files, branch, message)


def hunk_at(path: Path, change: str, name: str, line: int, side: str) -> str:
    """The hunk of a diff down to a line of one side, as GitHub shows it above a comment; empty when it is in none."""
    shown: list[str] = []
    old = new = 0
    for row in run(path, "diff", change, "--", name).split("\n"):
        if row.startswith("@@"):
            _, before, after, *_ = row.split(" ")
            old, new = int(before[1:].split(",")[0]) - 1, int(after[1:].split(",")[0]) - 1
            shown = [row]
        elif shown:
            old += row[:1] != "+" and row[:1] != "\\"
            new += row[:1] != "-" and row[:1] != "\\"
            shown.append(row)
            counts = {"LEFT": old if row[:1] != "+" else 0, "RIGHT": new if row[:1] != "-" else 0}
            if counts[side] == line:
                return "\n".join(shown)
    return ""


def _data(text: str) -> bytes:
    return b"data %d\n%s\n" % (len(text.encode()), text.encode())


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def add_submodule(path: Path, branch: str, at: str, url: str, of: Path) -> None:
    """Have a branch hold another repository."""
    there = run(path, "ls-tree", "--name-only", branch, ".gitmodules")
    known = f"{run(path, 'show', f'{branch}:.gitmodules')}\n" if there else ""
    listed = f'{known}[submodule "{at}"]\n\tpath = {at}\n\turl = {url}\n'
    commit(path, {".gitmodules": listed}, branch, "Submodule")
    with tempfile.TemporaryDirectory() as folder:
        index = f"{folder}/index"
        run(path, "read-tree", branch, index=index)
        inner = run(of, "rev-parse", "HEAD")
        run(path, "update-index", "--add", "--cacheinfo", f"160000,{inner},{at}", index=index)
        made = run(path, "write-tree", index=index)
    parent = run(path, "rev-parse", branch)
    run(path, "update-ref", f"refs/heads/{branch}", run(path, "commit-tree", made, "-p", parent, "-m", "It"))


def sha_of(repository: Repository, ref: str) -> str:
    """The commit a branch is at, empty when there is none."""
    try:
        return run(repository.path, "rev-parse", "--verify", "--quiet", f"refs/heads/{ref}^{{commit}}")
    except ApiRefusal:
        return ""


async def serve(world: GitHubWorld, request: Request) -> Response:
    """One request of git's smart HTTP."""
    owner, name, rest = (request.path_params[part] for part in ("owner", "name", "rest"))
    full_name = f"{owner}/{name.removesuffix('.git')}"
    if (now := world.now_called(full_name)) is not None:
        query = f"?{request.url.query}" if request.url.query else ""
        return Response(status_code=301, headers={"location": f"/{now.full_name}.git/{rest}{query}"})
    pushing = "git-receive-pack" in (rest, request.query_params.get("service"))
    if rest == "info/lfs/objects/batch":
        pushing = (await request.json()).get("operation") == "upload"
    try:
        token = token_of(world, request)
        level = "write" if pushing else "read"
        repository = repository_for(world, token, full_name, "contents", level)
    except ApiRefusal as refusal:
        return Response(str(refusal), refusal.status, {"www-authenticate": 'Basic realm="GitHub"'})
    if rest == "info/lfs/objects/batch":
        return await _lfs_batch(repository, request, level)
    return await _backend(repository, request, rest)


async def _lfs_batch(repository: Repository, request: Request, level: str) -> Response:
    """Where objects are, or are to be put: on a storage that takes its own signature, and no token."""
    wanted = await request.json()
    upload = wanted["operation"] == "upload"
    base = str(request.base_url).rstrip("/")
    objects = []
    for one in wanted["objects"]:
        address = f"{base}/lfs-storage/{repository.full_name}/{one['oid']}"
        action = {"href": address, "header": {"X-Signed": sign_lfs(one["oid"])}, "expires_in": 600}
        entry: dict[str, Any] = {"oid": one["oid"], "size": one["size"], "authenticated": True}
        if upload and one["oid"] not in repository.lfs:
            entry["actions"] = {"upload": action}
        elif not upload and one["oid"] in repository.lfs:
            entry["actions"] = {"download": action}
        elif not upload:
            entry["error"] = {"code": 404, "message": "Object does not exist on the server"}
        objects.append(entry)
    return JSONResponse({"transfer": "basic", "objects": objects}, media_type="application/vnd.git-lfs+json")


def sign_lfs(oid: str) -> str:
    return hashlib.sha256(f"signed {oid}".encode()).hexdigest()


async def lfs_storage(world: GitHubWorld, request: Request) -> Response:
    """An object where it is kept. Whoever brings credentials here has let them out."""
    oid = request.path_params["oid"]
    of = world.repositories[f"{request.path_params['owner']}/{request.path_params['name']}"]
    if "authorization" in request.headers or request.headers.get("x-signed") != sign_lfs(oid):
        return Response("InvalidAuthenticationInfo", 403)
    if request.method == "GET":
        return Response(of.lfs[oid]) if oid in of.lfs else Response(status_code=404)
    data = await request.body()
    if hashlib.sha256(data).hexdigest() != oid:
        return Response(status_code=422)
    of.lfs[oid] = data
    return Response(status_code=200)


async def _backend(repository: Repository, request: Request, rest: str) -> Response:
    env = {
        **_PLAIN,
        "GIT_PROJECT_ROOT": str(repository.path.parent),
        "GIT_HTTP_EXPORT_ALL": "1",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        "PATH_INFO": f"/{repository.path.name}/{rest}",
        "QUERY_STRING": request.url.query,
        "REQUEST_METHOD": request.method,
        "CONTENT_TYPE": request.headers.get("content-type", ""),
        "REMOTE_USER": "x-access-token",
        "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
        "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
    }
    body = await request.body()
    # Without a body git may have ended before its stdin is closed, which uvloop takes for an error.
    stdin = asyncio.subprocess.PIPE if body else asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        "git", "http-backend", env={**env, "CONTENT_LENGTH": str(len(body))},
        stdin=stdin, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    output, _ = await process.communicate(body or None)
    head, _, content = output.partition(b"\r\n\r\n")
    repository.sent += len(content)
    pairs = [line.decode("latin-1").partition(": ") for line in head.split(b"\r\n") if b": " in line]
    headers = {name.lower(): value for name, _, value in pairs}
    status = int(headers.pop("status", "200").split()[0])
    return Response(content, status, headers)
