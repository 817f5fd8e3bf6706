"""Memories: what is remembered beyond a run, with ids that are never reused, versions and keys that can be destroyed.

`scopes` has the keys, one for each audience; `records` reads memories and `changes` writes them; `audience` decides
what may be recalled where; `index` and `search` find memories by words, and `recall` keeps the index up to date.
"""
