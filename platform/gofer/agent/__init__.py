"""The agent: a loop over a model and tools whose only state is its journal."""
