"""What the page can do: keep a model key, connect a service, and test either."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from gofer.connecting import add_connection, invite, remove_connection
from gofer.doctor import Finding, ask_compatible, ask_model
from gofer.doctor.model import KEY_FIXES
from gofer.errors import Malformed
from gofer.health import health_of, set_up
from gofer.integration import Health
from gofer.jobs.signals import JOBS
from gofer.platform import Platform
from gofer.store.open import FIRST_WORKSPACE
from gofer.vault.secret import Secret
from gofer.vault.stored import put_secret

LONGEST = 20_000
COMPATIBLE = (
    "Kept, encrypted; not in use yet: it is for agents that name their model. On the page Agents, give one a line such "
    'as `model = "openai/gpt-5"`. `GOFER_OPENAI_BASE_URL` is for a server other than OpenAI\'s.'
)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a step, for the page to show at it."""

    step: str
    ok: bool
    line: str
    fix: str = ""
    invitation: str = ""


def filled(form: dict[str, str], name: str, what: str) -> str:
    """A field's value; raises Malformed when nothing usable is in it."""
    value = form.get(name, "").strip()
    if not value or len(value) > LONGEST or "\x00" in value:
        raise Malformed(f"Give {what}.")
    return value


async def keep_key(platform: Platform, form: dict[str, str]) -> Result:
    """Seal a model key into the vault; with consent it is tried first, and one that does not work is not kept."""
    name = "openai_key" if form.get("provider") == "openai" else "anthropic_key"
    value = filled(form, "key", "the key")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise Malformed("That is no key: it has spaces or characters that no key has.")
    tried = await _tried(platform, name, value) if "test" in form else None
    if tried is not None and tried.severity != "ok":
        # Only a provider that refuses the key says anything about it.
        fix = "Check the key" if tried.fix in KEY_FIXES else tried.fix.rstrip(".")
        return Result("model", False, f"Not kept: {tried.line}", f"{fix}; or keep the key without the test.")
    await platform.database.write(
        partial(
            put_secret,
            vault=platform.vault,
            workspace_id=FIRST_WORKSPACE,
            owner="",
            name=name,
            value=Secret(value),
        )
    )
    await platform.secrets_changed()
    word = tried.line if tried is not None else "It was not tested."
    if name != "anthropic_key":
        return Result("model", True, f"{COMPATIBLE} {word}")
    return Result("model", True, f"Kept, encrypted, and in use from the next message on. {word}")


async def _tried(platform: Platform, name: str, key: str) -> Finding:
    """Anthropic's model is asked one word; a compatible server, of which no model is known yet, for its list."""
    return await (
        ask_model(platform, {name: key}) if name == "anthropic_key" else ask_compatible(platform, key)
    )


async def connect_telegram(platform: Platform, form: dict[str, str], by: str) -> Result:
    """A bot by its token."""
    token = filled(form, "token", "the bot's token")
    return await _connect(platform, "telegram", {}, {"token": Secret(token)}, by)


async def connect_github(platform: Platform, form: dict[str, str], by: str) -> Result:
    """An App by its id and key, or an account by a token."""
    if form.get("token", "").strip():
        return await _connect(
            platform, "github", {}, {"token": Secret(filled(form, "token", "the token"))}, by
        )
    number = filled(form, "app_id", "the App's id, or a token")
    if not (number.isascii() and number.isdigit()):
        raise Malformed("The App's id is a number; GitHub shows it in the App's settings.")
    given = {"private_key": Secret(filled(form, "private_key", "the App's private key"))}
    if form.get("webhook_secret", "").strip():
        given["webhook_secret"] = Secret(form["webhook_secret"].strip())
    return await _connect(platform, "github", {"app_id": int(number)}, given, by)


async def _connect(
    platform: Platform, name: str, settings: dict[str, Any], secrets: dict[str, Secret], by: str
) -> Result:
    """Make a connection and prepare its service; one that cannot be prepared leaves nothing behind."""
    connection_id = await platform.database.write(
        partial(
            add_connection,
            vault=platform.vault,
            workspace_id=FIRST_WORKSPACE,
            integration=platform.registry.get(name),
            name="",
            settings=settings,
            secrets_given=secrets,
            by=by,
        )
    )
    await platform.secrets_changed()
    health = await set_up(platform, connection_id)
    if not health.ok:
        await platform.database.write(partial(remove_connection, connection_id=connection_id, by=by))
        await platform.secrets_changed()
        # What a health line advises may name the connection, which is gone.
        return Result(
            name, False, f"Not connected: {health.line}", "" if connection_id in health.fix else health.fix
        )
    await platform.database.write(platform.start_inflow)
    platform.signals.wake(JOBS)
    words = await invite(platform.database, platform.accounts, connection_id)
    return Result(name, True, health.line, invitation=words)


async def test_connection(platform: Platform, step: str, connection_id: str) -> Result:
    """Ask the service how the connection is doing."""
    return _result(step, await health_of(platform, connection_id))


def _result(step: str, health: Health) -> Result:
    return Result(step, health.ok, health.line, health.fix)
