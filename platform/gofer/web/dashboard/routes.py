"""Every page in one list. A route's name is what the audit log calls the change."""

from __future__ import annotations

from starlette.routing import Route

from gofer.app import MCP_CALLBACK
from gofer.web.dashboard import (
    agents,
    audit,
    confirm,
    connections,
    conversations,
    costs,
    goals,
    inbox,
    instance,
    members,
    memories,
    overview,
    questions,
    run,
    runs,
    runtimes,
    schedules,
    secrets,
    shells,
    sign_ups,
)

MAX_FORM = 2 * 1024 * 1024

_READ = {
    "/": overview.show,
    "/runs": runs.index,
    "/runs/new": runs.announce,
    "/runs/{id:int}": run.show,
    "/runs/{id:int}/events": run.raw,
    "/conversations": conversations.index,
    "/conversations/{id}": conversations.show,
    "/conversations/{id}/messages/{seq:int}": conversations.whole,
    "/inbox": inbox.index,
    "/inbox/simulate": inbox.simulation,
    "/inbox/{id:int}": inbox.show,
    "/goals": goals.index,
    "/goals/{id}": goals.show,
    "/shells": shells.index,
    "/shells/{conversation}/{agent}": shells.show,
    "/shells/{conversation}/{agent}/inside": shells.inside,
    "/runtimes": runtimes.index,
    "/runtimes/{name}": runtimes.show,
    "/memory": memories.index,
    "/memory/export": memories.export,
    "/memory/{id}": memories.show,
    "/schedules": schedules.index,
    "/connections": connections.index,
    "/connections/new/{integration}": connections.new,
    "/connections/sign-up/{integration}": sign_ups.ask,
    "/connections/{id}": connections.show,
    "/agents": agents.index,
    "/agents/{name}": agents.show,
    "/secrets": secrets.index,
    "/members": members.index,
    "/confirm": confirm.show,
    "/costs": costs.show,
    "/levels": instance.levels,
    "/audit": audit.index,
    "/logs": instance.logs,
    "/versions": instance.versions,
    "/versions/{build}": instance.release,
    "/doctor": instance.doctor,
    "/settings": instance.settings,
}

_DO = {
    ("/runs", "jobs.steer"): runs.steer_many,
    ("/runs/{id:int}/{verb}", "jobs.steer"): runs.steer_one,
    ("/questions/{id}/answer", "questions.answer"): questions.answer_one,
    ("/conversations/{id}/rules/{memory}/{verb}", "conversations.change_rule"): conversations.change_rule,
    ("/conversations/{id}/purge", "conversations.purge"): conversations.purge,
    ("/inbox/simulate", "deliveries.simulate"): inbox.simulate,
    ("/inbox/{id:int}/redeliver", "deliveries.redeliver"): inbox.redeliver,
    ("/goals/{id}/{verb}", "goals.steer"): goals.change,
    ("/shells/{conversation}/{agent}/close", "shells.close"): shells.close,
    ("/runtimes/{name}/{verb}", "runtimes.change"): runtimes.change,
    ("/memory", "memories.add"): memories.add,
    ("/memory/import", "memories.import"): memories.take_in,
    ("/memory/reindex", "memories.reindex"): memories.reindex,
    ("/memory/{id}/{verb}", "memories.change"): memories.change,
    ("/schedules", "schedules.add"): schedules.add,
    ("/schedules/{id}/run", "schedules.run"): schedules.run_now,
    ("/schedules/{id}/switch", "schedules.switch"): schedules.switch,
    ("/schedules/{id}/remove", "schedules.remove"): schedules.remove,
    ("/connections/new/{integration}", "connections.add"): connections.add,
    ("/connections/sign-up/{integration}", "sign_ups.begin"): sign_ups.show,
    ("/connections/{id}", "connections.change"): connections.change,
    ("/connections/{id}/test", "connections.test"): connections.test,
    ("/connections/{id}/pair", "connections.pair"): connections.pair,
    ("/connections/{id}/remove", "connections.remove"): connections.remove,
    ("/agents", "agents.put"): agents.save,
    ("/agents/new", "agents.create"): agents.create,
    ("/agents/{name}/remove", "agents.remove"): agents.remove,
    ("/agents/{name}/load/clear", "agents.clear_load"): agents.clear,
    ("/agents/{name}/heartbeat", "agents.switch_heartbeat"): agents.switch,
    ("/agents/{name}/heartbeat/unmute", "agents.mute_heartbeat"): agents.unmute,
    ("/agents/{name}/mcp/{server}/test", "mcp.test"): agents.try_server,
    ("/agents/{name}/mcp/{server}/authorise", "mcp.authorise"): agents.authorise_server,
    ("/secrets", "secrets.put"): secrets.put,
    ("/secrets/remove", "secrets.remove"): secrets.remove,
    ("/members", "members.add"): members.add,
    ("/members/{id}", "members.change"): members.change,
    ("/members/{id}/link", "members.link"): members.link,
    ("/members/{id}/remove", "members.remove"): members.remove,
    ("/sessions/{id}/end", "sessions.end"): members.end_session,
    ("/sessions/end", "sessions.end_others"): members.end_other_sessions,
    ("/confirm", "sessions.confirm"): confirm.done,
    ("/tokens", "tokens.add"): members.add_token,
    ("/tokens/{id}/remove", "tokens.remove"): members.remove_token,
    ("/versions/rollback", "releases.roll_back"): instance.take_back,
    ("/doctor", "doctor.examine"): instance.examine,
}


def page_routes() -> list[Route]:
    """What to put into an app whose state has a platform, a renderer and checks."""
    reading = [Route(path, endpoint, name=f"page {path}") for path, endpoint in _READ.items()]
    doing = [
        Route(path, endpoint, name=name, methods=["POST"], max_body_size=MAX_FORM)
        for (path, name), endpoint in _DO.items()
    ]
    # Its name is what the audit log calls it: a change, though it comes as a link.
    authorised = Route(MCP_CALLBACK, agents.authorised, name="mcp.authorised")
    back = Route(sign_ups.BACK, sign_ups.back, name="sign_ups.finish")
    return [back, authorised, *reading, *doing]
