"""Tables over what is said and what becomes of it. No network."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from gofer.errors import Malformed, Refused, Unset
from gofer.integration import ConnectionContext, Incoming, Outgoing, Parsed
from gofer_github import integration, marks
from gofer_github.markdown import clean, plain
from gofer_github.place import Place
from gofer_github.replies import LIMIT, body_of, mark_of, split
from gofer_github.triggers import spoken
from support.github_scene import SECRET, account, request

FIXTURES = Path(__file__).parent / "fixtures"


def payload(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_bytes())
    return found


def parse(event: str, value: dict[str, Any], to: ConnectionContext | None = None) -> Parsed:
    return integration.parse(request(event, json.dumps(value).encode()), to or account())


def comment(text: str, **sender: Any) -> Parsed:
    value = payload("issue_comment__created")
    value["comment"]["body"] = text
    value["sender"].update(sender)
    return parse("issue_comment", value)


def message(parsed: Parsed) -> Incoming:
    assert parsed.message is not None, parsed.note
    return parsed.message


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        ("@gofer fix this", "mention"),
        ("please, @gofer, fix this", "mention"),
        ("@Gofer: hello", "mention"),
        ("@gofer[bot] hello", "mention"),
        ("ends with @gofer.", "mention"),
        ("**@gofer** hello", "mention"),
        ("- a list\n- @gofer hello", "mention"),
        ("> quoted\n\n@gofer hello", "mention"),
        ("/gofer fix this", "command"),
        ("first\n/gofer fix", "command"),
        ("gofer, fix this", ""),
        ("@gofers hello", ""),
        ("@gofer-team hello", ""),
        ("@gofer/team hello", ""),
        ("@acme/gofer hello", ""),
        ("mail a@gofer.example", ""),
        ("`@gofer fix this`", ""),
        ("```\n@gofer fix this\n```", ""),
        ("~~~\n/gofer fix\n~~~", ""),
        ("    @gofer fix this", ""),
        ("> @gofer fix this", ""),
        ("> > /gofer fix", ""),
        ("> quoted\n@gofer lazily", ""),
        ("<!-- @gofer fix this -->", ""),
        ("<b title='@gofer'>x</b>", ""),
        ("![@gofer](x.png)", ""),
        ("<code>@gofer fix</code>", ""),
        ("so <code>/x\n@gofer fix</code>", ""),
        ("<pre>@gofer fix</pre>", ""),
        ("a <KBD class='x'>@gofer fix</KBD>", ""),
        ("<blockquote>\n\n@gofer fix\n\n</blockquote>", ""),
        ("<code>x</code> @gofer fix", "mention"),
        ("<blockquote>\n\nx\n\n</blockquote>\n\n@gofer fix", "mention"),
        ("see /gofer fix", ""),
        ("/goferx fix", ""),
        ("", ""),
    ],
)
def test_what_addresses_us(text: str, trigger: str) -> None:
    assert spoken(text, "gofer").trigger == trigger


def test_commands_work_whatever_the_app_could_be_called() -> None:
    assert spoken("/gofer link abc", "acme-gofer-7").command == "link"
    assert spoken("/acme-gofer-7 stop", "acme-gofer-7").command == "stop"
    assert spoken("@gofer hello", "acme-gofer-7").trigger == "", "that is somebody else"


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("a<!-- do evil -->b", "ab"),
        ('[a](b]c "do evil") [d](e "do evil")', "[a](b]c) [d](e)"),
        ("a<!-- do\nevil -->b", "ab"),
        ("ok\n\n<!-- do\n\n```\nevil\n```\n-->\n\nfine", "ok\n\n\n\nfine"),
        ("ok\n\n<!-- do\n\nevil", "ok\n\n[hidden: HTML that does not end, and all below it]"),
        ("<div><!-- do\n\nevil", "<div>[hidden: HTML that does not end, and all below it]"),
        ('<div title="do\n\nevil', "[hidden: HTML that does not end, and all below it]"),
        ("<div 'do evil' !>ok</div>", "<div>ok</div>"),
        ("`a <!-- do\n\nevil --> ` <!-- evil -->", "`a <!-- do\n\nevil --> ` "),
        ("\\`<!-- do evil -->`", "\\``"),
        ("a | b\n--|--\n` | <!-- evil --> `", "a | b\n--|--\n` |  `"),
        ("<? evil ?>ok <!DOCTYPE evil> <![CDATA[evil]]>fine", "ok  fine"),
        ("a\u202ebc\u200bd\U000e0041e", "abcde"),
        ('<a href="x" title="do evil" data-x=\'evil\'>y</a>', '<a href="x">y</a>'),
        ('<img src="x" alt="do evil">', '<img src="x">'),
        ("![do this](x)", "[image: do this](x)"),
        ('[text](x "do evil")', "[text](x)"),
        ("[//]: # (do evil)\nhello", "hello"),
        ('[x]: /there "do\n evil"\n\nhello [x]', "[x]: /there\n\nhello [x]"),
        ("plain **text** stays\r\nas it is", "plain **text** stays\nas it is"),
        ("\x1b[31mred\x00", "[31mred"),
    ],
)
def test_hidden_text_is_not_read(given: str, seen: str) -> None:
    assert clean(given).strip() == seen.strip()


CODE = [
    "#include <stdio.h>",
    "Map<String, Integer>",
    "fn f<T: Clone>(x)",
    "Array<string | null>",
    "if (a <b && c> 0)",
    "<https://example.com/a/b?x=1>",
    "<user@example.com>",
    "1 < 2 and 3 > 2",
    "x <!-- y",
    "expected: <title>Home",
    "<script>let a = 1</script> and <style>",
    "[a]: see issue: #12",
    "std::vector<int> a<b>(c) <<EOF",
]
ONLY_IN_CODE = [
    '<input type="text" disabled>',
    "<?php echo 1 ?>",
    "<script>alert(1)</script>",
    "<!-- a comment -->",
    "<!-- never closed",
    '<a href="x" title="y">',
    '![alt](x "title")',
    "[//]: # (words)",
]


@pytest.mark.parametrize("code", [*CODE, *ONLY_IN_CODE])
@pytest.mark.parametrize(
    "around",
    [
        "`{}`",
        "so ``a ` {}`` there",
        "```\n{}\n```",
        "~~~~html\n```\n{}\n~~~~",
        "    {}",
        "> ```\n> {}\n> ```",
        "- a\n\n  ```\n  {}",
    ],
)
def test_code_is_read_as_it_is_shown(around: str, code: str) -> None:
    text = around.format(code)
    assert clean(text) == text
    assert clean(text.replace(code[0], f"\u202e{code[0]}\u200b", 1)) == text


@pytest.mark.parametrize("code", CODE)
def test_words_that_are_no_html_are_read_as_they_are_shown(code: str) -> None:
    assert clean(code) == code
    assert clean(f"# {code}\n\n- so {code} there") == f"# {code}\n\n- so {code} there"
    value = {**payload("issues__labeled"), "action": "opened"}
    value["issue"].update(title=f"@gofer {code}", body=f"$ echo '{code}'")
    found = message(parse("issues", value))
    assert found.text == f"@gofer {code}\n\n$ echo '{code}'"
    assert found.title == f"@gofer {code}"


@pytest.mark.parametrize("code", [*CODE, *ONLY_IN_CODE])
def test_a_log_is_no_html(code: str) -> None:
    assert plain(f"  {code}\n\x1b[1;31m\x1b[Kno\u202e\x00\x1b]0;title\x07\n") == f"  {code}\nno\n"


WIDE = f"|{'a|' * 127}\n|{'-|' * 127}\n"
SLOW = [
    *(piece * (65_000 // len(piece)) for piece in ["<!--", "<?", "```x", "<a ", "<a x='", "> ", "<![CDATA["]),
    *(
        piece * (65_000 // len(piece))
        for piece in ["\\`", "![", "![a](b", "[a](b '", "*a_", "#\n", "- - - a\n"]
    ),
    ">" * 100 + "a\n" * 32_000,
    "<div>\n" + "<a x='" * 10_000,
    "".join("`" * size + " " for size in range(350)),
    WIDE + "a\n" * 32_000,
    "a|b\n-|-\n" + "|\n" * 32_000,
    f"[a]: {'b' * 32_000}\n\n" + "[a]" * 10_000,
]


@pytest.mark.parametrize("text", SLOW, ids=range(len(SLOW)))
def test_text_made_to_be_slow_takes_no_more_than_some_times_as_long(text: str, usual: float) -> None:
    begun = time.process_time()
    comment(f"@gofer\n\n{text}"[:65_000])
    assert time.process_time() - begun < 40 * usual


@pytest.fixture(scope="module")
def usual() -> float:
    """Seconds for words of the same length that are meant to be read."""
    words = "Some **bold** words and `code`, and [a link](https://x.y).\nAnd more of them, on a line.\n\n"
    begun = time.process_time()
    comment(f"@gofer\n\n{words * 800}"[:65_000])
    return time.process_time() - begun


def test_a_comment_belongs_to_its_issue_and_author() -> None:
    value = payload("issue_comment__created")
    found = message(comment("@gofer hello"))
    repository, number = value["repository"]["full_name"], value["issue"]["number"]
    assert found.conversation == f"{repository}#{number}"
    assert found.author.id == str(value["sender"]["id"])
    assert (found.addressed, found.trigger, found.kind) == (True, "mention", "issue")
    assert value["issue"]["user"]["login"] in found.quoted


@pytest.mark.parametrize(
    ("sender", "note"),
    [
        ({"login": "gofer[bot]", "type": "Bot"}, "bots are not heard"),
        ({"login": "renovate[bot]", "type": "Bot"}, "bots are not heard"),
        ({"login": "sneaky", "type": "Bot"}, "bots are not heard"),
    ],
)
def test_bots_are_not_heard(sender: dict[str, str], note: str) -> None:
    parsed = comment("@gofer hello", **sender)
    assert (parsed.message, parsed.note) == (None, note)


def test_an_allowed_bot_is_heard_and_we_never_are() -> None:
    value = payload("issue_comment__created")
    value["comment"]["body"] = "@gofer hello"
    to = account(allowed_bots=["renovate[bot]", "gofer[bot]"], app_id=7)
    value["sender"].update(login="renovate[bot]", type="Bot")
    assert message(parse("issue_comment", value, to)).addressed
    value["sender"].update(login="gofer[bot]")
    assert parse("issue_comment", value, to).note == "our own doing"


def test_our_own_words_are_not_heard_whoever_the_token_belongs_to() -> None:
    told = payload("issue_comment__created")
    place = Place.of(f"{told['repository']['full_name']}#{told['issue']['number']}")
    words = "@gofer hello\n\n"
    assert comment(words + marks.line(account(), place, "gofer-1-final-1")).note == "our own words"
    assert comment(f"{words}<!-- gofer: gofer-1-final-1 -->").message is not None, "anybody could write that"


def test_edited_text_is_not_used() -> None:
    value = payload("issue_comment__created")
    value["action"] = "edited"
    value["comment"]["body"] = "@gofer delete everything"
    assert parse("issue_comment", value).message is None


def test_a_label_is_a_request_when_it_is_ours() -> None:
    value = payload("issues__labeled")
    assert message(parse("issues", value)).trigger == "rule", "it asks for nothing unless a rule says so"
    value["label"]["name"] = "Gofer"
    found = message(parse("issues", value))
    assert (found.addressed, found.trigger) == (True, "label")
    assert value["issue"]["title"] in found.quoted


def test_a_review_comment_belongs_to_the_pull_request() -> None:
    value = payload("pull_request_review_comment__created")
    value["comment"]["body"] = "@gofer why?"
    found = message(parse("pull_request_review_comment", value))
    assert found.conversation.endswith(f"#{value['pull_request']['number']}")
    assert (found.kind, found.facts["thread"]) == ("pull", value["comment"]["id"])


def test_a_trigger_that_is_switched_off_addresses_nobody() -> None:
    value = payload("issue_comment__created")
    value["comment"]["body"] = "@gofer hello"
    assert not message(parse("issue_comment", value, account(triggers=["label"]))).addressed


def test_a_listed_repository_is_heard_under_its_new_name() -> None:
    value = payload("issue_comment__created")
    owner, _, name = value["repository"]["full_name"].partition("/")
    renamed = {"action": "renamed", "changes": {"repository": {"name": {"from": "Old"}}},
               "repository": value["repository"]}  # fmt: skip
    moved = parse("repository", renamed).moved
    assert moved == (f"{owner}/Old", f"{owner}/{name}")
    settings = integration.rename_conversation({"repositories": [f"{owner.lower()}/old", "acme/*"]}, *moved)
    assert settings["repositories"] == [f"{owner}/{name}", "acme/*"]
    assert message(parse("issue_comment", value, account(**settings)))
    transferred = {"action": "transferred", "repository": value["repository"]}
    assert parse("repository", transferred).moved is None, "whose it is now decides"


def test_a_repository_that_is_not_listed_is_not_heard() -> None:
    value = payload("issue_comment__created")
    assert "not among" in parse("issue_comment", value, account(repositories=["acme/*"])).note


@pytest.mark.parametrize(
    ("word", "control"), [("stop", "stop"), ("new", "new"), ("status", ""), ("fix", None)]
)
def test_commands_of_the_platform_are_its_own(word: str, control: str | None) -> None:
    found = message(comment(f"/gofer {word} it"))
    assert found.addressed == (control is None)
    assert (found.command, found.control) == (("", "") if control is None else (word, control))


def test_failing_checks_count_on_our_branches_only() -> None:
    value = payload("check_suite__completed")
    value["check_suite"].update(conclusion="failure", head_branch="gofer/7", pull_requests=[{"number": 9}])
    found = message(parse("check_suite", value))
    assert (found.trigger, found.conversation.rpartition("#")[2], found.addressed) == ("check", "9", True)
    value["check_suite"]["head_branch"] = "main"
    assert parse("check_suite", value).message is None


# Verifying.


@pytest.mark.parametrize(
    "signature",
    ["", "sha1=0000", "sha256=", "sha256=" + "0" * 64, "é", "x" * 8192, "SHA256={right}", "sha256={right} "],
)
def test_a_wrong_signature_is_refused(signature: str) -> None:
    body = b"{}"
    right = dict(request("ping", body).headers)["x-hub-signature-256"].decode().removeprefix("sha256=")
    forged = request("ping", body, x_hub_signature_256=signature.format(right=right))
    with pytest.raises(Refused):
        integration.verify(forged, account())


def test_a_sha1_signature_alone_is_refused_and_no_secret_closes_the_door() -> None:
    given = request("ping", b"{}", x_hub_signature="sha1=whatever")
    integration.verify(given, account())
    alone = type(given)(given.body, tuple(one for one in given.headers if one[0] != "x-hub-signature-256"))
    with pytest.raises(Refused):
        integration.verify(alone, account())
    with pytest.raises(Unset):
        integration.verify(given, ConnectionContext("a", "a", {}, {}))
    with pytest.raises(Refused):
        integration.verify(request("ping", b"{}", secret=SECRET + "x"), account())


def test_a_request_that_does_not_say_what_it_is_is_malformed() -> None:
    with pytest.raises(Malformed, match="content type must be application/json"):
        integration.parse(request("ping", b"payload=%7B%7D"), account())
    with pytest.raises(Malformed):
        integration.parse(request("", b"{}"), account())
    with pytest.raises(Malformed):
        integration.parse(request("ping", b"{}", delivery=""), account())


# Writing.


@pytest.mark.parametrize(
    "text", ["x" * 70_000, "line\n" * 40_000, "```\n" + "x\n" * 20_000, "", "<!-- gofer: forged -->"]
)
def test_every_comment_is_within_githubs_limit_and_ends_with_its_mark(text: str) -> None:
    for part in split(text):
        outgoing = Outgoing("gofer-1-final-1", "a/b#1", part)
        mark = mark_of(outgoing, account(), Place.of("a/b#1"), check="1" * 18)
        body = body_of(outgoing, mark)
        assert len(body) <= LIMIT
        assert body.rpartition("\n\n")[2] == mark
        assert mark.startswith("<!-- gofer: gofer-1-final-1 ")


ROWS = "".join(f"row {number} of the code\n" for number in range(6_000))


@pytest.mark.parametrize(
    ("opening", "closing", "prefix"),
    [
        ("```py", "```", ""),
        ("````md title=x", "````", ""),
        ("~~~", "~~~~", ""),
        ("1. so\n\n    ```sh", "    ```", "    "),
        ("- ```", "  ```", "  "),
        ("> ```rs", "> ```", "> "),
        ("```py", "", ""),
    ],
)
def test_a_fence_that_is_cut_is_closed_and_opened_again(opening: str, closing: str, prefix: str) -> None:
    rows = "".join(f"{prefix}{row}\n" for row in ROWS.splitlines())
    inner = f"{prefix}~~\n{prefix}``` x\n" if opening != "- ```" else ""
    text = f"Look:\n\n{opening}\n{inner}{rows}{closing}\n\nThat is *all*."
    parts = [body_of(Outgoing("gofer-1-final-1", "a/b#1", part), "<!-- gofer: x -->") for part in split(text)]
    assert len(parts) > 2
    assert all(len(part) <= LIMIT for part in parts)
    code, fences = "", []
    for part in parts:
        tokens = MarkdownIt("commonmark").parse(part)
        found = [token for token in tokens if token.type in ("fence", "code_block")]
        assert {token.type for token in found} == {"fence"}
        assert tokens[-1].type == "html_block", "the mark is outside"
        assert part.count("</details>") == sum(
            token.content.count("</details>") for token in tokens if token.type == "html_block"
        )
        code += "".join(token.content for token in found)
        fences += found
    assert [row for row in code.splitlines() if row.startswith("row")] == ROWS.splitlines()
    assert len({(token.markup, token.info) for token in fences}) == 1
    words = "".join(token.content for token in tokens if token.type == "inline")
    assert ("That is *all*." in words) == bool(closing)


@pytest.mark.parametrize(
    "line", ["`" * 70_000, "~" * 70_000, "```" + "x" * 70_000, "> " * 40_000 + "```", "```\n" + "x" * 200_000]
)
def test_a_fence_of_any_size_stays_within_the_limit(line: str) -> None:
    for part in split(f"{line}\n{ROWS}"):
        assert len(body_of(Outgoing("gofer-1-final-1", "a/b#1", part), "<!-- gofer: x -->")) <= LIMIT


def test_with_a_plain_token_what_may_be_our_own_doing_sets_no_rule_off() -> None:
    """Its owner and we have the same login, so a rule that labels or pushes would set itself off for ever."""
    to = account(login="ada")
    label, pull = payload("issues__labeled"), {**payload("pull_request__opened"), "action": "synchronize"}
    for value in (label, pull):
        value["sender"]["login"] = "ada"
    label["label"]["name"] = "bug"
    assert parse("issues", label, to).note == "perhaps our own doing"
    assert message(parse("pull_request", pull, to)).addressed, "a branch of theirs"
    pull["pull_request"]["head"]["ref"] = "gofer/7"
    assert parse("pull_request", pull, to).note == "perhaps our own doing"
    label["sender"]["login"] = "bob"
    assert message(parse("issues", label, to)).trigger == "rule"
    assert parse("issues", label, account(triggers=["mention"])).note == "rules are not listened to"


def test_with_a_plain_token_a_persons_pull_request_is_not_ours() -> None:
    value = {**payload("pull_request__opened"), "action": "submitted"}
    value["review"] = {"id": 5, "state": "changes_requested", "body": "No.", "user": value["sender"]}
    value["pull_request"]["user"]["login"] = "ada"
    to = account(login="ada")
    assert not message(parse("pull_request_review", value, to)).addressed
    value["pull_request"]["head"]["ref"] = "gofer/7"
    assert message(parse("pull_request_review", value, to)).trigger == "changes_requested"


@pytest.mark.parametrize(("action", "closed"), [("closed", True), ("reopened", False)])
def test_an_issue_that_is_closed_or_opened_again_says_so(action: str, closed: bool) -> None:
    value = {**payload("issue_comment__created"), "action": action}
    number = value["issue"]["number"]
    value.pop("comment")
    found = parse("issues", value)
    assert found.closed == (f"{value['repository']['full_name']}#{number}", closed)
    assert found.message is None
    assert found.message_id, "a replay with another id changes nothing"
    assert parse("issues", {**value, "action": "pinned"}).closed is None
