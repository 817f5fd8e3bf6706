"""Goals: what a person wants, planned, done by tasks, and reported once."""
