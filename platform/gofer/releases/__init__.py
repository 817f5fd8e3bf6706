"""Releases: built from a source tree, signed, checked and staged in the home of the supervisor, which deploys them."""
