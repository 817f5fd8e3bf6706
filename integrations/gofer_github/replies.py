"""One sticky comment per request: found by its hidden mark, edited in place, folded and cut to GitHub's limits."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gofer.errors import Gone, Permanent, Temporary
from gofer.integration import ConnectionContext, Incoming, Outgoing, Progress
from gofer_github import marks
from gofer_github.access import CHECKS, READ, WRITE, Access, moment
from gofer_github.client import AGAIN_AFTER, GIVE_UP_AFTER, Client, is_missing, login_of
from gofer_github.place import Place
from gofer_github.repository_access import acting_commits, unmerged
from gofer_github.settings import Settings
from gofer_github.triggers import COMMAND

LIMIT = 65_536
ROOM = 8_000
"""Characters kept free for the mark, the plan and the notes around a text."""
MAX_TEXT = LIMIT - ROOM
MAX_PLAN = 30
FOLD_AFTER = 12_000
LOOK_BACK = 20
"""Pages of comments, from the newest on, in which a mark is looked for."""
WORKING = "is-working"
CHECK_NAME = "Gofer"
ACTING = "Messages of commits mention people, command bots or close issues: look at them before you merge"
CANCELLED = "cancelled"
"""What `Outgoing.stopped_by` says of a run that a person stopped; also GitHub's word for such a check."""


def split(text: str) -> list[str]:
    """Split a text into comments within the limit, at line ends where possible."""
    most, parts = MAX_TEXT - FENCE_ROOM, []
    while len(text) > most:
        cut = text.rfind("\n", most // 2, most)
        part, text = parted(text, cut + 1 if cut > 0 else most)
        parts.append(part)
    return [*parts, text] if text.strip() or not parts else parts


def body_of(outgoing: Outgoing, mark: str) -> str:
    """The whole comment: the text, folded where it is long, and the hidden mark."""
    below = [*_choices(outgoing), *_approval(outgoing), *_how_it_went(outgoing)]
    return "\n\n".join([_fitted(outgoing.text), *below, mark])


def mark_of(outgoing: Outgoing, account: ConnectionContext, place: Place, check: str = "") -> str:
    """The hidden line that identifies a reply."""
    trigger = "check" if outgoing.reply_to.startswith(("check_suite-", "status-")) else "request"
    narrowed = marks.NARROWED if outgoing.narrowed else ""
    return marks.line(account, place, outgoing.id, f"trigger={trigger}", check and f"check={check}", narrowed)


def _choices(outgoing: Outgoing) -> list[str]:
    """How to answer a question that has buttons elsewhere."""
    ways = [f"`/{COMMAND} answer {outgoing.question} {choice}`" for choice in outgoing.choices]
    return [f"To answer, write {' or '.join(ways)}."] if outgoing.question and ways else []


def _approval(outgoing: Outgoing) -> list[str]:
    """How to approve a plan, shown below it. The run that made it could change nothing."""
    asked = {str(outgoing.facts.get(name) or "") for name in ("word", "workflow")}
    if (
        "plan" not in asked
        or outgoing.kind != "final"
        or outgoing.stopped_by
        or outgoing.part != outgoing.parts
    ):
        return []
    return [f"Reply `/{COMMAND} go` to have this plan carried out, or say what should be different."]


def _how_it_went(outgoing: Outgoing) -> list[str]:
    """Below the answer: the plan, folded, then result, duration, cost and where to see more."""
    work = outgoing.work
    if work is None or outgoing.part != 1:
        return []
    detail = [
        f"{_ending(outgoing)} in {_clock(work.seconds)}",
        f"${work.cost:.4f}" if work.cost else "no cost",
    ]
    detail += [f"[the run]({work.url})"] if work.url else []
    plan = [f"<details><summary>The plan</summary>\n\n{_plan(work)}\n\n</details>"] if work.plan else []
    return [*plan, f"<sub>{' · '.join(detail)}</sub>"]


def _ending(outgoing: Outgoing) -> str:
    """How the run ended. A run that a person or a limit stopped is not done, whatever it replied."""
    if outgoing.stopped_by == CANCELLED:
        return "⏹ Stopped"
    if outgoing.kind == "error":
        return "❌ Ended without success"
    return f"⚠️ Stopped before it was done ({outgoing.stopped_by})" if outgoing.stopped_by else "✅ Done"


def _plan(progress: Progress) -> str:
    """The plan as check-boxes."""
    boxes = {"done": "- [x] {}", "dropped": "- [ ] ~~{}~~", "doing": "- [ ] **{}**", "open": "- [ ] {}"}
    lines = [boxes[item.state].format(" ".join(item.text.split())[:200]) for item in progress.plan[:MAX_PLAN]]
    more = len(progress.plan) - len(lines)
    return "\n".join(lines + ([f"- and {more} more"] if more else []))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _fitted(text: str) -> str:
    text = text.strip() or "(nothing to say)"
    text = closed(text[:MAX_TEXT])
    return _folded(text) if len(text) > FOLD_AFTER else text


def _folded(text: str) -> str:
    cut = text.rfind("\n", 0, FOLD_AFTER // 4)
    head, rest = parted(text, cut if cut > 0 else 2000)
    rest = rest.lstrip("\n")
    return f"{head}\n\n<details><summary>The rest</summary>\n\n{rest}\n\n</details>"


def _working_mark(message: str) -> str:
    return f"{WORKING}={message}"


def _began_with(outgoing: Outgoing) -> str:
    """The run's first request, which its progress comment is for; the answer is to the last."""
    return outgoing.work.message if outgoing.work else outgoing.reply_to


class Replies:
    """Writes into issues and pull requests."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def find(self, outgoing: Outgoing, account: ConnectionContext) -> str | None:
        """Our comment with this reply's mark, if it is there already."""
        place = Place.of(outgoing.conversation, outgoing.stable_id)
        client = await self._access.to(account, place.repository, WRITE)
        found = await self._marked(client, account, place, outgoing.id, outgoing.facts)
        return str(found["id"]) if found else None

    async def place(self, outgoing: Outgoing, account: ConnectionContext) -> str:
        """Turn the progress comment into the answer, or post one."""
        place = Place.of(outgoing.conversation, outgoing.stable_id)
        client = await self._access.to(account, place.repository, WRITE)
        if (began := _began_with(outgoing)) and outgoing.kind != "note" and outgoing.part == 1:
            # As old as the first request: it is not looked for from the last on, if that is another.
            facts = outgoing.facts if began == outgoing.reply_to else {}
            working = await self._marked(client, account, place, _working_mark(began), facts)
            if working is not None:
                check = marks.value(marks.words(account, place, working["body"]), "check")
                body = body_of(outgoing, mark_of(outgoing, account, place, check))
                await _edit(client, place, working["id"], body)
                return str(working["id"])
        body = body_of(outgoing, mark_of(outgoing, account, place))
        made = await client.post(f"/repos/{place.repository}/issues/{place.number}/comments", {"body": body})
        return str(made["id"])

    async def complete(self, outgoing: Outgoing, external_id: str, account: ConnectionContext) -> None:
        """Restore the comment's text, and complete the run's check."""
        place = Place.of(outgoing.conversation, outgoing.stable_id)
        client = await self._access.to(account, place.repository, WRITE)
        try:
            comment = await client.get(f"/repos/{place.repository}/issues/comments/{external_id}")
        except Permanent as error:
            if is_missing(error) and await self._is_there(client, place):
                raise Gone(f"The comment on {place} was deleted before it was complete.") from None
            raise
        check = marks.value(marks.words(account, place, comment["body"]), "check")
        wanted = body_of(outgoing, mark_of(outgoing, account, place, check))
        if comment["body"] != wanted:
            await _edit(client, place, external_id, wanted)
        if check:
            checks = await self._access.to(account, place.repository, CHECKS)
            await checks.patch(f"/repos/{place.repository}/check-runs/{check}", _settled(outgoing))
        if outgoing.part == 1 and outgoing.kind != "note":
            await self._check_what_was_made(account, place, outgoing)

    async def _is_there(self, client: Client, place: Place) -> bool:
        """Whether the issue or pull request still exists."""
        try:
            await client.get(f"/repos/{place.repository}/issues/{place.number}")
        except Permanent as error:
            if is_missing(error):
                return False
            raise
        return True

    async def _marked(
        self, client: Client, account: ConnectionContext, place: Place, mark: str, facts: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Our comment with a mark, searched from the newest back to the time of the request. Anybody can write a mark;
        it counts only in our own comments."""
        settings = Settings.model_validate(account.settings)
        asked_at = moment(str(facts.get("asked_at") or ""))
        async for comment in client.comments(place.repository, place.number, most=LOOK_BACK):
            if settings.wrote(login_of(comment)) and mark in marks.words(account, place, comment["body"]):
                return comment
            if asked_at and moment(str(comment.get("created_at") or "")) < asked_at:
                return None  # older than what it answers
        return None

    async def acknowledge(self, message: Incoming, account: ConnectionContext) -> None:
        """React to the request with eyes."""
        place = Place.of(message.conversation, message.stable_id)
        client = await self._access.to(account, place.repository, WRITE)
        base = f"/repos/{place.repository}"
        if comment := message.facts.get("review_comment"):
            target = f"{base}/pulls/comments/{comment}"
        elif (comment := message.facts.get("comment")) and message.external_id.startswith("comment-"):
            target = f"{base}/issues/comments/{comment}"
        else:
            target = f"{base}/issues/{place.number}"
        await client.post(f"{target}/reactions", {"content": "eyes"})

    async def show_progress(
        self, conversation: str, progress: Progress, shown: str, account: ConnectionContext
    ) -> str:
        """Create or update the progress comment, which the answer replaces."""
        place = Place.of(conversation, progress.stable_id)
        client = await self._access.to(account, place.repository, WRITE)
        if not shown:
            found = await self._marked(client, account, place, _working_mark(progress.message), {})
            if found is None:
                check = await self._begin_check(account, place, progress.message)
                path = f"/repos/{place.repository}/issues/{place.number}/comments"
                body = _progress_body(progress, _progress_mark(progress, account, place, check))
                made = await client.post(path, {"body": body})
                return str(made["id"])
            shown = str(found["id"])
        try:
            comment = await client.get(f"/repos/{place.repository}/issues/comments/{shown}")
        except Permanent as error:
            if is_missing(error):
                return shown
            raise
        found_words = marks.words(account, place, comment["body"])
        if _working_mark(progress.message) in found_words:
            mark = _progress_mark(progress, account, place, marks.value(found_words, "check"))
            await _edit(client, place, shown, _progress_body(progress, mark))
        return shown

    async def _begin_check(self, account: ConnectionContext, place: Place, message: str) -> str:
        """Start a check run on a pull request's head, so that its page shows the work. An issue has none."""
        reading = await self._access.to(account, place.repository, READ)
        try:
            pull = await reading.get(f"/repos/{place.repository}/pulls/{place.number}")
            client = await self._access.to(account, place.repository, CHECKS)
            path = f"/repos/{place.repository}/commits/{pull['head']['sha']}/check-runs"
            for run in await client.pages(path, key="check_runs", check_name=CHECK_NAME):
                if run.get("external_id") == message and run["status"] != "completed":
                    return str(run["id"])
            made = await client.post(
                f"/repos/{place.repository}/check-runs",
                {
                    "name": CHECK_NAME,
                    "head_sha": pull["head"]["sha"],
                    "status": "in_progress",
                    "external_id": message,
                },
            )
            return str(made["id"])
        except Permanent:
            return ""  # an issue has none, and a token may not be allowed to: the comment says it all

    async def _check_what_was_made(
        self, account: ConnectionContext, place: Place, outgoing: Outgoing
    ) -> None:
        """Report the run's end as a check on the commit that it pushed, once per answer."""
        settings = Settings.model_validate(account.settings)
        head = str(outgoing.facts.get("head") or f"{settings.branch_prefix}{place.number}")
        if settings.app_id is None or not head.startswith(settings.branch_prefix):
            return  # only an App may make checks, and only our own branches get one
        try:
            reading = await self._access.to(account, place.repository, READ)
            if not outgoing.facts.get("head"):
                head, _ = await unmerged(reading, place.repository, head, "")
            query = {"head": f"{place.repository.partition('/')[0]}:{head}", "state": "open"}
            pulls = await reading.get(f"/repos/{place.repository}/pulls", **query)
            if pulls:
                people = (str(outgoing.facts.get("login", "")),)
                ends = (pulls[0]["base"]["ref"], pulls[0]["head"]["ref"])
                acting = await acting_commits(reading, place, *ends, people) if outgoing.narrowed else []
                await self._check_once(account, place, pulls[0]["head"]["sha"], outgoing, acting)
        except Permanent:
            return  # decoration: the answer stands without it

    async def _check_once(
        self, account: ConnectionContext, place: Place, sha: str, outgoing: Outgoing, acting: list[str]
    ) -> None:
        client = await self._access.to(account, place.repository, CHECKS)
        base = f"/repos/{place.repository}"
        known = await client.pages(
            f"{base}/commits/{sha}/check-runs", key="check_runs", check_name=CHECK_NAME
        )
        if any(run.get("external_id") in (outgoing.id, _began_with(outgoing)) for run in known):
            return
        link = {"details_url": outgoing.work.url} if outgoing.work and outgoing.work.url else {}
        new = {"name": CHECK_NAME, "head_sha": sha, "external_id": outgoing.id, **link, **_settled(outgoing)}
        if acting:
            new |= {"conclusion": "failure", "output": {"title": ACTING, "summary": ", ".join(acting)}}
        await client.post(f"{base}/check-runs", new)


@contextlib.contextmanager
def saying_if_gone(place: str) -> Iterator[None]:
    """Explain to the reader of the run why it cannot be answered. What may change (a lock, a permission, a key) is
    tried again for days first."""
    try:
        yield
    except Gone:
        raise  # it is written again
    except Permanent as error:
        detail = str(error)
        if error.reason in _MAY_PASS and "archived" not in detail:
            reason = "github.locked" if "locked" in detail else error.reason
            raise Temporary(
                detail, reason=reason, retry_after=AGAIN_AFTER, give_up_after=GIVE_UP_AFTER
            ) from None
        if is_missing(error) and detail.startswith("GitHub answered"):
            detail = f"{place} was deleted, or is closed to us. {detail}"
        raise Permanent(f"Nothing can be answered: {detail}", reason=error.reason) from None


_MAY_PASS = frozenset({"github.forbidden", "github.credentials", "credentials"})
"""An issue may be unlocked, a permission accepted, a key replaced."""


def _settled(outgoing: Outgoing) -> dict[str, Any]:
    """The fields of a completed check. Success is neutral: our own verdict must not make anything mergeable."""
    if outgoing.stopped_by == CANCELLED:
        conclusion, title = CANCELLED, "Gofer was stopped"
    elif outgoing.kind == "error":
        conclusion, title = "failure", "Gofer gave up"
    elif outgoing.stopped_by:
        conclusion, title = "failure", f"Gofer was stopped by a limit ({outgoing.stopped_by})"
    else:
        conclusion, title = "neutral", "Gofer has answered"
    output = {"title": title, "summary": outgoing.text[:1000] or "Done."}
    return {"status": "completed", "conclusion": conclusion, "output": output}


async def _edit(client: Client, place: Place, comment: object, body: str) -> None:
    await client.patch(f"/repos/{place.repository}/issues/comments/{comment}", {"body": body})


def _progress_mark(progress: Progress, account: ConnectionContext, place: Place, check: str) -> str:
    return marks.line(account, place, "progress", _working_mark(progress.message), check and f"check={check}")


def _progress_body(progress: Progress, mark: str) -> str:
    if progress.goal:
        return _goal_body(progress, mark)
    doing = f", using `{progress.doing}`" if progress.doing else ""
    more = f" [See the run.]({progress.url})" if progress.url else ""
    state = f"⏸ Waiting for {progress.waits_for}" if progress.waits_for else "⏳ Working on it"
    line = f"{state}: step {progress.steps}{doing}, {_clock(progress.seconds)} so far.{more}"
    return "\n\n".join([line, *([_plan(progress)] if progress.plan else []), mark])


def _goal_body(progress: Progress, mark: str) -> str:
    """A goal as a checklist."""
    state = f"⏸ Waiting for {progress.waits_for}" if progress.waits_for else "⏳ Working on it"
    more = f" [See the goal.]({progress.url})" if progress.url else ""
    line = f"{state}: {progress.steps} of {len(progress.plan)} tasks done, {_clock(progress.seconds)} so far.{more}"
    steer = " · ".join(f"`/{COMMAND} {offer}`" for offer in progress.offers)
    parts = [f"### Goal: {progress.goal}", line if progress.plan else "⏳ Making a plan.", _plan(progress)]
    return "\n\n".join(part for part in (*parts, f"<sub>{steer}</sub>" if steer else "", mark) if part)


MAX_FENCE = 100
FENCE_ROOM = 3 * MAX_FENCE
"""Characters that closing and reopening a fence may add to a part."""

_OPENING = re.compile(r"^((?: {0,3}+> ?+)*+)( *+(?:(?:[-*+]|\d{1,9}[.)]) ++)*+)(`{3,}+|~{3,}+)(.*)$")


@dataclass(frozen=True, slots=True)
class Fence:
    """An open code fence: what precedes it on its line, its marker, and its language."""

    quote: str
    indent: int
    marker: str
    language: str

    @property
    def opening(self) -> str:
        return f"{self.quote}{self.marker}{self.language}\n"

    @property
    def closing(self) -> str:
        return f"{self.quote}{' ' * self.indent}{self.marker}"

    def ends_at(self, line: str) -> bool:
        """Whether the fence ends at this line. In a quotation it ends with the quotation."""
        return self.closed_by(line) or (">" in self.quote and not line.lstrip().startswith(">"))

    def closed_by(self, line: str) -> bool:
        rest = line[len(self.quote) :] if line.startswith(self.quote) else line.lstrip("> ")
        rest = rest.strip()
        return len(rest) >= len(self.marker) and not rest.strip(self.marker[0])

    def outdented(self, line: str) -> str:
        """A line of its code without the list's indentation, for a part that does not contain the list."""
        inner = line[len(self.quote) :] if line.startswith(self.quote) else line
        spaces = min(self.indent, len(inner) - len(inner.lstrip(" ")))
        return line[: len(line) - len(inner)] + inner[spaces:]


def open_at_end(text: str) -> Fence | None:
    """The fence that is open at the end of a text."""
    fence: Fence | None = None
    for line in text.removesuffix("\n").split("\n"):
        if fence is None:
            fence = _opened_by(line)
        elif fence.closed_by(line):
            fence = None
        elif fence.ends_at(line):
            fence = _opened_by(line)
    return fence


def closed(text: str) -> str:
    """The text with its open fence closed."""
    fence = open_at_end(text)
    return text if fence is None else f"{text.removesuffix(chr(10))}\n{fence.closing}"


def parted(text: str, cut: int) -> tuple[str, str]:
    """Cut a text in two: close an open fence in the first part, and reopen it in the second."""
    head, rest = text[:cut], text[cut:]
    fence = open_at_end(head)
    if fence is None:
        return head, rest
    lines = rest.removeprefix("\n").split("\n")
    size = next((at for at, line in enumerate(lines) if fence.ends_at(line)), len(lines))
    if size == 0:  # nothing of the code is left for the next part
        return closed(head), "\n".join(lines[1:] if fence.closed_by(lines[0]) else lines)
    # The end of the fence comes along; it stands where its code does.
    moved = [fence.outdented(line) for line in lines[: size + 1]]
    return closed(head), fence.opening + "\n".join([*moved, *lines[size + 1 :]])


def _opened_by(line: str) -> Fence | None:
    found = _OPENING.match(line)
    if found is None or len(found.group(3)) > MAX_FENCE or len(found.group(1) + found.group(2)) > MAX_FENCE:
        return None
    quote, before, marker, language = found.groups()
    if marker[0] == "`" and "`" in language:
        return None  # a code span
    return Fence(quote, len(before), marker, language.strip()[: MAX_FENCE // 2])
