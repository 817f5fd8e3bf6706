"""Gofer: takes work from where people talk and has an agent do it."""

__version__ = "0.1.0"
