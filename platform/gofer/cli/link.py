"""`gofer link`: a link that signs somebody in, once."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from gofer.cli.client import Api, with_api
from gofer.cli.exit_codes import NOT_FOUND, CommandFailed
from gofer.cli.output import Shown


def link(
    member: Annotated[
        str, typer.Argument(help="The member that it signs in. By default the first owner.")
    ] = "",
) -> Shown:
    """Print a link that signs a member in, once and within an hour.

    \b
    gofer link
    gofer link anna
    """

    async def make(api: Api) -> dict[str, str]:
        name = member or await _first_owner(api)
        made: dict[str, str] = await api.ask("POST", f"/members/{quote(name, safe='')}/link")
        return made

    made = with_api(make)
    return made, made["url"]


async def _first_owner(api: Api) -> str:
    found = (await api.ask("GET", "/members"))["members"]
    for each in found:
        if each["role"] == "owner":
            return str(each["name"])
    raise CommandFailed("There is no owner yet. Run: gofer serve", NOT_FOUND)
