"""The command that brings a repository into a shell: shallow, repeatable, and on the conversation's own branch as it
is at GitHub now."""

from __future__ import annotations

import shlex

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
