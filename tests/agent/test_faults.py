"""Every way in which the model's API is known to misbehave: a clear end for the user, a valid journal."""

from __future__ import annotations

from typing import Any

import pytest

from agent.conftest import Make
from agent.pictures import PNG
from agent.ports import ListJournal, ada
from gofer.agent.conversation import Picture
from gofer.agent.limits import LimitSettings
from gofer.agent.models.catalogue import Breaker, Breakers
from gofer.agent.outcome import Answered, Failed, Stopped
from gofer.runs.agent_files import AgentSpec
from gofer_standins.anthropic import Fault, call, calls, fault, say

PASSING: list[Fault] = [
    "cut", "reset", "overloaded_midstream", "overloaded", "timeout", "conflict", "server_error", "bad_gateway",
]  # fmt: skip
DANGER = call("bash", command="echo ran >>ran; rm -rf precious", timeout=9)


@pytest.mark.parametrize("kind", PASSING)
async def test_what_passes_is_tried_again_and_paid_for(rehearse: Make, kind: Fault) -> None:
    world, service = await rehearse(fault(kind, {"type": "text", "text": "Half an ans"}), say("Whole."))
    assert await world.run() == Answered("Whole.", included_to=1)
    assert len(service.received) == 2
    failed = world.journal.last("turn.failed")
    assert failed["again"]
    assert "<" not in failed["detail"], "a web page is no sentence"
    if kind in ("cut", "reset", "overloaded_midstream"):
        assert failed["cost"] > 0
        assert world.ledger.total == failed["cost"] + world.journal.last("turn.finished")["cost"]


@pytest.mark.parametrize("kind", ["cut_in_call", "max_tokens_in_call", "malformed_call"])
async def test_half_a_call_is_never_run(rehearse: Make, kind: Fault) -> None:
    world, service = await rehearse(fault(kind, DANGER), say("Nothing was run."))
    await world.shell.write("precious", b"1")
    assert await world.run() == Answered("Nothing was run.", included_to=1)
    assert world.shell.commands == []
    assert service.refused == []
    if kind == "max_tokens_in_call":
        assert "was not run" in str(service.received[1]["messages"][-1])
    if kind == "malformed_call":
        assert "nothing was run" in str(service.received[1]["messages"][-1])


async def test_an_hour_of_rate_limit_is_waited_for_durably_not_slept(rehearse: Make) -> None:
    world, _ = await rehearse(fault("rate_limit", retry_after=3600), say("Later."))
    outcome = await world.run()
    assert isinstance(outcome, Failed)
    assert outcome.retry_after == 3600
    assert outcome.waiting
    assert await world.run() == Answered("Later.", included_to=1), "the next attempt goes on"


@pytest.mark.parametrize(("asked", "waits"), [(10**12, 86_400), (float("inf"), 30)])
async def test_whoever_asks_for_a_wait_without_end_is_asked_again(
    rehearse: Make, asked: float, waits: float
) -> None:
    world, _ = await rehearse([fault("rate_limit", retry_after=asked)] * 9)
    outcome = await world.run()
    assert isinstance(outcome, Failed)
    assert outcome.retry_after == waits


async def test_a_short_rate_limit_is_waited_for_in_place(rehearse: Make) -> None:
    world, _ = await rehearse(fault("rate_limit", retry_after=1), say("Soon."))
    assert await world.run() == Answered("Soon.", included_to=1)


async def test_a_silent_stream_is_given_up_and_tried_again(rehearse: Make) -> None:
    world, _ = await rehearse(fault("stall", {"type": "text", "text": "Hm"}), say("Awake."), stall=0.2)
    assert await world.run() == Answered("Awake.", included_to=1)


@pytest.mark.parametrize("kind", ["auth", "forbidden"])
async def test_a_refused_key_opens_the_breaker_at_once(rehearse: Make, kind: Fault) -> None:
    alerts: list[str] = []
    breakers = Breakers(on_open=lambda name, reason: alerts.append(reason))
    world, service = await rehearse(fault(kind), breakers=breakers)
    outcome = await world.run()
    assert isinstance(outcome, Failed)
    assert outcome.reason == "model.auth"
    assert len(alerts) == 1
    again = await world.run()
    assert isinstance(again, Failed)
    assert again.reason == "model.unavailable"
    assert len(service.received) == 1, "nobody asks while the breaker is open"
    assert service.key not in str(world.journal.lines) + str(alerts)


async def test_five_failures_open_the_breaker_and_a_probe_closes_it(rehearse: Make) -> None:
    now = [0.0]
    breakers = Breakers(clock=lambda: now[0])
    world, service = await rehearse([*[fault("server_error")] * 5, say("Back.")], breakers=breakers)
    assert isinstance(await world.run(), Failed)
    outcome = await world.run()
    assert isinstance(outcome, Failed)
    assert outcome.waiting
    assert len(service.received) == 5
    now[0] = 31
    assert await world.run() == Answered("Back.", included_to=1)
    assert breakers.states() == {}


async def test_conversations_that_always_fail_keep_no_other_waiting(rehearse: Make) -> None:
    """What three send makes the provider fail each time; a fourth is answered whenever it asks, without a wait."""

    def script(request: Any) -> Any:
        return fault("server_error") if "poison" in str(request["messages"]) else say("Here.")

    now = [0.0]
    breakers = Breakers(clock=lambda: now[0])
    worlds = []
    for caller in ("a", "b", "c", "healthy"):
        world, _ = await rehearse(script, breakers=breakers, caller=caller)
        world.inbox.messages = [ada("poison" if caller != "healthy" else "Hello?")]
        worlds.append(world)
    *failing, healthy = worlds
    for turn in range(20):
        ends = [await world.run() for world in failing]
        assert all(isinstance(end, Failed) for end in ends)
        assert bool(breakers.states()) == (turn == 0), "it opens while it may be the provider's fault"
        healthy.journal = ListJournal()
        assert await healthy.run() == Answered("Here.", included_to=1)
        now[0] += 1
    reasons = {end.reason for end in ends}
    assert reasons == {"model.retryable"}, (
        "the model is well: what fails now is counted, and given up in the end"
    )


async def test_a_model_that_is_down_is_tried_by_one_newcomer_at_a_time() -> None:
    now = [0.0]
    breaker = Breaker(lambda: now[0])
    for _ in range(5):
        breaker.failed("down", "first")
    assert breaker.wait("first") == 30
    assert breaker.wait("second") == 0
    assert breaker.wait("third") == 1, "the second is trying"
    breaker.failed("down", "second")
    breaker.let_go("second")
    assert breaker.wait("second") == 30
    now[0] += 31
    assert breaker.wait("first") == 0
    assert breaker.wait("second") == 1
    assert breaker.wait("third") == 0, "who has failed does not keep who has not"
    breaker.failed("down", "first")
    breaker.let_go("first")
    assert breaker.wait("first") == 60
    breaker.succeeded("third")
    assert {breaker.wait(caller) for caller in ("first", "second", "third")} == {0}


@pytest.mark.parametrize("kind", ["too_long", "too_large", ""])
async def test_too_long_is_compacted_once_and_tried_once(rehearse: Make, kind: Fault) -> None:
    full = fault(kind, stop_reason="model_context_window_exceeded") if not kind else fault(kind)
    summary = say("Goal: x\nConstraints: -\nProgress: y\nDecisions: -\nNext steps: z\nFiles: -")
    world, service = await rehearse(calls(call("ls")), full, summary, say("Fits now."))
    world.inbox.messages = [ada("Never touch the garden. Count the flowers.")]
    assert await world.run() == Answered("Fits now.", included_to=1)
    opening = service.received[-1]["messages"][0]["content"][0]["text"]
    assert "Next steps: z" in opening
    assert "- Never touch the garden." in opening
    assert service.refused == []


async def test_too_long_for_ever_is_a_clear_stop(rehearse: Make) -> None:
    world, service = await rehearse(
        lambda request: fault("too_long") if request.get("tools") else say("no headings")
    )
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "model.context"
    assert len(service.received) <= 3


async def test_an_image_the_api_refuses_becomes_a_stub(rehearse: Make) -> None:
    world, service = await rehearse(fault("bad_image"), say("I cannot see it."))
    ref = await world.blobs.put(PNG, "image/png")
    world.inbox.messages = [ada("Look", pictures=(Picture(ref, "image/png"),))]
    assert await world.run() == Answered("I cannot see it.", included_to=1)
    assert "image" not in [block["type"] for block in service.received[1]["messages"][0]["content"]]


async def test_bytes_that_are_no_image_are_never_sent_as_one(direct: Make) -> None:
    world, service = direct(say("Nothing to see."))
    ref = await world.blobs.put(b"\x89PNG nearly", "image/png")
    world.inbox.messages = [ada("Look", pictures=(Picture(ref, "image/png"),))]
    assert isinstance(await world.run(), Answered)
    assert service.refused == []
    assert "could not read" in str(service.received[0]["messages"])


async def test_a_refusal_is_said_as_such(rehearse: Make) -> None:
    world, _ = await rehearse(say("I will not.", stop_reason="refusal"))
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "model.refused"
    assert "declined" in outcome.text


async def test_an_unknown_stop_reason_is_an_error_not_an_end(rehearse: Make) -> None:
    world, service = await rehearse(say("Hello", DANGER, stop_reason="cosmic_ray"))
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "model.stopped"
    assert outcome.text.startswith("Hello\n\nThe model broke off for a reason unknown to me (cosmic_ray)")
    assert "refused" not in outcome.text
    assert world.shell.commands == []
    assert len(service.received) == 1


async def test_an_unknown_block_is_passed_over(rehearse: Make) -> None:
    world, service = await rehearse(
        fault("unknown_block", {"type": "text", "text": "Hi."}, call("ls")), say("Fine.")
    )
    assert await world.run() == Answered("Fine.", included_to=1)
    assert service.refused == []


async def test_half_a_surrogate_pair_is_neither_kept_nor_sent_back(rehearse: Make) -> None:
    step = say("Half \ud83d, whole \ud83d\ude00.", call("todo", items=[{"text": "paint"}]))
    world, service = await rehearse(step, say("Done \ude00."))
    assert await world.run() == Answered("Done \ufffd.", included_to=1)
    assert {"type": "text", "text": "Half \ufffd, whole \U0001f600."} in service.received[1]["messages"][1][
        "content"
    ]


async def test_an_empty_answer_gets_one_nudge_and_then_ends(direct: Make) -> None:
    world, service = direct(calls(), say("Sorry, here."))
    assert await world.run() == Answered("Sorry, here.", included_to=1)
    assert "was empty" in str(service.received[1]["messages"])
    world, _ = direct(calls(), calls())
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "model.empty"


async def test_an_answer_cut_by_the_token_limit_goes_on_and_is_joined(direct: Make) -> None:
    world, _ = direct(say("The first half, ", stop_reason="max_tokens"), say("and the second."))
    assert await world.run() == Answered("The first half, and the second.", included_to=1)


async def test_a_paused_turn_goes_on(direct: Make) -> None:
    world, service = direct(say("Wait for it: ", stop_reason="pause_turn"), say("now."))
    assert await world.run() == Answered("Wait for it: now.", included_to=1)
    assert service.refused == []


async def test_a_provider_that_cannot_be_reached_is_a_failure_to_try_again(rehearse: Make) -> None:
    world, _ = await rehearse(say("Never."), base_url="http://127.0.0.1:9")
    outcome = await world.run()
    assert isinstance(outcome, Failed)
    assert outcome.reason == "model.retryable"
    assert "connection failed" in outcome.sentence
    assert len(world.journal.all("turn.failed")) == 4


@pytest.mark.parametrize("kind", ["invalid", "not_found", "unprocessable"])
async def test_a_request_the_api_calls_invalid_is_not_repeated(rehearse: Make, kind: Fault) -> None:
    world, service = await rehearse(fault(kind))
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "model.invalid"
    assert len(service.received) == 1


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("no_such_tool", {}),
        ("x" * 30_000, {}),
        ("bash", {"command": 7}),
        ("bash", {"command": "echo hi", "cwd": "/"}),
        ("bash", {}),
        ("bash", {"command": "x" * 10_000_000}),
        ("read", {"path": "a", "offset": -1}),
    ],
)
async def test_hostile_names_and_arguments_get_a_structured_error(
    direct: Make, name: str, arguments: dict[str, Any]
) -> None:
    world, service = direct(calls({"type": "tool_use", "name": name, "input": arguments}), say("Oh."))
    world.spec = AgentSpec(name="gofer", limits=LimitSettings(job_dollars=0, day_dollars=0))
    assert await world.run() == Answered("Oh.", included_to=1)
    result = service.received[1]["messages"][-1]["content"][0]
    assert result["is_error"]
    assert len(result["content"][0]["text"]) < 1000
    assert world.shell.commands == []


async def test_calls_that_cannot_be_told_apart_each_run_once(direct: Make) -> None:
    def bash(call_id: Any, command: str) -> dict[str, Any]:
        return {**call("bash", command=command), "id": call_id}

    same, odd = (
        calls(bash("toolu_1", "echo a"), bash("toolu_1", "echo b")),
        calls(bash("of no \0 use", "echo d")),
    )
    world, service = direct(same, calls(bash("toolu_1", "echo c")), odd, say("Oh."))
    assert await world.run() == Answered("Oh.", included_to=1)
    assert world.shell.commands == ["echo a", "echo b", "echo c", "echo d"]
    assert service.refused == []


async def test_a_message_of_ten_megabytes_is_capped(direct: Make) -> None:
    world, service = direct(say("Long."))
    world.inbox.messages = [ada("start " + "x" * 10_000_000 + " end")]
    assert await world.run() == Answered("Long.", included_to=1)
    text = service.received[0]["messages"][0]["content"][0]["text"]
    assert len(text) < 110_000
    assert "start" in text
    assert text.rstrip().endswith("end")
    assert "characters left out" in text
