"""The command that brings a repository into a shell: shallow, repeatable, and on the conversation's own branch."""

from __future__ import annotations

import shlex

DEPTH = 50

# One by one: those that may not be reached do not keep the others away.
_MODULES = r"""[ ! -f .gitmodules ] || git config -f .gitmodules --get-regexp '^submodule\..*\.path$' |
sed 's/^[^ ]* //' | while IFS= read -r module; do git submodule update --quiet --init --depth 1 -- "$module" \
2>/dev/null || echo "The submodule $module could not be fetched."; done"""


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
        f"( set -e; cd ~; [ -d {q(directory)}/.git ] || {{ rm -rf {part}; {clone}; mv {part} {q(directory)}; }}; "
        f"cd {q(directory)}; git remote set-url origin {q(url)}; {fetch}; "
        f"git checkout --quiet {q(branch)} 2>/dev/null || git checkout --quiet -b {q(branch)} origin/{q(base)}; "
        f"{_MODULES if submodules else 'true'} )"
    )
