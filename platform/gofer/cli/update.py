"""`gofer update`: releases that `gofer up` can run. Built, signed, staged, approved, deployed and taken back."""

from __future__ import annotations

import getpass
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gofer.cli.exit_codes import FAILED, CommandFailed
from gofer.cli.output import AsJson, Shown, ago, facts, group, plain, show, table

if TYPE_CHECKING:
    from gofer.settings import Settings
    from gofer_supervisor.home import Home

app = group("Releases that `gofer up` runs: stage, deploy and take them back.")

LOOK_EVERY = 0.2
SUPERVISOR_RESTART_TIMEOUT = 60.0
"""Seconds to wait for a supervisor that has ended: what keeps it running starts it again."""

Build = Annotated[str, typer.Argument(help="A release, as `gofer update list` shows it.", show_default=False)]


@app.command("list")
def list_releases() -> Shown:
    """List the releases that are here, and which of them runs.

    \b
    gofer update list
    """
    from gofer.releases.lifecycle import last_failure, release_states, under_way

    home, _ = _home()
    states = release_states(home)
    found = [{**one, "state": states.get(build, "")} for build, one in home.manifests().items()]
    names = ("build", "state", "source", "signed_by", "approved_by")
    rows = [tuple(one.get(name, "") for name in names) for one in found]
    deploying = under_way(home)

    def tell() -> None:
        columns = ("build", "state", "from", "signed by", "approved by")
        table(columns, rows, empty="None yet: `gofer up` has not run here.")
        if found and not home.supervised():
            print("\nNo supervisor runs here, so none of them does: gofer up")
        if deploying:
            print(f"\n{progress(deploying)}")
        if failure := last_failure(home):
            print(f"\n{failed(failure)}")
        for build in [build for build, state in states.items() if state == "waits for approval"]:
            print(f"\nTo let {build} be deployed: gofer update approve {build}")

    return {"releases": found, "deploying": deploying}, tell


def progress(deploying: dict[str, Any]) -> str:
    """How far a deployment is, for people."""
    said = (
        f"{deploying['build']}: {deploying['doing']}, since {ago(deploying['since']).removesuffix(' ago')}."
    )
    if deploying["next"]:
        said += f" Next: {'; '.join(deploying['next'])}."
    if until := deploying["until"]:
        said += f" If all goes well, it has proved itself in {max(0, round(until - time.time()))} s."
    if deploying["step"] != "revert" and deploying["previous"]:
        said += f" If it fails, {deploying['previous']} runs again."
    return plain(said)


def failed(failure: dict[str, Any]) -> str:
    """What became of a release that was taken back, or has none before it, for people."""
    if failure["to"] == failure["build"]:
        return plain(
            f"{failure['build']} runs and does not work as it should, and there is none to go back to. "
            f"{failure['reason']} It can prove itself when it is started again."
        )
    return plain(
        f"{failure['build']} was taken back {ago(failure['at'])}, and {failure['to']} runs again. {failure['reason']}"
    )


@app.command("show")
def show_release(build: Build) -> Shown:
    """Show where a release is from, what its check found, and the whole diff of a change that an agent made.

    \b
    gofer update show 0.2.0-3f2a9c01b7de
    """
    from gofer.releases.lifecycle import manifest_in, release_states

    home, _ = _home()
    found = manifest_in(home, build)
    found = {**found, "state": release_states(home).get(build, "")}
    change, ended = found.get("change") or {}, found.get("taken_back") or {}
    names = (
        "build",
        "state",
        "version",
        "revision",
        "source",
        "signed_by",
        "checked",
        "schema",
        "approved_by",
    )
    lines = [(name.replace("_", " "), str(found.get(name) or "")) for name in names]
    lines += [("taken back", f"{ago(ended['at'])}: {ended['reason']}")] if ended else []
    lines += [(name, str(change[name])) for name in ("agent", "by", "summary") if change]

    def tell() -> None:
        facts(lines)
        print(f"\n{change['diff']}" if change else "", end="")

    return found, tell


@app.command()
def check(
    index: Annotated[
        str,
        typer.Argument(
            help="A directory with wheels and their manifests, or the address of an index.",
            show_default=False,
        ),
    ],
) -> Shown:
    """Look for a newer release that is complete and signed with a trusted key.

    \b
    gofer update check /mnt/releases
    gofer update check https://releases.example.org/gofer.json
    """
    from gofer.releases.index import recommended

    home, _ = _home()
    found, refused = recommended(home, index)
    said = [f"{one['version']} is there. To stage it: gofer update stage {one['wheel']}" for one in found[:1]]
    said += [f"{one['version']} is there and cannot be staged: {one['reason']}" for one in refused]
    told = {"releases": found, "refused": refused}
    return told, "\n".join(map(plain, said)) or "There is nothing newer."


@app.command()
def build(
    source: Annotated[Path, typer.Argument(help="A source tree of Gofer.", show_default=False)],
    to: Annotated[Path, typer.Option(help="Where to put the wheel and its manifest.")] = Path("dist"),
    key: Annotated[
        Path | None, typer.Option(help="An Ed25519 key in PEM form that signs the release.")
    ] = None,
    revision: Annotated[str, typer.Option(help="The git revision of the source.")] = "",
) -> Shown:
    """Build a release from a source tree. Nothing of the tree is run.

    \b
    gofer update build . --key release.pem
    """
    from gofer.releases.stage import build_release

    wheel, manifest = build_release(source, to, revision=revision, key=key)
    made = {"wheel": str(wheel), "manifest": str(manifest)}
    return made, lambda: facts(list(made.items()))


@app.command()
def trust(
    key: Annotated[
        Path | None,
        typer.Argument(help="An Ed25519 public key in PEM form. Without it, the trusted keys are listed."),
    ] = None,
) -> Shown:
    """Trust releases that are signed with a key, or list the trusted keys.

    \b
    openssl genpkey -algorithm ed25519 -out release.pem
    openssl pkey -in release.pem -pubout -out release.pub.pem
    gofer update trust release.pub.pem
    gofer update trust
    """
    from gofer.releases.keys import trust_key, trusted_keys

    home, _ = _home()
    if key is None:
        ids = sorted(trusted_keys(home))
        return {"keys": ids}, "\n".join(ids) or "No key is trusted."
    id_ = trust_key(home, key)
    _record(home, "trust", id_)
    return {"key": id_}, f"Releases signed with {id_} are trusted from now on."


@app.command()
def untrust(
    key: Annotated[
        str, typer.Argument(help="The key, as `gofer update trust` lists it.", show_default=False)
    ],
) -> Shown:
    """Stop trusting a key. A release that runs goes on; a staged one is not deployed.

    \b
    gofer update untrust 3f2a9c01b7de44aa
    """
    from gofer.releases.keys import untrust_key

    home, _ = _home()
    untrust_key(home, key)
    _record(home, "untrust", key)
    return {"key": key}, f"Releases signed with {key} are not trusted any more."


@app.command()
def stage(
    wheel: Annotated[
        str,
        typer.Argument(help="The wheel, by path or address; its manifest is beside it.", show_default=False),
    ],
    unsigned: Annotated[
        bool, typer.Option("--unsigned", help="Accept this file although no trusted key has signed it.")
    ] = False,
) -> Shown:
    """Check a release and put it where `gofer up` can run it. It does not run yet.

    \b
    gofer update stage dist/gofer-0.2.0-py3-none-any.whl
    gofer update stage https://releases.example.org/gofer-0.2.0-py3-none-any.whl
    """
    from gofer.releases.index import download, is_address
    from gofer.releases.stage import stage as stage_release
    from gofer.releases.trial import try_release

    home, settings = _home()
    print("The release is checked in a sandbox. That can take a minute.", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="gofer-release-") as folder:
        place = download(wheel, Path(folder)) if is_address(wheel) else Path(wheel)
        staged = stage_release(
            home, place, lambda release: try_release(release, settings.sqlite_path), unsigned=unsigned
        )
    _record(home, "stage", staged.build, file=wheel, signed_by=staged.signed_by, unsigned=unsigned)
    said = f"Staged as {staged.build}. To let it be deployed: gofer update approve {staged.build}"
    return {"build": staged.build, "version": staged.version, "signed_by": staged.signed_by}, said


@app.command()
def approve(build: Build) -> Shown:
    """Let a staged release be deployed.

    \b
    gofer update approve 0.2.0-3f2a9c01b7de
    """
    from gofer.releases.lifecycle import approve as approve_release

    home, _ = _home()
    approve_release(home, build, by=_who())
    _record(home, "approve", build)
    return {"build": build}, f"Approved. To run it: gofer update deploy {build}"


@app.command()
def deploy(
    build: Build,
    wait: Annotated[bool, typer.Option(help="Wait until it serves, or was taken back.")] = True,
    as_json: AsJson = False,
) -> None:
    """Make `gofer up` run an approved release. The store is copied first; if the release does not work, the
    one before runs again.

    \b
    gofer update deploy 0.2.0-3f2a9c01b7de
    """
    from gofer.releases.lifecycle import deploy as deploy_release

    home, _ = _home()
    _require_supervisor(home)
    deploy_release(home, build, by=_who())
    _record(home, "deploy", build)
    outcome = _outcome(home, build) if wait else {"state": "asked for"}
    why = plain(outcome["reason"]) if outcome.get("reason") else ""
    show({"build": build, **outcome}, as_json, lambda: print(f"{build}: {outcome['state']}. {why}".rstrip()))
    if outcome["state"] == "taken back":
        raise typer.Exit(FAILED)


@app.command()
def rollback(
    wait: Annotated[bool, typer.Option(help="Wait until the release before serves.")] = True,
) -> Shown:
    """Make `gofer up` run the release before the current one again.

    \b
    gofer update rollback
    """
    from gofer.releases.lifecycle import roll_back
    from gofer_supervisor.home import CURRENT

    home, _ = _home()
    _require_supervisor(home)
    left = home.linked(CURRENT)
    before = roll_back(home, by=_who())
    _record(home, "rollback", before)
    outcome = _outcome(home, left) if wait else {}
    if outcome.get("state") == "runs":
        raise CommandFailed(f"{left} still runs: `gofer up` found no release to go back to.", FAILED)
    state, why = ("runs again", outcome["reason"]) if wait else ("asked for", "")
    return {"to": before, "state": state, "reason": why}, plain(f"{before}: {state}. {why}").rstrip()


@app.command()
def drop(build: Build) -> Shown:
    """Remove a staged release. One that runs, or that may have to come back, stays.

    \b
    gofer update drop 0.2.0-3f2a9c01b7de
    """
    from gofer.releases.lifecycle import drop as drop_release

    home, _ = _home()
    drop_release(home, build)
    _record(home, "drop", build)
    return {"build": build}, f"Release {build} is removed."


def _record(home: Home, action: str, subject: str, **facts: Any) -> None:
    from gofer.releases.lifecycle import record_command

    record_command(home, action, subject, by=_who(), **facts)


def _outcome(home: Home, build: str) -> dict[str, Any]:
    """Wait until a release is on probation with everything ready, or was taken back and the one before serves."""
    from gofer_supervisor.home import CURRENT

    seen = time.monotonic()
    while True:
        asked, trial = home.asked(), home.load().trial
        if asked is None and (trial is None or trial["build"] != build):
            if home.linked(CURRENT) == build:
                return {"state": "runs"}
            ended = home.manifests().get(build, {}).get("taken_back") or {}
            return {"state": "taken back", "reason": str(ended.get("reason", ""))}
        if asked is None and trial is not None and trial["step"] == "prove" and trial.get("ready"):
            return {"state": "runs, on probation"}
        seen = time.monotonic() if home.supervised() else seen
        if time.monotonic() > seen + SUPERVISOR_RESTART_TIMEOUT:
            raise CommandFailed("The supervisor has ended. It goes on where it was: gofer up", FAILED)
        time.sleep(LOOK_EVERY)


def _home() -> tuple[Home, Settings]:
    from gofer.releases.lifecycle import open_home
    from gofer.settings import load_settings

    settings = load_settings()
    home = open_home(settings)
    home.prepare()
    return home, settings


def _require_supervisor(home: Home) -> None:
    if not home.supervised():
        raise CommandFailed("No supervisor runs here. Start Gofer with `gofer up`.", FAILED)


def _who() -> str:
    """Who gives the command, for the log: whoever can use this home acts as the owner."""
    try:
        return f"{getpass.getuser()} (command line)"
    except (OSError, KeyError):
        return "command line"
