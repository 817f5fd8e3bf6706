"""HTTP: webhooks in, health and metrics out, and the control API on the Unix socket."""
