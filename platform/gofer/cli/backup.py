"""`gofer backup` and `gofer restore`."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gofer.cli.calling import LONGEST_ANSWER, call
from gofer.cli.showing import AsJson, show

if TYPE_CHECKING:
    from gofer.restoring import Restored


def backup(
    file: Annotated[
        Path | None, typer.Argument(help="Where to; a dated name in the data directory if none.")
    ] = None,
    with_key: Annotated[
        bool, typer.Option("--with-key", help="Put the master key beside it, as FILE.key.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy the database to a file, also while serving. Without the master key it cannot be read; the files of
    agents are not in it.

    \b
    gofer backup
    gofer backup /mnt/backups/gofer.db --with-key
    """
    target = (file or _dated()).absolute()
    done = call("POST", "/backup", json={"path": str(target), "with_key": with_key}, timeout=LONGEST_ANSWER)
    beside = f"The master key is beside it: {done['key_file']}."
    apart = "The master key is not in it: keep a copy of master.key elsewhere, or say --with-key."
    said = f"{done['path']} ({done['bytes']} bytes). {beside if done['key_file'] else apart}"
    show(done, as_json, lambda: print(said))


def _dated() -> Path:
    from gofer.settings import load_settings

    return load_settings().data_dir / "backups" / f"gofer-{time.strftime('%Y%m%d-%H%M%S')}.db"


def restore(
    file: Annotated[Path, typer.Argument(help="A file made by gofer backup.", show_default=False)],
    with_key: Annotated[bool, typer.Option("--with-key", help="Take the master key from FILE.key.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put a backup in the place of the database, while no server runs. The old one is kept beside it.

    \b
    gofer restore /mnt/backups/gofer.db
    gofer restore /mnt/backups/gofer.db --with-key
    """
    from gofer.restoring import restore as put_back
    from gofer.settings import load_settings

    done = put_back(load_settings(), file, with_key=with_key)
    show(dataclasses.asdict(done), as_json, lambda: print(_told(done)))


def _told(done: Restored) -> str:
    lines = [f"{done.database} is restored."]
    if done.previous:
        lines.append(f"What was there is now {done.previous}.")
    if done.key_added:
        lines.append("Its master key is in front of the key file; what was there stays behind it.")
    return " ".join(lines)
