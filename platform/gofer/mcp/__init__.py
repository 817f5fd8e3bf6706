"""Gofer as an MCP client: other people's servers as tools of our agents.

The `mcp` library is imported when a run first needs a server; nobody else pays for it.
"""
