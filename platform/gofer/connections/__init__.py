"""Configured accounts of integrations: found, loaded, changed, set up and watched."""
