"""Strict stand-ins for outside services, on loopback: for the demo, for tests, and for trying things out."""
