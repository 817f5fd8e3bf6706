"""Objects of Git LFS come and go through the proxy, with the real git-lfs in a real shell."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from gofer_standins.github import git
from support.github_scene import Scene, gofer, tool

BIG = b"a picture of many bytes\n" * 1000


def pointer(data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(data)}\n"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git-lfs") is None, reason="git-lfs is not installed")
async def test_large_files_are_there_after_a_checkout_and_pushed_with_a_push(
    scene: Scene, tmp_path: Path
) -> None:
    repository = scene.repository
    repository.lfs[hashlib.sha256(BIG).hexdigest()] = BIG
    files = {".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "big.bin": pointer(BIG)}
    git.commit(repository.path, files, "main", "A large file")
    new = "seq 5000 > new.bin && git add new.bin && git commit -qm 'Another' && git push -q origin HEAD 2>&1"
    lines = [
        "@gofer", tool("github_checkout"), "$ cd ~/repo && wc -c big.bin",
        f"$ cd ~/repo && {new}; echo pushed $?",
    ]  # fmt: skip
    async with gofer(scene, tmp_path / "data", sandbox="bubblewrap") as running:
        await scene.github.open_issue("ada", repository, "Look", "\n".join(lines))
        await running.quiet()
    said = scene.ours(1)[-1].body
    assert f"{len(BIG)} big.bin" in said, said
    assert "pushed 0" in said, said
    pushed = "".join(f"{n}\n" for n in range(1, 5001)).encode()
    assert repository.lfs[hashlib.sha256(pushed).hexdigest()] == pushed
    assert git.run(repository.path, "show", "gofer/1:new.bin") == pointer(pushed).strip()


async def test_the_batch_is_for_this_repository_and_uploads_for_who_may_push(
    scene: Scene, tmp_path: Path
) -> None:
    """Said with curl: what opens the storage never comes back, and a run that only explains uploads nothing."""
    repository = scene.repository
    digest = hashlib.sha256(BIG).hexdigest()
    repository.lfs[digest] = BIG
    scene.github.create_repository("acme/secret", {"a": "a"}, ada="admin").lfs[digest] = BIG
    proxy = "http://127.0.0.1:3129/github"

    def batch(operation: str, name: str) -> str:
        body = f'{{"operation": "{operation}", "objects": [{{"oid": "{digest}", "size": {len(BIG)}}}]}}'
        return f"curl -s -d '{body}' {proxy}/acme/{name}.git/info/lfs/objects/batch"

    lines = [
        "/gofer explain this",
        f"$ {batch('download', 'widgets')} | tee answer; echo; curl -s $(grep -o 'http://127[^\"]*' answer) | wc -c;"
        f" curl -s {proxy}/.lfs/guessed; curl -s -X PUT -d x $(grep -o 'http://127[^\"]*' answer)",
        "$ curl -s $(grep -o 'http://127[^\"]*' answer)",
        f"$ {batch('upload', 'widgets')}; {batch('download', 'secret')}",
    ]  # fmt: skip
    async with gofer(scene, tmp_path / "data", sandbox="bubblewrap") as running:
        await scene.github.open_issue("ada", repository, "Look", "\n".join(lines))
        await running.quiet()
    said = scene.ours(1)[-1].body
    assert f'"oid": "{digest}"' in said, said
    assert f"\n{len(BIG)}\n" in said, said
    assert git.sign_lfs(digest) not in said
    assert "lfs-storage" not in said
    assert said.count("no LFS object was asked for by this address") == 3, "nor in a later command"
    assert "may not push here" in said
    assert "only git's smart HTTP to /acme/widgets is allowed here" in said
