"""`gofer key`: the master key that everything is sealed with."""

from __future__ import annotations

from gofer.cli.client import LONGEST_ANSWER, call
from gofer.cli.output import Shown, count, facts, group

app = group("The master key, which everything is encrypted with.")


@app.command("show")
def show_key() -> Shown:
    """Show the fingerprint of the key in use and where the key is kept, never the key itself.

    \b
    gofer key show
    """
    found = call("GET", "/key")
    pairs = [("in use", found["in_use"]), ("known", ", ".join(found["ring"]))]
    return found, lambda: facts([*pairs, ("kept in", found["file"] or "GOFER_MASTER_KEY")])


@app.command()
def rotate() -> Shown:
    """Create a new master key and encrypt all data keys with it, also while a server runs. Back up the key file then.

    \b
    gofer key rotate
    """
    done = call("POST", "/key/rotate", timeout=LONGEST_ANSWER)
    wrapped = f"{count(done['secrets'], 'secret')}, {count(done['conversations'], 'conversation')}"
    said = f"Wrapped with the new key {done['key_id']}: {wrapped}. Back up the key file now."
    return done, said
