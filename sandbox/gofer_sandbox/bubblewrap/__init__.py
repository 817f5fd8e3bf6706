"""Sandboxes made with bubblewrap."""

from gofer_sandbox.bubblewrap.provider import Bubblewrap

__all__ = ["Bubblewrap"]
