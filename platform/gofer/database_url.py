"""What a `postgresql://` address says: checked when settings are read, then given to asyncpg as it understands it.

Hosted databases hand out addresses as libpq reads them. asyncpg reads nearly all of that; what it would take for a
setting of the server, and only stumble over once it is connected, is seen to here.
"""

from __future__ import annotations

import os
import re
import ssl
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

CONNECT_TIMEOUT = 10.0
"""Seconds to wait for a connection unless the address says otherwise."""

_FILES = frozenset({"sslrootcert", "sslcert", "sslkey", "sslcrl"})
_TO_THE_DRIVER = _FILES | {
    *(
        "host",
        "port",
        "user",
        "password",
        "dbname",
        "database",
        "passfile",
        "service",
        "krbsrvname",
        "gsslib",
    ),
    *("sslmode", "sslpassword", "sslnegotiation", "ssl_min_protocol_version", "ssl_max_protocol_version"),
    "target_session_attrs",
}
_TO_THE_SERVER = frozenset({"application_name", "options"})
_OURS = frozenset({"connect_timeout", "channel_binding"})
_SYSTEMS_OWN = ("sslrootcert", "system")
"""As libpq says that the authorities the system trusts are trusted."""
_CHOICES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": ("any", "primary", "standby", "prefer-standby", "read-write", "read-only"),
    "channel_binding": ("disable", "prefer", "require"),
}
_SIGNED_IN = re.compile(r"(?P<user>[^:/?#@]*)(?::(?P<password>[^@]*))?@")


def check_address(url: str) -> None:
    """Raises ValueError, in words that go on from the name of the setting."""
    try:
        _check_ports(urlsplit(_quoted(url)).netloc.rpartition("@")[2])
        for name, value in _parameters(url).items():
            _check_parameter(name, value)
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith("has ") else "is not an address") from None


def _check_ports(hosts: str) -> None:
    for host in hosts.split(","):
        _, colon, port = host.rpartition("]")[2].rpartition(":")
        if colon and port:
            _check_port(port)


def _check_port(port: str) -> None:
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"has the port {port[:20]!r}, which is not a number from 1 to 65535")


def _check_parameter(name: str, value: str) -> None:
    if name not in _TO_THE_DRIVER | _TO_THE_SERVER | _OURS:
        known = ", ".join(sorted({*_CHOICES, "sslrootcert"} | _TO_THE_SERVER | _OURS))
        raise ValueError(f"has the parameter {name[:40]!r}, which Gofer does not know; it knows {known}")
    if (name, value) == ("channel_binding", "require"):
        # As Neon hands its addresses out. Not passed over in silence: somebody may count on it.
        raise ValueError(
            "has channel_binding=require, which the driver cannot do; take it out, and say "
            "sslmode=verify-full&sslrootcert=system to be sure of the server"
        )
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ValueError(f"has {name}={value[:40]}; it must be one of {', '.join(_CHOICES[name])}")
    if name in _FILES and (name, value) != _SYSTEMS_OWN and not os.access(value, os.R_OK):
        raise ValueError(f"has {name}={value[:200]}, a file that cannot be read")
    if name == "connect_timeout" and not (value.isascii() and value.isdigit()):
        raise ValueError("has a connect_timeout that is not a number of seconds")
    if name == "port":
        for port in value.split(","):
            _check_port(port)


def driver_arguments(url: str) -> dict[str, Any]:
    """What to call asyncpg.connect with."""
    parameters = _parameters(url)
    # libpq waits for ever when told 0.
    seconds = float(parameters.pop("connect_timeout", CONNECT_TIMEOUT)) or None
    parameters.pop("channel_binding", None)
    to_server = {name: parameters.pop(name) for name in _TO_THE_SERVER & parameters.keys()}
    if _SYSTEMS_OWN in parameters.items():
        paths = ssl.get_default_verify_paths()
        parameters["sslrootcert"] = paths.cafile or paths.openssl_cafile
    parts = urlsplit(_quoted(url))
    query = f"?{urlencode(parameters)}" if parameters else ""
    return {
        "dsn": f"postgresql://{parts.netloc}{parts.path}{query}",
        "timeout": seconds,
        "server_settings": {"application_name": "gofer", **to_server},
    }


def _parameters(url: str) -> dict[str, str]:
    pairs = parse_qsl(urlsplit(_quoted(url)).query, keep_blank_values=True)
    # `ssl` is how asyncpg itself calls it.
    return {"sslmode" if name == "ssl" else name: value for name, value in pairs}


def _quoted(url: str) -> str:
    """The address with a password that may hold anything but @, as people write it."""
    rest = url.partition("://")[2]
    found = _SIGNED_IN.match(rest)
    if found is None or found["password"] is None:
        return f"postgresql://{rest}"
    return f"postgresql://{found['user']}:{quote(found['password'], safe='%')}@{rest[found.end() :]}"
