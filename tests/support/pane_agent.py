"""Plays a coding agent in a terminal: `python pane_agent.py LOG [--answer COMMAND… | --post URL TOKEN]`.

It asks for bracketed paste, shows what is pasted behind its prompt, takes it with Enter, and writes every message as
a line of JSON to LOG. With `--post` it answers over Gofer's API, as the text says how. Keys that come outside a paste
are kept apart, so that a test sees what would have been an order.
Nothing of Gofer is imported: it starts in a tenth of a second.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tty
import urllib.request

BEGIN, END = b"\x1b[200~", b"\x1b[201~"


def main() -> None:
    log, answer = sys.argv[1], sys.argv[2:]
    tty.setcbreak(0)
    show("\x1b[?2004h> ")
    waiting, pasted, keys = b"", [], b""
    while data := os.read(0, 65536):
        waiting += data
        while waiting:
            if waiting.startswith(BEGIN):
                if END not in waiting:
                    break
                text, waiting = waiting[len(BEGIN) :].split(END, 1)
                pasted.append(text.decode().replace("\r", "\n"))
                show(pasted[-1])
            elif BEGIN.startswith(waiting[: len(BEGIN)]) and waiting[0] == 27:
                break
            elif waiting[:1] == b"\x04":
                return  # Ctrl-D: somebody ends it
            elif waiting[:1] == b"\x15":  # Ctrl-U: somebody drops their draft
                keys, waiting = b"", waiting[1:]
                show("\x1b[2K\x1b[G> ")
            elif waiting[:1] in b"\r\n":
                waiting = waiting[1:]
                take(log, answer, pasted, keys.decode())
                pasted, keys = [], b""
            else:
                show(waiting[:1].decode("latin-1"))
                keys, waiting = keys + waiting[:1], waiting[1:]


def take(log: str, answer: list[str], pasted: list[str], keys: str) -> None:
    show("\n(working)\n")
    with open(log, "a") as file:
        file.write(json.dumps({"pasted": pasted, "keys": keys, "environment": sorted(os.environ)}) + "\n")
    if answer[:1] == ["--answer"]:
        subprocess.run(answer[1:], input="\n".join(pasted), text=True, check=False)
    elif answer[:1] == ["--post"]:
        post("\n".join(pasted), *answer[1:])
    show("> ")


def post(text: str, url: str, token: str) -> None:
    """Acknowledge, and answer with what was asked, in capitals."""
    found = re.search(r'conversation_id "(\S+)", trigger (\d+) and hop (\d+)', text)
    assert found, text
    numbers = {"trigger": int(found[2]), "hop": int(found[3])}
    said = text.partition("commands to Gofer:\n")[2].partition("\n[Gofer] End")[0]
    for what, body in (
        ("acknowledge", numbers),
        ("messages", {**numbers, "text": f"PANE HEARD: {said.upper()}"}),
    ):
        request = urllib.request.Request(
            f"{url}/api/v1/conversations/{found[1]}/{what}",
            json.dumps(body).encode(),
            {"authorization": f"Bearer {token}", "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            response.read()


def show(text: str) -> None:
    text = re.sub(r"[\x00-\x08\x0b-\x1a\x1c-\x1f]", "?", text)
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
