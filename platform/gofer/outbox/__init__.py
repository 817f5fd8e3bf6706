"""The reply ledger and its delivery."""
