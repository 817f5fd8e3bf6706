"""Telegram: a bot people talk to in private, in groups and in topics."""

from gofer_telegram.integration import Telegram, integration

__all__ = ["Telegram", "integration"]
