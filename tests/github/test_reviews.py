"""Reviews: each comment keeps its place and its thread, and Gofer reviews as people do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gofer.integration import Incoming
from gofer_github import integration, reviews
from gofer_standins.anthropic import Anthropic, say
from gofer_standins.github import git
from gofer_standins.github.world import Issue
from gofer_standins.loopback import serve as loopback
from support.github_scene import Scene, asked, gofer, latest, request, use

BEFORE = "".join(f"line {n}\n" for n in range(1, 41))
AFTER = BEFORE.replace("line 5\n", "line five\nand a half\n").replace("line 30\n", "")


async def changed(scene: Scene, by: str = "ada") -> Issue:
    """A pull request that changes two parts of a file."""
    git.commit(scene.repository.path, {"a.txt": BEFORE}, "main", "Before")
    git.commit(scene.repository.path, {"a.txt": AFTER, "b.txt": "b\n"}, "change", "After")
    return await scene.github.open_pull(by, scene.repository, "change")


def parsed(scene: Scene, event: str) -> list[Incoming]:
    """Every message that GitHub told of, in order."""
    found = []
    for one in scene.github.world.deliveries:
        message = integration.parse(
            request(one.event, json.dumps(one.payload).encode()), scene.account()
        ).message
        if message is not None and one.event == event:
            found.append(message)
    return found


async def test_line_side_and_hunk_of_each_comment_reach_the_model(scene: Scene, tmp_path: Path) -> None:
    """Three comments of one review: three places, each quoted as the code of whoever made the pull request."""
    model = Anthropic([say("I see.")])
    async with loopback(model.app) as url:
        keys: dict[str, Any] = {"anthropic_key": model.key, "anthropic_base_url": url}
        async with gofer(scene, tmp_path / "data", **keys) as running:
            pull = await changed(scene)
            remarks = [("a.txt", 6, "Why a half?"), ("a.txt", 32, "Why not 30?"), ("b.txt", 1, "And this?")]
            made = await scene.github.review(
                "ada", scene.repository, pull.number, "@gofer please explain", comments=remarks
            )
            await running.quiet()
    seen = json.dumps(model.received[0]["messages"])
    for one, (path, line, words) in zip(made, remarks, strict=True):
        assert words in seen
        assert f"Review comment {one.id} is on {path}, line {line} of the new side:" in seen
    assert "+and a half" in seen
    assert len(model.received) == 1, "they are read together"


async def test_a_comment_on_the_old_side_and_one_on_older_code_say_so(scene: Scene) -> None:
    pull = await changed(scene)
    await scene.github.review_comment(
        "ada", scene.repository, pull.number, "a.txt", "@gofer why?", line=30, side="LEFT"
    )
    message = await latest(scene)
    assert "a.txt, line 30 of the old side:" in message.quoted
    assert message.quoted.split("\n\n")[0].endswith("-line 30")
    assert message.facts["where"]["line"] == 30
    payload = scene.github.world.deliveries[-1].payload
    payload["comment"] |= {"line": None, "original_line": 30, "start_line": None}
    again = integration.parse(
        request("pull_request_review_comment", json.dumps(payload).encode()), scene.account()
    ).message
    assert again is not None
    assert "line 30 of the old side (of an earlier version; the code has changed since)" in again.quoted


async def test_each_comment_is_answered_and_resolved_in_its_own_thread(scene: Scene) -> None:
    pull = await changed(scene)
    remarks = [("a.txt", 5, "@gofer one"), ("a.txt", 6, "@gofer two"), ("b.txt", 1, "@gofer three")]
    made = await scene.github.review("ada", scene.repository, pull.number, "", comments=remarks)
    message = await latest(scene)
    told = await use(scene, message, "github_reply", body="Which?")
    assert told.is_error
    assert all(f"{one.id} ({one.path}, line {one.line} of the new side)" in told.content for one in made)
    assert (await use(scene, message, "github_resolve")).is_error
    for one in made:
        await use(scene, message, "github_reply", call=f"call-{one.id}", comment=one.id, body=f"To {one.id}.")
    replies = [one for one in scene.repository.review_comments.values() if one.user.login == "gofer[bot]"]
    assert [(one.thread, one.body.split("\n")[0]) for one in replies] == [
        (one.id, f"To {one.id}.") for one in made
    ]
    assert not (await use(scene, message, "github_resolve", comment=replies[1].id)).is_error
    assert [one.resolved for one in made] == [False, True, False]
    other = await scene.github.open_pull("ada", scene.repository, "change", "Another")
    elsewhere = await scene.github.review_comment(
        "ada", scene.repository, other.number, "a.txt", "Hm.", line=5
    )
    refused = await use(scene, message, "github_reply", comment=elsewhere.id, body="No.")
    assert (refused.is_error, refused.content) == (
        True,
        f"Comment {elsewhere.id} is not on this pull request.",
    )
    shown = (await use(scene, message, "github_read")).content
    assert f"review comment {made[2].id} on b.txt, line 1 of the new side:" in shown
    assert (
        f"review comment {replies[0].id} on a.txt, line 5 of the new side, in answer to {made[0].id}:"
        in shown
    )


async def test_a_review_is_submitted_once_with_comments_and_suggestions(scene: Scene) -> None:
    pull = await changed(scene)
    message = await asked(scene, "/gofer review", pull.number)
    comments = [
        {"path": "a.txt", "line": 6, "start_line": 5, "body": "Simpler:", "suggestion": "line 5\n```\n"},
        {"path": "a.txt", "line": 30, "side": "old", "body": "Why did this go?"},
    ]
    given: dict[str, Any] = {"body": "Nearly.", "verdict": "request_changes", "comments": comments}
    for _ in range(2):
        told = await use(scene, message, "github_review", **given)
        assert not told.is_error, told.content
    (review,) = scene.repository.reviews.values()
    assert (review.state, review.user.login) == ("CHANGES_REQUESTED", "gofer[bot]")
    assert review.body.startswith("Nearly.\n")
    first, second = scene.repository.review_comments.values()
    assert (first.path, first.start_line, first.line, first.side) == ("a.txt", 5, 6, "RIGHT")
    assert first.body == "Simpler:\n\n````suggestion\nline 5\n```\n````"
    assert (second.line, second.side, second.hunk.split("\n")[-1]) == (30, "LEFT", "-line 30")


async def test_places_are_checked_against_the_diff_before_anything_is_sent(scene: Scene) -> None:
    pull = await changed(scene)
    message = await asked(scene, "/gofer review", pull.number)
    wrong = [
        {"path": "a.txt", "line": 20, "body": "Not in the diff."},
        {"path": "a.txt", "line": 30, "start_line": 6, "body": "Over two parts."},
        {"path": "README.md", "line": 1, "body": "Not changed."},
        {"path": "a.txt", "line": 30, "side": "old", "body": "Gone.", "suggestion": "x"},
    ]
    told = await use(scene, message, "github_review", body="Hm.", comments=wrong)
    assert told.is_error
    assert told.content.startswith(
        "Nothing was submitted:\na.txt: line 20 of the new side is not in one part"
    )
    assert "Lines that are: 2-9, 28-33." in told.content
    assert "README.md is not changed by this pull request. Changed are: a.txt, b.txt." in told.content
    assert "a suggestion can replace lines of the new side only" in told.content
    assert not [path for method, path, _ in scene.github.calls if method == "POST" and "/reviews" in path]
    pull.user = scene.app.user
    told = await use(scene, message, "github_review", body="Hm.", verdict="request_changes")
    assert "of your own" in told.content


async def test_changes_requested_of_our_own_pull_request_need_no_mention(
    scene: Scene, tmp_path: Path
) -> None:
    async with gofer(scene, tmp_path / "data") as running:
        pull = await changed(scene)
        remarks = [("a.txt", 6, "Spell it out.")]
        await scene.github.review("ada", scene.repository, pull.number, "", "changes_requested", remarks)
        await running.quiet()
        assert scene.ours(pull.number) == [], "it is ada's own"
        pull.user = scene.app.user
        for login, state in (("mallory", "changes_requested"), ("ada", "approved"), ("ada", "commented")):
            await scene.github.review(login, scene.repository, pull.number, "Hm.", state, remarks)
        await running.quiet()
        assert scene.ours(pull.number) == []
        await scene.github.review("ada", scene.repository, pull.number, "", "changes_requested", remarks)
        await running.quiet()
    assert len(scene.ours(pull.number)) == 1
    (message,) = [one for one in parsed(scene, "pull_request_review") if one.trigger == "changes_requested"][
        -1:
    ]
    assert message.text.startswith("Changes are requested; see the comments on lines.")


async def test_whoever_asked_is_asked_for_a_review(scene: Scene) -> None:
    await scene.github.open_issue("mallory", scene.repository, "Broken")
    git.commit(scene.repository.path, {"a.txt": "a"}, "gofer/1", "A change")
    words = {"title": "Fix", "changed": "It.", "why": "Broken.", "tested": "Yes.", "uncertain": "No."}
    told = await use(scene, await asked(scene, "@gofer fix"), "github_open_pull", **words)
    assert told.content.endswith("ada is asked for a review.")
    (pull,) = [one for one in scene.repository.issues.values() if one.head]
    assert pull.reviewers == ["ada"]


LINES = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=12)


@given(before=LINES, after=LINES)
def test_the_lines_of_a_hunk_are_those_that_git_counts(before: list[str], after: list[str]) -> None:
    import difflib

    rows = list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]
    parts = [[one[1:] for one in rows if one[:1] != "+"], [one[1:] for one in rows if one[:1] != "-"]]
    old, new = ([line for line in part if not line.startswith("@ -")] for part in parts)
    found = reviews.hunks("\n".join(rows))
    assert [before[line - 1] for hunk in found for line in hunk.old] == old
    assert [after[line - 1] for hunk in found for line in hunk.new] == new


@pytest.mark.parametrize(("text", "fence"), [("x", "```"), ("a ``` b", "````"), ("", "```")])
def test_a_suggestion_is_not_ended_by_its_own_words(text: str, fence: str) -> None:
    block = reviews.suggestion_block(text)
    assert block.startswith(f"{fence}suggestion\n")
    assert block.endswith(f"\n{fence}")


def test_a_suggestion_of_an_empty_line_is_no_deletion() -> None:
    assert reviews.suggestion_block("\n") == "```suggestion\n\n```"
    assert reviews.suggestion_block("") == "```suggestion\n```"
