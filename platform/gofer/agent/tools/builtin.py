"""The tools Gofer brings."""

from __future__ import annotations

from typing import Any

from gofer.agent.tools.bash import BASH, BASH_JOB
from gofer.agent.tools.fetch import fetch_tool
from gofer.agent.tools.files import EDIT, LS, READ, WRITE
from gofer.agent.tools.search import FIND, GREP
from gofer.agent.tools.talk import ASK_USER, TODO
from gofer.tool import Tool


def builtin_tools() -> list[Tool[Any]]:
    return [BASH, BASH_JOB, READ, WRITE, EDIT, LS, FIND, GREP, fetch_tool(), ASK_USER, TODO]
