"""The docker provider."""

from gofer_sandbox.docker.engine import Engine, EngineError
from gofer_sandbox.docker.provider import Docker

__all__ = ["Docker", "Engine", "EngineError"]
