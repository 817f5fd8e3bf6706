"""The dashboard: server-rendered pages over the same verbs as the control API."""
