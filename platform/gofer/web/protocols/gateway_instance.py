"""The instance over OpenClaw's gateway protocol: how it is doing, its agents and models."""

from __future__ import annotations

import time
from typing import Any

from gofer import __version__
from gofer.app import Platform
from gofer.jobs.maintenance import depth
from gofer.web.protocols.gateway_client import GatewayCall, GatewayClient, Method, NoParams
from gofer.web.protocols.gateway_frames import READ, Frame, Params, Text, invalid
from gofer.web.queries.agents import list_agents

MAIN_KEY = "main"
"""What a session is called that has no other name."""


class IdentityParams(Params):
    """An agent by its name."""

    agentId: Text | None = None


def uptime_ms(platform: Platform) -> int:
    """How long the process has run."""
    return max(0, int((time.time() - platform.started_at) * 1000))


async def health(call: GatewayCall) -> Frame:
    """Whether the server works: it has just read the store to find out who asks."""
    return await call.client.announcer.health(call.client)


async def presence(call: GatewayCall) -> list[Frame]:
    """Who is connected, as far as this client may know."""
    return call.client.announcer.present(call.client)


async def status(call: GatewayCall) -> Frame:
    """How much is to be done."""
    platform = call.client.platform
    waiting = await platform.database.read(depth)
    return {
        "runtimeVersion": __version__,
        "uptimeMs": uptime_ms(platform),
        "running": platform.worker.running if platform.worker else 0,
        "jobs": waiting,
    }


async def agent_list(call: GatewayCall) -> Frame:
    """The agents that this client may talk to."""
    found = await listed_agents(call.client)
    default = next((name for name in found), "")
    return {
        "defaultId": default or "none",
        "mainKey": MAIN_KEY,
        "scope": "per-sender",
        "agents": [_agent(each) for each in found.values()],
    }


async def listed_agents(client: GatewayClient) -> dict[str, Frame]:
    """The agents that a client may talk to, with what is known of them."""
    known = await list_agents(client.platform)
    return {name: known[name] for name in await client.agents() if name in known}


def _agent(agent: Frame) -> Frame:
    name, model = agent["name"], agent["model"]
    more = {"model": {"primary": model}} if model else {}
    return {"id": name, "name": name, "identity": {"name": name}, **more}


async def agent_identity(call: GatewayCall) -> Frame:
    """Who an agent is."""
    found = await call.client.agents()
    name = call.params.agentId or (found[0] if found else "")
    if name not in found:
        raise invalid(f"unknown agent id: {name[:40]}")
    return {"agentId": name, "name": name}


async def model_list(call: GatewayCall) -> Frame:
    """The models that agents use."""
    names = dict.fromkeys(
        str(each["model"] or "auto") for each in (await listed_agents(call.client)).values()
    )
    return {"models": [_model(name) for name in names]}


def _model(name: str) -> dict[str, Any]:
    provider, found, _ = name.partition("/")
    return {"id": name, "name": name, "provider": provider if found else "gofer"}


METHODS: dict[str, Method] = {
    "health": Method(health, NoParams, READ),
    "system-presence": Method(presence, NoParams, READ),
    "status": Method(status, NoParams, READ),
    "agents.list": Method(agent_list, NoParams, READ),
    "agent.identity.get": Method(agent_identity, IdentityParams, READ),
    "models.list": Method(model_list, IdentityParams, READ),
}
