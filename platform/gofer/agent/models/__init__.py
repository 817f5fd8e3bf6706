"""Adapters for models, and what stands around them: retries, breakers, a second model to fall back to."""
