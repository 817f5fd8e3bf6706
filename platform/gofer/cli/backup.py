"""`gofer backup` and `gofer restore`."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gofer.cli.client import LONGEST_ANSWER, call
from gofer.cli.output import Shown

if TYPE_CHECKING:
    from gofer.restore import Restored


def backup(
    file: Annotated[
        Path | None, typer.Argument(help="The file to write. By default a dated file in the data directory.")
    ] = None,
    with_key: Annotated[
        bool, typer.Option("--with-key", help="Write the master key to FILE.key beside it.")
    ] = False,
    with_shells: Annotated[
        bool, typer.Option("--with-shells", help="Also copy the files in the shells' workspaces.")
    ] = False,
) -> Shown:
    """Copy the database to a file, also while a server runs. The files of agents, prices and models go into
    FILE.files.tgz beside it. The copy cannot be read without the master key.

    \b
    gofer backup
    gofer backup /mnt/backups/gofer.db --with-key --with-shells
    """
    target = (file or _dated()).absolute()
    wish = {"path": str(target), "with_key": with_key, "with_shells": with_shells}
    done = call("POST", "/backup", json=wish, timeout=LONGEST_ANSWER)
    beside = f"The master key is beside it: {done['key_file']}."
    apart = "The master key is not in it: keep a copy of master.key elsewhere, or say --with-key."
    said = f"{done['path']} ({done['bytes']} bytes). {beside if done['key_file'] else apart}"
    if done["files"]:
        said += f" Agents and the rest are in {done['files']}."
    return done, said


def _dated() -> Path:
    from gofer.settings import load_settings

    return load_settings().data_dir / "backups" / f"gofer-{time.strftime('%Y%m%d-%H%M%S')}.db"


def restore(
    file: Annotated[Path, typer.Argument(help="A file made by gofer backup.", show_default=False)],
    with_key: Annotated[bool, typer.Option("--with-key", help="Take the master key from FILE.key.")] = False,
) -> Shown:
    """Replace the database and the files of agents, prices and models by those of a backup, while no server runs.
    The replaced ones are kept beside them.

    \b
    gofer restore /mnt/backups/gofer.db
    gofer restore /mnt/backups/gofer.db --with-key
    """
    from gofer.restore import restore as put_back
    from gofer.settings import load_settings

    done = put_back(load_settings(), file, with_key=with_key)
    return dataclasses.asdict(done), _restored_text(done)


def _restored_text(done: Restored) -> str:
    lines = [f"{done.database} is restored."]
    if done.previous:
        lines.append(f"What was there is now {done.previous}.")
    if done.key_added:
        lines.append("Its master key is in front of the key file; what was there stays behind it.")
    if done.unsigned:
        lines.append(
            "Its rows are not signed: a release that signs none made it, or somebody took the key out. The next start "
            "takes every row as it is, so look who may do what: `gofer members list`, `gofer tokens list`."
        )
    if done.files:
        lines.append(f"Also put back: {', '.join(done.files)}; what was there is kept under another name.")
    return " ".join(lines)
