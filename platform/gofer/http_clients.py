"""HTTP clients: one shared, and one for each proxy that a connection goes through."""

from __future__ import annotations

import ssl

import httpx2

from gofer.errors import ConfigError
from gofer.jobs.lease import only_while_held


class HttpClients:
    """Makes clients and closes them."""

    def __init__(self, *, timeout: float) -> None:
        self._timeout = timeout
        self._proxied: dict[str, httpx2.AsyncClient] = {}
        # One for all: a proxy of the environment has a transport of its own, which would read every certificate again.
        self._verify = httpx2.create_ssl_context()
        self.shared = httpx2.AsyncClient(
            timeout=timeout, event_hooks={"request": [only_while_held]}, verify=self._verify
        )

    def through(self, proxy: str) -> httpx2.AsyncClient:
        """The client that goes through a proxy."""
        if proxy not in self._proxied:
            try:
                transport = _ProxyTransport(proxy, self._verify)
            except (ValueError, ImportError) as error:
                raise ConfigError(f"The proxy cannot be used: {error}") from None
            self._proxied[proxy] = httpx2.AsyncClient(
                timeout=self._timeout, event_hooks={"request": [only_while_held]}, transport=transport
            )
        return self._proxied[proxy]

    async def close(self) -> None:
        """Close them all."""
        for client in (self.shared, *self._proxied.values()):
            await client.aclose()


class _ProxyTransport(httpx2.AsyncBaseTransport):
    """Goes through a proxy. A target that is kept out of the URL, for a token is in it, is meant for the service and
    not for the proxy: it is put in where nothing logs it any more."""

    def __init__(self, proxy: str, verify: ssl.SSLContext) -> None:
        self._inner = httpx2.AsyncHTTPTransport(proxy=proxy, verify=verify)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        target = request.extensions.get("target")
        if target is not None:
            rest = {name: value for name, value in request.extensions.items() if name != "target"}
            url = request.url.copy_with(raw_path=target)
            request = httpx2.Request(
                request.method, url, headers=request.headers, stream=request.stream, extensions=rest
            )
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()
