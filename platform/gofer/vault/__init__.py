"""Secrets at rest and on their way out: master keys, envelope encryption, redaction."""
