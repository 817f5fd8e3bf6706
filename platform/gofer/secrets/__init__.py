"""Secrets, master keys and their use, as the store holds them. The cryptography is in `gofer.vault`."""
