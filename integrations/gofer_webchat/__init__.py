"""Talking to an agent on Gofer's own page, or on a page of yours."""

from gofer_webchat.integration import integration

__all__ = ["integration"]
