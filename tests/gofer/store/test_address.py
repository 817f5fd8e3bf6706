"""Addresses of Postgres as hosted ones are given out: TLS asked for in libpq's words is TLS had, or an error."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from sqlalchemy import text

from gofer.database_url import driver_arguments
from gofer.errors import ConfigError, StoreUnavailable
from gofer.jobs.notifications import PostgresSignals
from gofer.settings import load_settings
from gofer.store.postgres import PostgresDatabase

SSL_REQUEST = (80877103).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("database_url", "postgresql://u:p@127.0.0.1:notaport/x", "has the port 'notaport'"),
        ("database_url", "postgresql://u:p@127.0.0.1:99999/x", "has the port '99999'"),
        ("database_url", "postgresql://u:p@one:5432,two:0/x", "has the port '0'"),
        ("database_url", "postgresql:///x?host=/run&port=many", "has the port 'many'"),
        ("database_url", "postgresql://u:p@[::1/x", "is not an address"),
        ("database_url", "postgresql://u:p@h/x?channel_binding=require", "take it out"),
        ("database_url", "postgresql://u:p@h/x?gssmode=on", "the parameter 'gssmode'"),
        ("database_url", "postgresql://u:p@h/x?sslmode=always", "one of disable, allow"),
        ("database_url", "postgresql://u:p@h/x?target_session_attrs=best", "one of any, primary"),
        ("database_url", "postgresql://u:p@h/x?connect_timeout=soon", "number of seconds"),
        ("database_url", "postgresql://u:p@h/x?sslrootcert=/nope", "sslrootcert=/nope, a file that cannot"),
        ("redis_url", "nonsense", "must be redis://"),
        ("redis_url", "redis://h:99999/0", "must be redis://"),
    ],
)
def test_an_address_that_cannot_work_is_refused_by_its_variable(variable: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^GOFER_{variable.upper()} ") as caught:
        load_settings(**{variable: value})
    assert says in str(caught.value)
    assert "u:p" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "dsn"),
    [
        ("postgres://u:a#b/c?d%20@h:1/x?sslmode=require", "u:a%23b%2Fc%3Fd%20@h:1/x?sslmode=require"),
        ("postgresql+asyncpg://u@h/x?ssl=require", "u@h/x?sslmode=require"),
        ("postgresql:///x?host=/run&application_name=me@home", "/x?host=%2Frun"),
        ("postgresql://u:p@one:1,two:2/x?connect_timeout=3", "u:p@one:1,two:2/x"),
        ("postgresql://u@h/x?channel_binding=prefer", "u@h/x"),
    ],
)
def test_what_the_driver_is_given(url: str, dsn: str) -> None:
    load_settings(database_url=url)
    assert driver_arguments(url)["dsn"] == f"postgresql://{dsn}"


def test_how_long_to_wait_and_what_to_be_called() -> None:
    given = driver_arguments("postgresql://h/x?connect_timeout=3&application_name=mine")
    assert (given["timeout"], given["server_settings"]) == (3, {"application_name": "mine"})
    assert driver_arguments("postgresql://h/x?connect_timeout=0")["timeout"] is None


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for 127.0.0.1 that vouches for itself, in one file."""
    key, today = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


@contextlib.asynccontextmanager
async def in_front_of(postgres_url: str, certificate: Path | None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A door on loopback that wants TLS, or has none, before a server on a unix socket; what began each visit."""
    began: list[bytes] = []
    place, _, folder = postgres_url.partition("?host=")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if certificate:
        context.load_cert_chain(certificate)

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            began.append((await reader.readexactly(8))[4:])
            if certificate and began[-1] == SSL_REQUEST:
                writer.write(b"S")
                await writer.start_tls(context)
                inner, outer = await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.5432")
                await asyncio.gather(_carry(reader, outer), _carry(inner, writer))
            writer.write(b"N")
        writer.close()

    server = await asyncio.start_server(visit, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield place.replace("@/", f"@127.0.0.1:{port}/"), began
    finally:
        server.close()


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while words := await source.read(65536):
        target.write(words)
    target.close()


@pytest.mark.parametrize("words", ["sslmode=require", "sslmode=verify-full&sslrootcert={}"])
async def test_the_pool_and_the_listener_speak_tls(
    postgres_url: str, certificate: Path, words: str, eventually: Callable[..., Awaitable[Any]]
) -> None:
    async with in_front_of(postgres_url, certificate) as (url, began):
        url = f"{url}?{words.format(certificate)}&application_name=mine&target_session_attrs=read-write"
        store, signals = PostgresDatabase(url), PostgresSignals(url)
        await store.start()
        assert await store.read(lambda c: c.execute(text("SHOW application_name")).scalar()) == "mine"
        heard: list[str] = []
        signals.on_parcel(heard.append)
        await signals.start()

        async def comes_back() -> bool:
            signals.post(["parcel"])
            return bool(heard)

        await eventually(comes_back)
        await signals.close()
        await store.close()
    assert len(began) >= 2
    assert set(began) == {SSL_REQUEST}


async def test_tls_that_is_required_and_not_had_is_an_error(postgres_url: str) -> None:
    async with in_front_of(postgres_url, None) as (url, began):
        store = PostgresDatabase(f"{url}?sslmode=require")
        with pytest.raises(StoreUnavailable, match="SSL"):
            await store.start()
        await store.close()
    assert set(began) == {SSL_REQUEST}
