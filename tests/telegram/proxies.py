"""Proxies on loopback: one that speaks HTTP, one that speaks SOCKS 5, both with a login; and TLS before a server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

LOGIN = "ann:open sesame"


class Proxy:
    """Counts what it was asked to pass on."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.port = 0

    async def pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def join(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        host: str,
        port: int,
        first: bytes = b"",
    ) -> None:
        out_reader, out_writer = await asyncio.open_connection(host, port)
        out_writer.write(first)
        await asyncio.gather(self.pipe(reader, out_writer), self.pipe(out_reader, writer))


class HttpProxy(Proxy):
    """Takes requests in absolute form, one to a connection, and CONNECT."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            line, _, rest = head.partition(b"\r\n")
            verb, target, version = line.split(b" ")
            expected = b"proxy-authorization: basic " + base64.b64encode(LOGIN.encode()).lower()
            if expected not in rest.lower():
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
                writer.close()
                return
            if verb == b"CONNECT":
                host, _, port = target.decode().rpartition(":")
                self.asked.append(f"{host}:{port}")
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await self.join(reader, writer, host, int(port))
                return
            url = urlsplit(target.decode())
            assert url.hostname
            self.asked.append(f"{url.hostname}:{url.port}")
            path = url.path.encode() + (b"?" + url.query.encode() if url.query else b"")
            own = b" ".join([verb, path, version]) + b"\r\nconnection: close\r\n" + rest
            await self.join(reader, writer, url.hostname, url.port or 80, own)


class SocksProxy(Proxy):
    """SOCKS 5 with a name and a password."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            _, count = await reader.readexactly(2)
            assert 2 in await reader.readexactly(count)
            writer.write(b"\x05\x02")
            _, size = await reader.readexactly(2)
            user = (await reader.readexactly(size)).decode()
            password = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
            right = f"{user}:{password}" == LOGIN
            writer.write(b"\x01\x00" if right else b"\x01\x01")
            assert right
            *_, kind = await reader.readexactly(4)
            size = 4 if kind == 1 else (await reader.readexactly(1))[0]
            raw = await reader.readexactly(size)
            host = ".".join(map(str, raw)) if kind == 1 else raw.decode()
            port = int.from_bytes(await reader.readexactly(2), "big")
            self.asked.append(f"{host}:{port}")
            writer.write(b"\x05\x00\x00\x01" + bytes(6))
            await self.join(reader, writer, host, port)


@contextlib.asynccontextmanager
async def serving(proxy: HttpProxy | SocksProxy) -> AsyncIterator[int]:
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy.port
    finally:
        server.close()


def certificate(folder: Path) -> Path:
    """A key and a certificate for 127.0.0.1 that vouches for itself, in one file."""
    key, today = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "both.pem"
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


@contextlib.asynccontextmanager
async def tls_before(url: str, certificate: Path) -> AsyncIterator[str]:
    """The same server, reached over HTTPS."""
    goal = urlsplit(url)
    assert goal.hostname
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Proxy().join(reader, writer, str(goal.hostname), goal.port or 80)

    server = await asyncio.start_server(visit, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
