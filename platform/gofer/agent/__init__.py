"""The agent: a loop, its journal, its limits, its models and its tools."""
