"""A small typed client for Gofer's API."""
