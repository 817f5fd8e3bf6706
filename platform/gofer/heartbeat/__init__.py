"""The heartbeat: an agent looks after its conversations by itself, first without a model."""
