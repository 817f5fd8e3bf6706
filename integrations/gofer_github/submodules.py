"""Which submodules a job may fetch, where they are allowed at all: repositories of the same owner, named by the
default branch, that the App is installed on and that whoever asks may read."""

from __future__ import annotations

import posixpath
import re
from urllib.parse import urlsplit

from gofer.errors import Permanent
from gofer.integration import Account, Incoming
from gofer_github.access import LOOK, READ, Access
from gofer_github.client import is_missing
from gofer_github.people import permission_of
from gofer_github.place import Place, is_repository
from gofer_github.settings import Settings

MODULES = ".gitmodules"
MOST = 10
_URL = re.compile(r"^[^\S\n]*+url[^\S\n]*+=[^\S\n]*+\"?([^\s\"]{1,300})\"?[^\S\n]*+$", re.M)


async def allowed(access: Access, account: Account, message: Incoming) -> tuple[str, ...]:
    """Full names of the repositories; none where nobody asked, such as for a failing check."""
    settings, place = (
        Settings.model_validate(account.settings),
        Place.of(message.conversation, message.lasting),
    )
    if not settings.submodules or not message.facts.get("login"):
        return ()
    client = await access.to(account, place.repository, READ)
    try:
        text = await client.file(place.repository, MODULES)
    except Permanent as error:
        if is_missing(error) or error.reason == "github.not_text":
            return ()
        raise
    named = named_in(text, place.repository, settings.web_url)[:MOST]
    return tuple([name for name in named if await _may_read(access, account, message, name)])


def named_in(text: str, repository: str, web_url: str) -> list[str]:
    """The repositories that a .gitmodules names, of the same owner on the same server."""
    owner = repository.partition("/")[0].lower()
    found = dict.fromkeys(_named(url, repository, web_url) for url in _URL.findall(text))
    return [
        name
        for name in found
        if is_repository(name) and name.partition("/")[0].lower() == owner and name != repository
    ]


def _named(url: str, repository: str, web_url: str) -> str:
    """The full name behind an address, as git would resolve it; anything at all for what is elsewhere."""
    host = urlsplit(web_url).hostname
    if url.startswith(("./", "../")):
        path = posixpath.normpath(f"/{repository}/{url}")
    elif url.startswith(f"git@{host}:"):
        path = url.partition(":")[2]
    elif url.startswith((f"{web_url}/", f"ssh://git@{host}/")):
        path = urlsplit(url).path
    else:
        return ""
    return path.strip("/").removesuffix(".git")


async def _may_read(access: Access, account: Account, message: Incoming, name: str) -> bool:
    """Whether the App reaches it, and whoever asks may see it: the run tells them what is in there."""
    try:
        client = await access.to(account, name, LOOK)
        login = str(message.facts["login"])
        permission = await permission_of(client, name, login, str(message.facts["sender"]))
    except Permanent:
        return False
    return not permission.startswith("none")
