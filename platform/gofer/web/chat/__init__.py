"""The web chat: its page, its files, and the ways to follow it live."""

from gofer.web.chat.endpoints import routes

__all__ = ["routes"]
