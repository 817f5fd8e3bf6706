"""The first five minutes: talk, give it a model, connect it; and the pages of docs/ to read on."""

from gofer.web.welcome.endpoints import routes

__all__ = ["routes"]
