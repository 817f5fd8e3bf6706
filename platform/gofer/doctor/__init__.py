"""What can be checked, each finding with the step that mends it and the page that explains it."""

from gofer.doctor.around import LOOPBACK, another_place, look_around
from gofer.doctor.finding import Finding, Severity, found_wrong
from gofer.doctor.inside import examine
from gofer.doctor.mending import mend
from gofer.doctor.model import ask_compatible, ask_model, ask_providers

__all__ = [
    "LOOPBACK",
    "Finding",
    "Severity",
    "another_place",
    "ask_compatible",
    "ask_model",
    "ask_providers",
    "examine",
    "found_wrong",
    "look_around",
    "mend",
]
