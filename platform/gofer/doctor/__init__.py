"""What can be checked, each finding with the step that mends it and the page that explains it."""

from gofer.doctor.around import LOOPBACK, look_around
from gofer.doctor.finding import Finding, Severity
from gofer.doctor.inside import examine
from gofer.doctor.mending import mend
from gofer.doctor.model import ask_model

__all__ = ["LOOPBACK", "Finding", "Severity", "ask_model", "examine", "look_around", "mend"]
