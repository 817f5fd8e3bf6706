"""Gofer: takes work from where people talk and has an agent do it."""
