"""Figures, each beside a floor or a peer measured in the same run: `make bench`."""
