"""A sandboxed shell that stays alive between commands."""
