"""Memories: what is remembered beyond a run, with ids that are never reused, versions and keys that can be destroyed.

`gofer.memory.scopes` has the keys, one for each audience; `gofer.memory.records` has the memories themselves.
"""
