"""External agents: their runtimes, and the Triggers that wake them. Nothing here starts or looks at a process."""
