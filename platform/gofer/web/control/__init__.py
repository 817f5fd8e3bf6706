"""The control API: everything the command line can ask for, as JSON.

Served on the Unix socket of a running server, whose file only its user may open, or called in-process when no
server runs. It is never mounted on the network.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route

from gofer.errors import GoferError
from gofer.platform import Platform
from gofer.web.control import (
    agents,
    connections,
    conversations,
    deliveries,
    instance,
    jobs,
    questions,
    schedules,
    secrets,
)
from gofer.web.problems import on_crash, on_gofer_error, on_http_exception


def control_app(platform: Platform) -> Starlette:
    """Build it."""
    app = Starlette(
        routes=[Mount("/api/v1", routes=ROUTES)],
        exception_handlers={
            GoferError: on_gofer_error,
            HTTPException: on_http_exception,
            Exception: on_crash,
        },
    )
    app.state.platform = platform
    return app


ROUTES = [
    Route("/status", instance.status),
    Route("/doctor", instance.doctor),
    Route("/refusals", instance.refusals),
    Route("/integrations", instance.integrations),
    Route("/key", instance.key),
    Route("/key/rotate", instance.rotate_key, methods=["POST"]),
    Route("/backup", instance.backup, methods=["POST"]),
    Route("/jobs", jobs.index),
    Route("/jobs/{id:int}", jobs.show),
    Route("/jobs/{id:int}/cancel", jobs.cancel_one, methods=["POST"]),
    Route("/jobs/{id:int}/redrive", jobs.redrive_one, methods=["POST"]),
    Route("/deliveries", deliveries.index),
    Route("/deliveries/{id:int}", deliveries.show),
    Route("/deliveries/{id:int}/replay", deliveries.replay, methods=["POST"]),
    Route("/questions", questions.index),
    Route("/questions/{id}/answer", questions.answer_one, methods=["POST"]),
    Route("/secrets", secrets.index),
    Route("/secrets", secrets.put, methods=["PUT"]),
    Route("/secrets", secrets.remove, methods=["DELETE"]),
    Route("/connections", connections.index),
    Route("/connections", connections.add, methods=["POST"]),
    Route("/sign-ups", connections.begin_sign_up, methods=["POST"]),
    Route("/sign-ups/finish", connections.finish_sign_up, methods=["POST"]),
    Route("/connections/{id}", connections.show),
    Route("/connections/{id}", connections.change, methods=["PATCH"]),
    Route("/connections/{id}", connections.remove, methods=["DELETE"]),
    Route("/connections/{id}/pair", connections.pair, methods=["POST"]),
    Route("/connections/{id}/test", connections.test, methods=["POST"]),
    Route("/connections/{id}/replay", deliveries.replay_given, methods=["POST"]),
    Route("/conversations", conversations.index),
    Route("/conversations/{id}/purge", conversations.purge, methods=["POST"]),
    Route("/agents", agents.index),
    Route("/agents/{name}", agents.show),
    Route("/agents/{name}", agents.put, methods=["PUT"]),
    Route("/agents/{name}", agents.remove, methods=["DELETE"]),
    Route("/schedules", schedules.index),
    Route("/schedules", schedules.add, methods=["POST"]),
    Route("/schedules/{id}", schedules.remove, methods=["DELETE"]),
]
