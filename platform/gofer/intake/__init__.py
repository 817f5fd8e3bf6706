"""Receive, verify, dedupe, route, record: how the outside becomes durable work."""
