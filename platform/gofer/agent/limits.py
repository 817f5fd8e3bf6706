"""The control plane: every model call is paid for before it is made, and every run ends.

All figures come from the folded journal and from the platform's ledger, so a restart forgets nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from gofer.agent.model import Usage
from gofer.agent.prices import MICROS, Price, Prices
from gofer.agent.state import State

Scope = Literal["day", "conversation", "background", "memory", "goal"]
WRAP_UP_TOKENS = 3000
"""Models that always think need room for that before the first word."""
MIN_TOKENS = 512


NARROWED = ("steps", "active_minutes", "tokens", "job_dollars")
"""The settings that an integration may lower for a kind of request."""


class LimitSettings(BaseModel):
    """What one job may use. The defaults are on until the user says otherwise; 0 dollars means no cap."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = Field(default=100, ge=1, le=10_000)
    active_minutes: float = Field(default=30, gt=0)
    """Working time, summed over restarts; waiting for a person does not count."""
    tokens: int = Field(default=10_000_000, ge=1000)
    job_dollars: float = Field(default=1.0, ge=0)
    background_dollars: float = Field(default=0.25, ge=0)
    """For a job nobody waits for; never more than `job_dollars`."""
    background_day_dollars: float = Field(default=2.5, ge=0)
    """For all such jobs of this agent in one day, so that they leave the rest of it to people."""
    day_dollars: float = Field(default=10.0, ge=0)
    """For this agent in one day of the workspace's time zone."""
    memory_day_dollars: float = Field(default=0.25, ge=0)
    """For tidying what this agent remembers, in one day; with 0 no model is asked for that."""
    conversation_dollars: float = Field(default=0, ge=0)
    output_tokens: int = Field(default=16_000, ge=MIN_TOKENS)
    """The most a single answer may have."""
    warn_at: float = Field(default=0.8, gt=0, lt=1)

    def narrowed(self, most: Mapping[str, float]) -> LimitSettings:
        """These settings, lowered where the given ones are lower."""
        own = {name: getattr(self, name) for name in NARROWED if name in most}
        # 0 dollars means no cap, so any figure is lower.
        values = {name: min(value, most[name]) if value else most[name] for name, value in own.items()}
        return type(self).model_validate({**self.model_dump(), **values})

    def job_cap(self, *, background: bool) -> int:
        """What a job may cost, in millionths of a dollar; 0 for no cap."""
        wanted = (self.job_dollars, self.background_dollars if background else 0)
        return micros(min((dollars for dollars in wanted if dollars), default=0))

    def caps(self, *, background: bool) -> dict[Scope, int]:
        """Caps that span jobs, in millionths of a dollar."""
        wanted: dict[Scope, float] = {"day": self.day_dollars, "conversation": self.conversation_dollars}
        if background:
            wanted["background"] = self.background_day_dollars
        return {scope: micros(dollars) for scope, dollars in wanted.items() if dollars}


def micros(dollars: float) -> int:
    return round(dollars * MICROS)


@dataclass(frozen=True, slots=True)
class Short:
    """A cap that leaves too little."""

    scope: Scope
    spent: int
    """What is spent of it, with the money that is set aside."""


class Ledger(Protocol):
    """Spending of several jobs. The platform stores it by agent and day and by conversation."""

    async def reserve(
        self, key: str, amount: int, caps: Mapping[Scope, int], *, background: bool = False
    ) -> Short | None:
        """Set money aside for a call of this job, in one transaction with the check of all caps.

        Returns the first cap that it would break, and then sets nothing aside. The same key replaces its earlier
        reservation. Reservations count as spent until they are settled.
        """
        ...

    async def settle(self, key: str, amount: int, model: str = "") -> None:
        """What the call really cost."""
        ...


@dataclass(frozen=True, slots=True)
class Halt:
    """No further model call may be made."""

    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Note:
    """Words for the model, given once."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Go:
    """The call may be made."""

    max_tokens: int
    reserve: int
    notes: tuple[Note, ...] = ()
    wrap_up: Halt | None = None
    """The limit that makes this the last call."""
    warning: Note | None = None
    """For the user."""


@dataclass(eq=False)
class JobLimits:
    """The limits of one job."""

    settings: LimitSettings
    prices: Prices
    models: tuple[str, ...]
    ledger: Ledger
    window: Callable[[], int] = lambda: 1_000_000
    """The model's window in tokens, as far as it is known by now."""
    fixed: int = 0
    """Tokens that are in every request."""

    def check_start(self, state: State) -> Halt | None:
        """Why the run cannot begin: the model's window is too small for any request, or there is a cap on cost and no
        known price."""
        if self.fixed + 2 * MIN_TOKENS > self.window():
            return Halt(
                "model.context",
                f"{self.models[0]} takes {self.window()} tokens, and my instructions and tools alone have about "
                f"{self.fixed}. Serve it with a larger context (llama.cpp: -c 32768, Ollama: "
                "OLLAMA_CONTEXT_LENGTH=32768, vLLM: --max-model-len), or give the agent fewer tools.",
            )
        capped = self._job_cap(state) or self.settings.caps(background=state.background)
        unknown = [model for model in self.models if self.prices.of(model) is None]
        if not capped or not unknown:
            return None
        return Halt(
            "price.unknown",
            f"I do not know what {unknown[0]} costs, so its budget could not be kept. Add its price to "
            "prices.toml in the data directory, or set job_dollars and day_dollars of the agent to 0.",
        )

    def cost(self, model: str, usage: Usage) -> int:
        """What a call has cost."""
        price = self.prices.of(model)
        return price.cost(usage) if price else 0

    async def before_turn(
        self, state: State, size: int, *, awaited: bool = False, ending: Halt | None = None
    ) -> Go | Halt:
        """Whether the next call, with this many input tokens, may be made, and how long its answer may be.

        With `awaited` a person has joined in; the journal learns that when the turn starts. With `ending` there is a
        reason to stop, and this is the last call.
        """
        state = dataclasses.replace(state, background=state.background and not awaited)
        price = self._dearest()
        over = ending or self._over(state)
        tokens = min(self._longest(size), self._affordable(state, size, price))
        if over is None and tokens >= MIN_TOKENS and not state.wrapping_up:
            # Near the end of a cap that spans jobs, a shorter answer may still do.
            for most in (tokens, min(tokens, WRAP_UP_TOKENS)):
                amount, kept_back = price.worst(size, most), self._last_call(size, price)
                short = await self._reserve(state, _next_turn(state), amount, kept_back)
                if short is None:
                    return self._go(state, most, amount)
                over = _scope_halt(short, amount + kept_back, self.settings)
        begun = Halt(**state.wrapping_up) if state.wrapping_up else None
        return await self._wrap_up(state, size, price, begun or over or self._job_halt(state, size, price))

    async def settle(self, state: State, cost: int, model: str) -> None:
        """Tell the ledger what the call that just ended has cost, failed tries included."""
        await self.ledger.settle(f"turn:{state.calls}", state.tries_cost + cost, model)

    async def settle_summary(self, state: State, cost: int, model: str) -> None:
        """Tell the ledger what a summary has cost."""
        await self.ledger.settle(f"summary:{state.compactions + 1}", cost, model)

    async def afford(self, state: State, input_tokens: int, output_tokens: int) -> bool:
        """Whether there is money for a summary beside a last answer. If so, it is set aside."""
        price = self._dearest()
        amount = price.worst(input_tokens, output_tokens)
        after = price.worst(input_tokens, WRAP_UP_TOKENS)
        cap = self._job_cap(state)
        if cap and state.spent + state.reserved + amount + after > cap:
            return False
        return await self._reserve(state, f"summary:{state.compactions + 1}", amount, after) is None

    def money_left(self, state: State) -> int | None:
        """What the job may still cost; None for no bound."""
        cap = self._job_cap(state)
        return max(0, cap - state.spent - state.reserved) if cap else None

    def time_left(self, state: State) -> float:
        """Seconds of active time; what a tool may use at most."""
        return max(0.0, self.settings.active_minutes * 60 - state.active_ms / 1000)

    def _job_cap(self, state: State) -> int:
        return self.settings.job_cap(background=state.background)

    def _dearest(self) -> Price:
        known = [price for model in self.models if (price := self.prices.of(model))]
        return max(known, key=lambda price: price.output, default=Price(input=0, output=0))  # type: ignore[arg-type]

    def _over(self, state: State) -> Halt | None:
        settings = self.settings
        if state.turns >= settings.steps:
            return Halt("limit.steps", f"I reached the limit of {settings.steps} steps for one job.")
        if state.active_ms >= settings.active_minutes * 60_000:
            return Halt(
                "limit.time", f"I reached the limit of {settings.active_minutes:g} minutes for one job."
            )
        if state.tokens >= settings.tokens:
            return Halt("limit.tokens", f"I reached the limit of {settings.tokens} tokens for one job.")
        return None

    def _job_halt(self, state: State, size: int, price: Price) -> Halt:
        kind, name = ("background job", "background_dollars") if state.background else ("job", "job_dollars")
        cap = self._job_cap(state)
        needed = price.worst(size, MIN_TOKENS) + self._last_call(size, price)
        why = _too_little(state.spent + state.reserved, needed)
        budget = f"The budget of {_dollars(cap)} for one {kind} is used up"
        return Halt("budget.job", f"{budget}: {why} Ask for a smaller step, or raise {name} of the agent.")

    def _affordable(self, state: State, size: int, price: Price) -> int:
        """Output tokens that still leave enough for a wrap-up answer after this call."""
        cap = self._job_cap(state)
        if not cap or not price.output:
            return self.settings.output_tokens
        left = cap - state.spent - state.reserved
        left -= price.worst(size, 0) + self._last_call(size, price)
        return int(left / price.output)

    def _longest(self, size: int) -> int:
        """Tokens of an answer that fit beside a request of this size."""
        return max(MIN_TOKENS, min(self.settings.output_tokens, self.window() - size))

    def _last_call(self, size: int, price: Price) -> int:
        """What a last answer after this call can cost. It leaves out the results of tools: without money for them, they
        are cleared."""
        return price.worst(size + self.settings.output_tokens, WRAP_UP_TOKENS)

    async def _reserve(self, state: State, key: str, amount: int, kept_back: int = 0) -> Short | None:
        """Set money aside for a call, if every cap leaves that much beside it."""
        background = state.background
        caps = {scope: cap - kept_back for scope, cap in self.settings.caps(background=background).items()}
        return await self.ledger.reserve(key, amount, caps, background=background)

    async def _wrap_up(self, state: State, size: int, price: Price, why: Halt) -> Go | Halt:
        most = min(WRAP_UP_TOKENS, self._longest(size))
        amount = price.worst(size, most)
        cap = self._job_cap(state)
        if cap and state.spent + state.reserved + amount > cap:
            return why
        if await self._reserve(state, _next_turn(state), amount) is not None:
            return why
        text = f"{why.sentence} This is your last turn: call no tool. Say what is done, what is not, and what is next."
        return Go(most, amount, (Note(why.code, text),), wrap_up=why)

    def _go(self, state: State, tokens: int, amount: int) -> Go:
        used, what = self._used(state)
        notes: tuple[Note, ...] = ()
        warning = None
        if used >= 0.9 and "limit.near" not in state.given:
            notes = (Note("limit.near", f"About a tenth of your {what} is left. Come to an end."),)
        if used >= self.settings.warn_at and "warned" not in state.given:
            warning = Note(
                "warned", f"This job has used more than {self.settings.warn_at:.0%} of its {what}."
            )
        return Go(tokens, amount, notes, warning=warning)

    def _used(self, state: State) -> tuple[float, str]:
        settings = self.settings
        parts = [
            (state.turns / settings.steps, "steps"),
            (state.active_ms / (settings.active_minutes * 60_000), "working time"),
            (state.tokens / settings.tokens, "tokens"),
        ]
        if cap := self._job_cap(state):
            parts.append(((state.spent + state.reserved) / cap, "budget"))
        return max(parts)


def _next_turn(state: State) -> str:
    """The ledger's key for the next model call."""
    return f"turn:{state.calls + 1}"


def _scope_halt(short: Short, needed: int, settings: LimitSettings) -> Halt:
    why = _too_little(short.spent, needed)
    match short.scope:
        case "background":
            a_day = f"${settings.background_day_dollars:.2f} a day"
            budget = f"This agent's budget of {a_day} for work that nobody waits for"
            then = "It begins anew tomorrow; background_day_dollars of the agent raises it."
        case "day":
            budget = f"This agent's budget of ${settings.day_dollars:.2f} for today"
            then = "It begins anew tomorrow; day_dollars of the agent raises it."
        case "memory":
            budget = f"This agent's budget of ${settings.memory_day_dollars:.2f} a day for its memories"
            then = "It begins anew tomorrow; memory_day_dollars of the agent raises it."
        case "goal":
            budget = "The budget of this goal"
            then = "Whoever wants it can give it more."
        case "conversation":
            budget = f"The budget of ${settings.conversation_dollars:.2f} for this conversation"
            then = "Go on in another one, or raise conversation_dollars of the agent."
    return Halt(f"budget.{short.scope}", f"{budget} is used up: {why} {then}")


def _too_little(spent: int, needed: int) -> str:
    """The sentence about a budget that ends a run before all of it is spent."""
    return (
        f"{_dollars(spent)} is spent or set aside, and the next call, with room for a last answer, "
        f"could cost up to {_dollars(needed)}."
    )


def _dollars(amount: int) -> str:
    dollars = amount / MICROS
    return f"${dollars:.2f}" if dollars >= 0.01 or not dollars else f"${dollars:.4f}"
