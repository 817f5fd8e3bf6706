"""`gofer devices`: keys with which programs connect over OpenClaw's gateway protocol."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from gofer.cli.client import call
from gofer.cli.output import Shown, ago, group, refusable, table
from gofer.errors import ConfigError

app = group("Devices of programs that speak OpenClaw's gateway protocol.")


@app.command("list")
def list_devices() -> Shown:
    """List devices, also those that wait to be paired.

    \b
    gofer devices list
    """
    found = call("GET", "/devices")
    rows = [
        (
            refusable(each["id"][:16], each),
            each["name"],
            each["member"],
            " ".join(each["scopes"]),
            "yes" if each["paired"] else "waits" if each["waiting"] else "no",
            ago(each["used_at"]) if each["used_at"] else "never",
        )
        for each in found["devices"]
    ]
    titles = ("device", "name", "member", "scopes", "paired", "used")
    return found, lambda: table(titles, rows, empty="No devices.")


@app.command()
def pair(
    name: Annotated[
        str,
        typer.Argument(help="The id of a device that waits, or a name for a new one.", show_default=False),
    ],
    openclaw: Annotated[
        Path | None,
        typer.Option(
            help="Make a new device and write its files into this folder, as openclaw-sdk wants them."
        ),
    ] = None,
    member: Annotated[str, typer.Option(help="Its member. By default the first owner.")] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="A scope of the new device. By default operator.read and operator.write. Repeatable."
        ),
    ] = None,
) -> Shown:
    """Pair a device that waits, or make a new one.

    \b
    gofer devices pair 3f2a9c0d1e5b7a88
    gofer devices pair laptop --openclaw ~/.openclaw
    """
    if openclaw is None:
        made = call("POST", f"/devices/{_whole_id(name)}/pair", json={})
        return made, "It is paired. It connects with its next try."
    folder = openclaw.expanduser() / "identity"
    if (folder / "device.json").exists():
        raise ConfigError(f"{folder} has a device already. Name another folder, or remove device.json.")
    key = new_key()
    body: dict[str, Any] = {"name": name, "member": member, "public_key": key["public"]}
    made = call("POST", "/devices", json={**body, **({"scopes": scope} if scope else {})})
    write_identity(folder, key, made)
    return {"id": made["id"], "folder": str(folder)}, f"Paired. {folder} has its key and its token."


@app.command()
def remove(
    id: Annotated[str, typer.Argument(help="The device's id, from the list.", show_default=False)],
) -> Shown:
    """Forget a device and its token, at once.

    \b
    gofer devices remove 3f2a9c0d1e5b7a88
    """
    return call("DELETE", f"/devices/{_whole_id(id)}"), "It is gone."


def _whole_id(given: str) -> str:
    """A device by the beginning of its id, as the list shows it."""
    found = [each["id"] for each in call("GET", "/devices")["devices"] if each["id"].startswith(given)]
    return str(found[0]) if len(found) == 1 and given else given


def new_key() -> dict[str, str]:
    """Make a device's key, in the forms that its files and the server want."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = Ed25519PrivateKey.generate()
    public = key.public_key()
    raw = public.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return {
        "id": hashlib.sha256(raw).hexdigest(),
        "public": base64.urlsafe_b64encode(raw).rstrip(b"=").decode(),
        "private_pem": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        "public_pem": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode(),
    }


def write_identity(folder: Path, key: dict[str, str], made: dict[str, Any]) -> None:
    """Write the device's key and token into files that only their owner may read."""
    device = {"version": 1, "deviceId": key["id"], "publicKeyPem": key["public_pem"]}
    device["privateKeyPem"] = key["private_pem"]
    operator = {"token": made["token"], "role": "operator", "scopes": made["scopes"]}
    files = {
        "device.json": device,
        "device-auth.json": {"version": 1, "deviceId": key["id"], "tokens": {"operator": operator}},
    }
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in files.items():
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
