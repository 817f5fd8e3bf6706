"""A sandboxed shell that stays alive between commands, cannot be broken, and cannot get out.

async with Sandbox() as sandbox:
    result = await sandbox.run("cd src && make", timeout=60)
    print(result.exit_code, result.output, result.cwd)
    record = sandbox.record.to_json()       # later: await Sandbox.attach(Record.from_json(record))
"""

from gofer_sandbox.bubblewrap import Bubblewrap
from gofer_sandbox.errors import (
    GateBlocked,
    InvalidInput,
    IsolationUnavailable,
    SandboxClosed,
    SandboxError,
    SandboxGone,
    SandboxOwned,
    StartFailed,
)
from gofer_sandbox.levels import Level
from gofer_sandbox.limits import Limits
from gofer_sandbox.local import Box
from gofer_sandbox.provider import Capabilities, Feature, Gate, Provider, Report, Share
from gofer_sandbox.reaper import reap
from gofer_sandbox.records import Record, Reference
from gofer_sandbox.result import Page, Result
from gofer_sandbox.sandbox import Sandbox
from gofer_sandbox.unconfined import Unconfined

__all__ = [
    "Box",
    "Bubblewrap",
    "Capabilities",
    "Feature",
    "Gate",
    "GateBlocked",
    "InvalidInput",
    "IsolationUnavailable",
    "Level",
    "Limits",
    "Page",
    "Provider",
    "Record",
    "Reference",
    "Report",
    "Result",
    "Sandbox",
    "SandboxClosed",
    "SandboxError",
    "SandboxGone",
    "SandboxOwned",
    "Share",
    "StartFailed",
    "Unconfined",
    "reap",
]
