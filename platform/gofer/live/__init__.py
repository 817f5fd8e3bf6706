"""What runs say while they say it, for whoever watches, here and in other processes.

Everything that matters is in the event log; what is kept here is only what is not there yet: the words of a turn
that goes on, and what a command has printed so far. Whoever begins to watch in the middle gets it from its beginning.
"""

from gofer.live.broadcast import SharedLive
from gofer.live.buffer import Fresh
from gofer.live.local import Live, Watcher

__all__ = ["Fresh", "Live", "SharedLive", "Watcher"]
