"""A chat completions server drives the same loop, whatever manners it has."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import Field

from agent.pictures import PNG
from agent.ports import LocalShell, World, ada
from gofer.agent.conversation import Picture
from gofer.agent.limits import LimitSettings
from gofer.agent.model import ModelError
from gofer.agent.models.catalogue import Catalogue, Provider, ResilientModel
from gofer.agent.models.errors import body_of, refusal
from gofer.agent.models.providers import ModelSettings, load_providers
from gofer.agent.outcome import Answered, Failed, Stopped
from gofer.agent.prices import load_prices
from gofer.doctor.model import QUESTION
from gofer.errors import ConfigError
from gofer.runs.agent_files import AgentFileError, AgentSpec
from gofer.runs.agent_writer import put_agent
from gofer.runs.model_keys import ModelKeys
from gofer.secrets.secret_store import put_secret
from gofer.settings import Settings
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult
from gofer.vault.redaction import Secret
from gofer_standins.loopback import serve
from gofer_standins.openai import OpenAI, Reply
from support.world import World as StoreWorld

Make = Callable[..., Any]
FREE = AgentSpec(name="gofer", limits=LimitSettings(job_dollars=0, day_dollars=0))


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        async def make(*replies: Reply, **options: Any) -> tuple[World, OpenAI]:
            settings, effort = options.pop("settings", ModelSettings()), options.pop("effort", "")
            more = {name: options.pop(name) for name in ("tools", "spec", "inbox") if name in options}
            script = options.pop("script", replies)
            service = OpenAI(script, models=("llama",), **options)
            url = await stack.enter_async_context(serve(service.app))
            http = await stack.enter_async_context(httpx2.AsyncClient())
            provider = Provider(service.key, f"{url}/v1", models={"llama": settings})
            catalogue = Catalogue({"local": provider}, http=http)
            model = await catalogue.ready("local/llama", effort=effort)
            assert isinstance(model, ResilientModel)
            model.sleep = _no_sleep
            return World(model=model, shell=LocalShell(tmp_path), **{"spec": FREE, **more}), service

        yield make


async def _no_sleep(seconds: float) -> None:
    return None


async def test_tools_run_and_results_go_back_in_their_shape(local: Make) -> None:
    world, service = await local(
        Reply("Let me see.", (("bash", {"command": "echo 42"}), ("ls", {}))),
        Reply("", (("bash", {"command": "echo 43"}),)),
        Reply("It is 42, then 43."),
    )
    assert await world.run() == Answered("It is 42, then 43.", included_to=1)
    assert service.refused == []
    roles = [message["role"] for message in service.received[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "tool"]
    assert service.received[-1]["messages"][3]["content"] == "42"
    usage = world.journal.last("turn.finished")["usage"]
    assert usage["cache_read"] > 0
    assert usage["output"] == 7


async def test_a_server_that_says_little_is_understood_and_its_cost_estimated(local: Make) -> None:
    both = (("bash", {"command": "echo 42"}), ("bash", {"command": "echo 43"}))
    world, service = await local(Reply("", both, sparse=True), Reply("Both.", sparse=True))
    assert await world.run() == Answered("Both.", included_to=1)
    assert world.shell.commands == ["echo 42", "echo 43"]
    assert service.refused == []
    usage = world.journal.last("turn.finished")["usage"]
    assert usage["input"] > 500
    assert usage["output"] > 0


@pytest.mark.parametrize("fault", ["cut", "server_error", "rate_limit", "bad_gateway"])
async def test_what_passes_is_tried_again(local: Make, fault: Any) -> None:
    world, service = await local(Reply("Half", fault=fault), Reply("Whole."))
    assert await world.run() == Answered("Whole.", included_to=1)
    assert len(service.received) == 2
    assert (world.journal.last("turn.failed")["usage"]["input"] > 0) == (fault == "cut"), (
        "what began is charged"
    )


@pytest.mark.parametrize(
    "reply",
    [
        Reply("", (("bash", {"command": "touch ran"}),), fault="length_in_call"),
        Reply("", (("bash", '{"command": "touch ran", }'),)),
        Reply("", (("bash", '["touch ran"]'),)),
        Reply("", (("bash", {"command": "touch ran"}),), fault="cut"),
    ],
)
async def test_a_broken_call_is_never_run(local: Make, reply: Reply) -> None:
    world, service = await local(reply, Reply("Nothing was run."))
    assert await world.run() == Answered("Nothing was run.", included_to=1)
    assert world.shell.commands == []
    assert service.refused == []


async def test_refused_key_unknown_finish_and_too_long(local: Make) -> None:
    world, _ = await local(Reply(fault="auth"))
    outcome = await world.run()
    assert isinstance(outcome, Failed)
    assert outcome.reason == "model.auth"
    world, _ = await local(Reply("x", finish="gremlins"))
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "model.stopped"
    assert outcome.text == "x\n\n" + outcome.sentence
    world, _ = await local(Reply(fault="too_long"), Reply(fault="too_long"), Reply(fault="too_long"))
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "model.context"


async def test_pictures_are_sent_as_data_urls(local: Make) -> None:
    world, service = await local(Reply("A dot."))
    ref = await world.blobs.put(PNG, "image/png")
    world.inbox.messages = [ada("See?", pictures=(Picture(ref, "image/png"),))]
    assert isinstance(await world.run(), Answered)
    part = service.received[0]["messages"][1]["content"][1]
    assert part["image_url"]["url"].startswith("data:image/png;base64,")


async def test_a_pdf_is_sent_as_a_file_where_it_is_taken(local: Make) -> None:
    world, service = await local(Reply("A contract."), settings=ModelSettings(pdfs=True))
    ref = await world.blobs.put(b"%PDF-1.7 ...", "application/pdf")
    world.inbox.messages = [ada("See?", pictures=(Picture(ref, "application/pdf", "contract.pdf", 12),))]
    assert isinstance(await world.run(), Answered)
    assert service.refused == []
    part = service.received[0]["messages"][1]["content"][1]
    assert part["file"]["filename"] == "contract.pdf"
    assert part["file"]["file_data"].startswith("data:application/pdf;base64,")


class Amount(Arguments):
    text: str
    size: int = Field(default=0, ge=0)


async def produce(arguments: Amount, context: ToolContext) -> ToolResult:
    return ToolResult(arguments.text + "\nword" * (arguments.size // 5))


TOOLS = [Tool("produce", "Text of a size.", Amount, produce, Tier.READ)]
SUMMARY = "Goal: g\nConstraints: c\nProgress: p\nDecisions: d\nNext steps: n\nFiles: f"


def long_work(turns: int, size: int) -> Callable[[Any], Reply]:
    """Has a tool return something of a size so many times, then answers."""
    done = [0]

    def script(body: Any) -> Reply:
        if not body.get("tools"):
            return Reply(SUMMARY)
        done[0] += 1
        return (
            Reply("", (("produce", {"text": str(done[0]), "size": size}),))
            if done[0] <= turns
            else Reply("Done.")
        )

    return script


@pytest.mark.parametrize("dialect", ["llama.cpp", "ollama", "vllm", "lm studio", "openrouter"])
async def test_the_server_tells_how_much_its_model_takes_and_a_long_run_fits(
    local: Make, dialect: Any
) -> None:
    world, service = await local(
        script=long_work(12, 6000),
        dialect=dialect,
        window=8192,
        tools=TOOLS,
        key="" if dialect != "vllm" else "k",
    )
    assert world.model.context_window == 8192
    assert world.model.features.images == (dialect in ("vllm", "openrouter"))
    assert await world.run() == Answered("Done.", included_to=1)
    assert service.overflows == [], "what it is asked fits"
    asked = [body for body in service.received if body.get("tools")]
    assert all(len(str(body["messages"])) // 4 + body["max_tokens"] < 8192 * 1.1 for body in asked)


@pytest.mark.parametrize("dialect", ["", "llama.cpp", "ollama", "vllm", "lm studio", "openrouter"])
async def test_a_window_that_nobody_told_is_learnt_from_the_overflow(local: Make, dialect: Any) -> None:
    """Also from a server whose words nobody has heard before: a long prompt is shortened once."""
    world, service = await local(
        script=long_work(8, 8000),
        dialect=dialect,
        window=8192,
        tools=TOOLS,
        settings=ModelSettings(window=128_000),
    )
    outcome = await world.run()
    assert outcome == Answered("Done.", included_to=1), outcome
    assert service.overflows
    assert world.journal.all("context.checkpoint")
    later = World(model=world.model, shell=world.shell, spec=FREE)
    assert isinstance(await later.run(), Answered), "the conversation is not dead"


async def test_a_refusal_nobody_understands_is_not_repeated_when_the_prompt_is_short(local: Make) -> None:
    world, service = await local(Reply(error=(400, "no such colour")), tools=TOOLS)
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "model.invalid"
    assert "no such colour" in outcome.text
    assert len(service.received) == 1


async def test_a_window_too_small_for_the_agent_is_said_with_what_to_do(local: Make) -> None:
    world, service = await local(Reply("Never."), dialect="llama.cpp", window=2048)
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "model.context"
    assert "takes 2048 tokens" in outcome.text
    assert "-c 32768" in outcome.text
    assert service.received == []


OVERFLOWS = {
    "Anthropic": (400, '{"error":{"message":"prompt is too long: 214315 tokens > 200000 maximum"}}'),
    "OpenAI": (400, '{"error":{"message":"Your input exceeds the context window of this model.","code":"x"}}'),
    "OpenAI's code": (400, '{"error":{"message":"Too much.","code":"context_length_exceeded"}}'),
    "Gemini": (
        400,
        '[{"error":{"code":400,"message":"The input token count (1196265) exceeds the maximum number of tokens '
        'allowed (1048575).","status":"INVALID_ARGUMENT"}}]',
    ),
    "xAI": (
        400,
        '{"code":"x","error":"This model\'s maximum prompt length is 131072 but the request contains 537812 tokens."}',
    ),
    "Groq": (400, '{"error":{"message":"Please reduce the length of the messages or completion."}}'),
    "Bedrock": (400, '{"message":"Input is too long for requested model."}'),
    "Copilot": (400, '{"error":{"message":"prompt token count of 141002 exceeds the limit of 128000","code":"m"}}'),
    "Mistral": (400, '{"object":"error","message":"Prompt contains 40000 tokens, too large for model with 32768 '
                     'maximum context length"}'),
    "llama.cpp": (
        400,
        '{"error":{"code":400,"message":"request (5023 tokens) exceeds the available context size (2048 tokens), try '
        'increasing it","type":"exceed_context_size_error","n_prompt_tokens":5023,"n_ctx":2048}}',
    ),
    "LM Studio": (400, '{"error":"Trying to keep the first 4113 tokens when context the overflows. However, the model '
                       'is loaded with context length of only 4096 tokens, which is not enough"}'),
    "Ollama": (400, '{"error":"prompt too long; exceeded max context length by 72 tokens"}'),
    "vLLM": (400, '{"detail":"The decoder prompt (length 9000) is longer than the maximum model length of 8192."}'),
    "llama.cpp while it answers": (500, '{"error":{"code":500,"message":"Context size has been exceeded."}}'),
    "SGLang": (400, '{"message":"Input length (40000 tokens) exceeds the maximum allowed length (32768 tokens)."}'),
    "TGI": (422, '{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"}'),
    "OpenRouter": (400, '{"error":{"message":"This endpoint\'s maximum context length is 8192 tokens. However, you '
                        'requested about 9000 tokens."}}'),
    "vLLM's other words": (400, '{"message":"You passed 9000 input tokens. However, the model\'s context length is '
                                'only 8192 tokens"}'),
    "SGLang's other words": (400, '{"message":"The input (9000 tokens) is longer than the model\'s context length '
                                  '(8192 tokens)."}'),
    "an older llama.cpp": (400, '{"error":{"message":"the request exceeds the available context size."}}'),
    "an older LM Studio": (400, '{"error":"The number of tokens to keep from the initial prompt is greater than the '
                                'context length."}'),
    "MiniMax": (400, '{"error":{"message":"invalid params, context window exceeds limit (2013)"}}'),
    "Kimi": (400, '{"error":{"message":"Invalid request: Your request exceeded model token limit: 8192"}}'),
    "Fireworks": (400, '{"error":{"message":"The number of tokens in request more than max tokens allowed"}}'),
    "Qwen": (400, '{"error":{"message":"Range of input length should be [1, 30720]"}}'),
    "Cohere": (400, '{"message":"too many tokens: the total cannot exceed 4081"}'),
    "a gateway": (400, "request entity too large"),
    "a proxy": (413, "Request Entity Too Large"),
}  # fmt: skip
WINDOWS = {
    "Anthropic": 200_000,
    "Gemini": 1_048_575,
    "xAI": 131_072,
    "Copilot": 128_000,
    "llama.cpp": 2048,
    "vLLM": 8192,
    "OpenRouter": 8192,
    "vLLM's other words": 8192,
    "SGLang's other words": 8192,
}


def test_compatible_servers_need_no_package_of_their_own() -> None:
    """Neither the image nor `make run` installs one; what is developed with it must not be needed to serve."""
    lock = Path(__file__).parents[2] / "requirements.lock"
    assert not re.search(r"^openai\b", lock.read_text(), re.MULTILINE)
    assert "openai" not in {extra.lower() for extra in metadata("gofer").get_all("Provides-Extra") or ()}
    without = "import sys; sys.modules['openai'] = None; "
    use = (
        "from gofer.agent.models.catalogue import Catalogue, Provider; import httpx2; "
        "print(Catalogue({'local': Provider(base_url='http://127.0.0.1:9/v1')}).model('local/tiny').name)"
    )
    ended = subprocess.run([sys.executable, "-c", without + use], capture_output=True, text=True, check=False)
    assert ended.stdout == "local/tiny\n", ended.stderr


@pytest.mark.parametrize("who", OVERFLOWS)
def test_an_overflow_is_recognised_in_whatever_words(who: str) -> None:
    status, body = OVERFLOWS[who]
    error = refusal(status, body_of(body.encode()))
    assert error.kind == "context"
    assert error.window == WINDOWS.get(who, error.window)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (
            429,
            '{"error":{"message":"Rate limit: too many tokens per minute"}}',
            "retryable",
            "too many tokens",
        ),
        (400, "ThrottlingException: Too many tokens, please wait", "invalid", "please wait"),
        (503, "no healthy upstream", "retryable", "no healthy upstream"),
        (400, '{"error":"model does not support tools"}', "invalid", "does not support tools"),
        (
            422,
            '{"detail":[{"loc":["body","tools"],"msg":"Field required"}]}',
            "invalid",
            "body.tools: Field required",
        ),
        (404, "404 page not found", "invalid", "page not found"),
        (500, '{"error":{"message":"image input is not supported - hint: mmproj"}}', "image", "mmproj"),
        (404, '{"error":{"message":"No endpoints found that support image input"}}', "image", "image input"),
        (403, '{"error":{"message":"Your input was flagged"}}', "invalid", "flagged"),
        (403, '{"error":{"message":"Forbidden"}}', "auth", "Forbidden"),
        (402, '{"error":{"message":"Insufficient credits"}}', "auth", "Insufficient"),
        (429, '{"error":{"message":"You exceeded your quota","code":"insufficient_quota"}}', "auth", "quota"),
        (
            400,
            '{"error":{"message":"Provider returned error","metadata":{"raw":"bad tool"}}}',
            "invalid",
            "bad tool",
        ),
        (400, "", "invalid", "no reason given"),
        (502, "<html>Bad gateway</html>", "retryable", "a web page"),
        (401, "Bearer abcdef123456 is wrong", "auth", "[masked]"),
    ],
)
def test_other_refusals_keep_their_kind_and_their_words(
    status: int, body: str, kind: str, words: str
) -> None:
    error = refusal(status, body_of(body.encode()))
    assert (error.kind, words in str(error)) == (kind, True), str(error)


@pytest.mark.parametrize("refuses", [("max_tokens",), ("stream_options",), ("reasoning_effort", "strict")])
async def test_what_a_server_does_not_know_is_called_otherwise_or_left_out(local: Make, refuses: Any) -> None:
    script = lambda body: Reply("" if len(body["messages"]) < 4 else "Fine.", _one_call(body))  # noqa: E731
    strict = [replace(tool, strict=True) for tool in TOOLS]
    world, service = await local(script=script, refuses=refuses, effort="high", tools=strict)
    assert await world.run() == Answered("Fine.", included_to=1)
    first = service.received[0]
    assert ("max_completion_tokens" in first) == (refuses == ("max_tokens",))
    assert ("reasoning_effort" in first) == (refuses != ("reasoning_effort", "strict"))
    assert len(service.received) == 2, "what it has refused once it is not given again"
    functions = {tool["function"]["name"]: tool["function"] for tool in first["tools"]}
    assert all(("strict" in functions[tool.name]) == ("strict" not in refuses) for tool in strict)
    assert service.refused == [], "a strict schema is as strict as OpenAI wants it"


def _one_call(body: Any) -> tuple[tuple[str, Any], ...]:
    return () if len(body["messages"]) >= 4 else (("produce", {"text": "a", "size": 10}),)


async def test_a_server_that_is_silent_is_waited_for_as_long_as_its_model_says(local: Make) -> None:
    world, service = await local(
        Reply(fault="silent"), Reply("Awake."), settings=ModelSettings(first_token_timeout=0.3)
    )
    assert await world.run() == Answered("Awake.", included_to=1), "signs of life are no words"
    assert "first_token_timeout" in world.journal.last("turn.failed")["detail"]
    assert len(service.received) == 2


async def test_that_a_model_takes_long_to_begin_is_told(local: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gofer.agent.turn.SLOW_AFTER", 0.05)
    world, _ = await local(
        Reply(fault="silent"), Reply("Hi."), settings=ModelSettings(first_token_timeout=0.4)
    )
    assert await world.run() == Answered("Hi.", included_to=1)
    kinds = world.journal.kinds
    assert kinds.count("turn.slow") == 1
    assert kinds.index("turn.started") < kinds.index("turn.slow") < kinds.index("turn.finished")
    assert "turn.slow" in {kind for kind, _ in world.heard}, "whoever watches hears of it"


async def test_thinking_is_shown_as_such_and_goes_back_by_the_name_it_came_by(local: Make) -> None:
    call = (("produce", {"text": "a", "size": 10}),)
    world, service = await local(
        Reply("", call, reasoning="Let me see."),
        Reply("<think>Hm, hm.</think>\n\nIt is a."),
        tools=TOOLS,
    )
    assert await world.run() == Answered("It is a.", included_to=1)
    live = [data["text"] for kind, data in world.heard if kind == "thinking.delta"]
    assert "".join(live).replace(" ", "") == "Letmesee.Hm,hm."
    assert service.received[1]["messages"][2]["reasoning_content"] == "Let me see."


async def test_calls_by_one_number_are_told_apart(local: Make) -> None:
    both = (("bash", {"command": "echo 42"}), ("bash", {"command": "echo 43"}))
    world, _ = await local(Reply("", both, same_index=True), Reply("Both."))
    assert await world.run() == Answered("Both.", included_to=1)
    assert world.shell.commands == ["echo 42", "echo 43"]


async def test_an_answer_in_one_piece_and_an_error_in_mid_stream(local: Make) -> None:
    world, _ = await local(Reply("Whole.", whole=True))
    assert await world.run() == Answered("Whole.", included_to=1)
    overloaded = {"code": 502, "message": "Provider is down"}
    world, _ = await local(Reply("Half", error_midstream=overloaded), Reply("All."))
    assert await world.run() == Answered("All.", included_to=1)
    assert "Provider is down" in world.journal.last("turn.failed")["detail"]
    full = {"code": 400, "type": "exceed_context_size_error", "message": "the context is full", "n_ctx": 9000}
    world, _ = await local(
        Reply("", (("ls", {}),)), Reply("Half", error_midstream=full), Reply(SUMMARY), Reply("All.")
    )
    assert await world.run() == Answered("All.", included_to=1)


async def test_an_address_where_nobody_is_and_one_that_is_none(local: Make) -> None:
    for base_url, kind in (("http://127.0.0.1:9/v1", "retryable"), ("ftp://127.0.0.1/v1", "invalid")):
        catalogue = Catalogue({"local": Provider(base_url=base_url)})
        model = await catalogue.ready("local/llama")
        assert isinstance(model, ResilientModel)
        model.sleep = _no_sleep
        with pytest.raises(ModelError) as raised:
            _ = [event async for event in model.stream(QUESTION)]
        assert raised.value.kind == kind


MODELS = """
[providers.ollama]
base_url = "http://127.0.0.1:11434/v1/"
first_token_timeout = 900
models."llama3:8b" = {window = 8192, output_tokens = 1024, images = true}
models."*" = {price = {input = 0, output = 0}}

[providers.router]
base_url = "https://openrouter.ai/api/v1"
key = "router_key"

[providers.openai.models."gpt-5"]
window = 400000
price = {input = 1.25, output = 10}
"""


async def test_providers_of_the_users_own_have_names_keys_windows_and_prices(world_of_store: Any) -> None:
    keys, folder, put = world_of_store
    (folder / "models.toml").write_text(MODELS)
    catalogue = await keys.catalogue(FIRST_WORKSPACE)
    model = catalogue.model("ollama/llama3:8b")
    assert (model.name, model.context_window) == ("ollama/llama3:8b", 8192)
    assert (model.features.images, model.features.output_tokens) == (True, 1024)
    prices = load_prices(None, catalogue.prices())
    assert prices.of("ollama/anything").output == 0  # type: ignore[union-attr]
    assert prices.of("openai/gpt-5").output == 10  # type: ignore[union-attr]
    assert catalogue.providers["ollama"].settings("other").first_token_timeout == 900
    with pytest.raises(ConfigError, match="gofer secrets put router_key"):
        catalogue.model("router/x")
    await put("router_key", "sk-or-1")
    catalogue = await keys.catalogue(FIRST_WORKSPACE)
    assert catalogue.model("router/x").name == "router/x"
    assert catalogue.key_name("router/x") == "router_key"
    assert load_agent_text(folder, 'model = "router/x"').model == "router/x"
    with pytest.raises(AgentFileError, match="there is no provider 'ruoter'"):
        load_agent_text(folder, 'model = "ruoter/x"')
    (folder / "models.toml").write_text("[providers.ollama]\nbase_ulr = 3\n")
    broken = await keys.catalogue(FIRST_WORKSPACE)
    assert "providers.ollama.base_ulr" in broken.problem
    assert broken.model("router/x"), "the last good version is in force"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("providers = 3", "providers"),
        ("[providers.x]", "providers.x.base_url is required"),
        ('[providers.x]\nbase_url = "localhost:11434"', "should be an address"),
        ('[providers.x]\nbase_url = "http://x/v1"\nmodels.m = {window = 5}', "providers.x.models.m.window"),
        ('[providers.offline]\nbase_url = "http://x/v1"', "built in"),
        ("\n[providers\nx=1", "line 2"),
    ],
)
def test_a_file_of_providers_that_makes_no_sense_says_where(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "models.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(why)):
        load_providers(tmp_path / "models.toml")


def load_agent_text(folder: Path, text: str) -> AgentSpec:
    return put_agent(folder / "agents", "other", text)


@pytest.fixture
async def world_of_store(world: StoreWorld, tmp_path: Path) -> AsyncIterator[Any]:
    async with httpx2.AsyncClient() as http:
        settings = Settings(data_dir=tmp_path, openai_key="k")
        keys = ModelKeys(settings=settings, database=world.database, vault=world.vault, http=http)

        async def put(name: str, value: str) -> None:
            await world.database.write(
                partial(
                    put_secret, vault=world.vault, workspace_id=FIRST_WORKSPACE, owner="", name=name,
                    value=Secret(value),
                )
            )  # fmt: skip

        yield keys, tmp_path, put
