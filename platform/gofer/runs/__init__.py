"""Runs of an agent over the platform: what lends the pure loop its store, jobs, secrets and shells."""
