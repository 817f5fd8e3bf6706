"""GitHub: from a mention on an issue to a reviewed pull request. docs/integrations/github.md is its page."""

from gofer_github.integration import integration

__all__ = ["integration"]
