"""PyGithub's requester, except that redirects are left to us.

GitHub sends who asks for a renamed repository on to its number. PyGithub forgets the query on that way, so that a
look for one branch's pull request finds any; and what answers a write (307) it takes for its result.
"""

from __future__ import annotations

from github.Requester import (
    HTTPRequestsConnectionClass,
    HTTPSRequestsConnectionClass,
    Requester,
    RequestsResponse,
)


class Moved(Exception):
    """The answer is elsewhere."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.location = location


class _Plain(HTTPRequestsConnectionClass):
    def getresponse(self) -> RequestsResponse:
        return _here(super().getresponse())


class _Secure(HTTPSRequestsConnectionClass):
    def getresponse(self) -> RequestsResponse:
        return _here(super().getresponse())


def _here(response: RequestsResponse) -> RequestsResponse:
    if response.status in (301, 307, 308):
        raise Moved(str(response.headers.get("location", "")))
    return response


class RedirectRequester(Requester):
    """One that follows nothing but the way to a file kept elsewhere (302)."""


RedirectRequester.injectConnectionClasses(_Plain, _Secure)
