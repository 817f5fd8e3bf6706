"""What can go wrong in the vault.

GoferError
├── ConfigError
│   └── KeyRefused    a master key that must not be used, and what to do about it
└── VaultError
    ├── KeyMissing    ciphertext names a key that is not in the ring
    └── Tampered      ciphertext that does not belong where it was found
"""

from __future__ import annotations

from gofer.errors import ConfigError, GoferError


class KeyRefused(ConfigError):
    """This master key cannot be used."""

    code = "vault.key_refused"


class VaultError(GoferError):
    """A stored secret cannot be read."""

    code = "vault"


class KeyMissing(VaultError):
    """A master key that stored secrets need is not in the ring."""

    code = "vault.key_missing"

    def __init__(self, key_id: str) -> None:
        super().__init__(
            f"The master key {key_id} is needed to read what is stored, and it is not among the keys given. "
            "Put it back behind the active one: as another line of the key file, or after a comma in "
            "GOFER_MASTER_KEY."
        )
        self.key_id = key_id


class Tampered(VaultError):
    """A stored value was changed, cut, or moved from where it was written."""

    code = "vault.tampered"

    # One text for every cause: a detail here would help only someone who probes.
    def __init__(self) -> None:
        super().__init__()
