"""Proxies on loopback: one that speaks HTTP, one that speaks SOCKS 5, both with a login."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

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
    """Takes requests in absolute form, one to a connection."""

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
