"""Running as a process: open everything, listen, and end in good order when told to."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import structlog
from starlette.types import ASGIApp

from gofer import __version__
from gofer.agent.models.catalogue import load_sdks
from gofer.app import Platform, open_app
from gofer.doctor import LOOPBACK, another_place
from gofer.doctor.model import keys_of
from gofer.errors import ConfigError, GoferError, StoreBusy, StoreError
from gofer.logs import RecentLines, goes_to_file, set_up_logs
from gofer.runs.shell_inspection import live_shells
from gofer.settings import Settings, prepare_data_dir, unknown_variables
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.sqlite import held
from gofer.supervision import give_signs_of_life, passed_socket
from gofer.vault.redaction import Redactor
from gofer.web.api import control_app
from gofer.web.app import RequestLog, public_app
from gofer.web.auth.client_address import Peers
from gofer.web.auth.members import ensure_owner, first_owner, new_link, owner_has_password, somebody_signed_in
from gofer.web.protocols import GatewayPort
from gofer.web.server import ConnectionLimit, limit_for, listening
from gofer.web.unix_socket import bind_socket, remove_socket, somebody_listens
from gofer_supervisor.system import notify_systemd

log = structlog.get_logger()

WEB, WORKER = "web", "worker"

INTERRUPTED = 130
PR_SET_DUMPABLE = 4
"""What Linux calls it, in sys/prctl.h."""
M_MMAP_THRESHOLD = -3
"""What glibc calls it, in malloc.h."""
LARGE_BLOCK = 1024 * 1024
SHORT_COLLECTIONS = (700, 10, 10)
"""Python's own thresholds, which a command raises while it loads: a server must not pause for long."""
LOAD_AFTER = 1.0
"""Seconds from being ready to the loading of SDKs."""
MAX_NAMED = 5
COMMANDS_TAKE = 10.0
"""Seconds to wait for a command that has the database file."""


def run(settings: Settings, *roles: str) -> None:
    """Serve until a signal says to stop. Raises GoferError when it cannot begin."""
    keep_memory_private()
    give_back_large_blocks()
    runner = asyncio.Runner(loop_factory=_loop_factory())
    with runner:
        runner.run(serve(settings, frozenset(roles)))


def keep_memory_private() -> None:
    """Let no crash write keys and words to disk, and no other process of the same user read them from memory. What
    is started from here on is not concerned: a program that is executed begins anew, but for the limit."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def give_back_large_blocks() -> None:
    """Have the C library return what is large as soon as it is free. glibc would keep it for the next of that size,
    in a heap for each thread: after a few large messages that is several times what is in use."""
    with contextlib.suppress(OSError, AttributeError):  # another C library, which has its own ways
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def serve(settings: Settings, roles: frozenset[str]) -> None:
    """The life of a process."""
    redactor = Redactor()
    recent = RecentLines()
    if calm := goes_to_file(settings):
        prepare_data_dir(settings)
    set_up_logs(settings, redactor, recent, to_file=calm)
    for name, near in unknown_variables().items():
        log.warning("settings.unknown", variable=name, nearest=near or None)
    stopping = _stop_on_signals()
    door = _door(settings) if WEB in roles else None
    try:
        await _until_commands_are_done(settings)
        async with open_app(settings, roles=roles, redactor=redactor) as platform:
            platform.recent_lines = recent
            link = await _first_link(platform) if door is not None else None
            async with _controlled(platform), _public(platform, door):
                # What start-up made stays for good: no collection need look at it again, and each pauses for less.
                gc.freeze()
                gc.set_threshold(*SHORT_COLLECTIONS)
                _say_ready(platform)
                if calm:
                    _say_calmly(platform)
                if link is not None:
                    _say_link(platform, link)
                elif calm and door is not None:
                    _say(
                        f"\nOpen {_base(platform)}/\n`{_our_name()} link` makes a link that signs you in.\n\n"
                    )
                loading = asyncio.create_task(_load_ahead(platform), name="sdks")
                alive = asyncio.create_task(give_signs_of_life(platform), name="watchdog")
                await stopping.wait()
                loading.cancel()
                log.info("process.stopping", running=platform.worker.running if platform.worker else 0)
                if calm:
                    _say("\nStopping. What is not finished goes on at the next start.\n")
                    await _say_left_running(platform)
                notify_systemd("STOPPING=1")
            alive.cancel()
            log.info("process.stopped")
    finally:
        if door is not None:
            door.close()


async def _say_left_running(platform: Platform) -> None:
    """Name the shells that live on: somebody who has stopped the server may think that nothing runs any more."""
    if not platform.settings.keep_shells or platform.worker is None:
        return
    left: list[str] = []
    with contextlib.suppress(StoreError):
        left = await platform.database.read(live_shells)
    if left:
        more = f" and {len(left) - MAX_NAMED} more" if len(left) > MAX_NAMED else ""
        _say(
            f"Shells that live on until then: {', '.join(left[:MAX_NAMED])}{more}.\n"
            f"`{_our_name()} shells list` shows them; GOFER_KEEP_SHELLS=false ends them with the server.\n"
        )


async def _load_ahead(platform: Platform) -> None:
    """Spare the first message to a model the wait for its SDK, once whoever waited for us to start is served."""
    if platform.worker is None:
        return
    await asyncio.sleep(LOAD_AFTER)
    try:
        catalogue = await keys_of(platform).catalogue(FIRST_WORKSPACE)
    except GoferError as error:
        log.warning("models.not_loaded", error=str(error))
        return
    if loaded := await load_sdks(catalogue.providers):
        gc.freeze()
        log.info("models.loaded", sdks=loaded)


async def _first_link(platform: Platform) -> str | None:
    """Who may come in: the owner's first link while nobody has, and nobody from elsewhere without a password."""
    settings = platform.settings
    await ensure_owner(platform)
    if settings.host not in LOOPBACK and not await platform.database.read(owner_has_password):
        raise ConfigError(
            f"No owner has a password yet, so Gofer does not listen on {settings.host}. Run `gofer members "
            "password owner` (or set GOFER_OWNER_PASSWORD), then start it again."
        )
    if await platform.database.read(somebody_signed_in):
        return None
    owner = await platform.database.write(first_owner)
    return await platform.database.write(new_link, member_id=owner.id)


def _say_link(platform: Platform, link: str) -> None:
    """On stdout, for the person who started it; the log, which is kept, has no part of it."""
    where = f"{_base(platform)}/link/{link}"
    _say(f"\nOpen {where}\nIt works once, for an hour; `{_our_name()} link` makes another.\n\n")


def _say_calmly(platform: Platform) -> None:
    """What a person at a terminal wants to know; the log has the rest."""
    settings, name = platform.settings, _our_name()
    kind = "SQLite" if settings.sqlite_path is not None else "Postgres"
    where = f" at {platform.url}" if platform.url else ""
    _say(
        f"\nGofer {__version__} is ready{where}\n"
        f"  data   {settings.data_dir} ({kind})\n"
        f"  log    {settings.log_path} (`{name} logs --follow` shows it)\n"
        f"  stop   Ctrl-C\n"
    )


def _base(platform: Platform) -> str:
    return platform.settings.public_url.rstrip("/") or platform.url


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _our_name() -> str:
    """How the person who started it can call it, whether or not the environment is on their path."""
    started = Path(sys.argv[0])
    if shutil.which("gofer") or started.name != "gofer":
        return "gofer"
    here = Path.cwd()
    below = started.is_relative_to(here) and here != Path(here.anchor)
    return str(started.relative_to(here) if below else started)


def _stop_on_signals() -> asyncio.Event:
    """Set by the first signal; the second ends the process where it stands, which costs nothing but time."""
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            os._exit(INTERRUPTED)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    return stopping


async def _until_commands_are_done(settings: Settings) -> None:
    """A command has the database file for a moment; a server, which answers at its socket, for good."""
    path = settings.sqlite_path
    give_up = time.monotonic() + COMMANDS_TAKE
    while path is not None and path.exists() and time.monotonic() < give_up:
        with contextlib.suppress(StoreBusy), held(path):
            return
        if somebody_listens(settings.socket_path):
            return
        log.info("store.waiting", file=str(path))
        await asyncio.sleep(0.5)


def _door(settings: Settings) -> socket.socket:
    passed = passed_socket()
    if passed is None and settings.gateway_port:
        _listen_for_gateway(settings).close()  # a taken one is told at once
    return passed or _listen(settings)


def check_port(settings: Settings) -> None:
    """Raise ConfigError when it could not be listened on."""
    _listen(settings).close()


def _listen(settings: Settings) -> socket.socket:
    """Take the port before anything else is begun, so that a taken one is told at once."""
    try:
        bound = _bind(settings.host, settings.port)
    except (OSError, UnicodeError) as error:
        raise ConfigError(_taken(settings, error)) from error
    if settings.host not in LOOPBACK:
        log.warning("web.open_to_network", host=settings.host, fix="put a reverse proxy with TLS in front")
    return bound


def _listen_for_gateway(settings: Settings) -> socket.socket:
    try:
        return _bind(settings.host, settings.gateway_port)
    except (OSError, UnicodeError) as error:
        where, why = f"{settings.host}:{settings.gateway_port}", getattr(error, "strerror", None) or error
        raise ConfigError(
            f"Cannot listen on {where}: {why}. Set GOFER_GATEWAY_PORT to another one."
        ) from error


def _bind(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except (OSError, UnicodeError):
        bound.close()
        raise
    bound.setblocking(False)
    return bound


def _taken(settings: Settings, error: Exception) -> str:
    where = f"{settings.host}:{settings.port}"
    if somebody_listens(settings.socket_path):
        return f"Gofer is already running here, and {where} is taken. `gofer status` says more."
    why = getattr(error, "strerror", None) or str(error)
    option, value = another_place(settings, error)
    what = "another port" if option == "port" else "an address of this machine"
    return f"Cannot listen on {where}: {why}. Give {what}: gofer serve --{option} {value}"


@contextlib.asynccontextmanager
async def _public(platform: Platform, door: socket.socket | None) -> AsyncIterator[None]:
    """The door to the network. When it closes, the worker ends what it runs while commands still get through."""
    if door is None:
        yield
    else:
        host, port = door.getsockname()[:2]
        platform.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        app = RequestLog(public_app(platform), Peers(platform.settings))
        limit = limit_for(platform.settings)
        async with listening(app, door, limit):
            gateway = asyncio.create_task(_serve_gateway(platform.settings, app, limit), name="gateway-port")
            yield
            # Who watches would otherwise hold the door open.
            await platform.follower.close()
            gateway.cancel()
            await asyncio.gather(gateway, return_exceptions=True)
    if platform.worker is not None:
        await platform.worker.stop()


async def _serve_gateway(settings: Settings, app: ASGIApp, limit: ConnectionLimit) -> None:
    """Serve the gateway at a port of its own until cancelled. The release before this one may have the port still."""
    told = False
    while settings.gateway_port:
        try:
            bound = _listen_for_gateway(settings)
        except ConfigError as error:
            if not told:
                log.warning("gateway.port_taken", error=str(error))
            told = True
            await asyncio.sleep(1)
            continue
        with contextlib.closing(bound):
            async with listening(GatewayPort(app), bound, limit):
                await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def _controlled(platform: Platform) -> AsyncIterator[None]:
    """The door for commands, unless another process of this data directory has it."""
    path = platform.settings.socket_path
    bound = bind_socket(path)
    if bound is None:
        log.info("control.elsewhere", socket=str(path))
        yield
        return
    made = path.stat()
    try:
        async with listening(control_app(platform), bound):
            yield
    finally:
        remove_socket(path, made)


def _say_ready(platform: Platform) -> None:
    log.info(
        "process.ready",
        version=__version__,
        process=platform.owner,
        pid=os.getpid(),
        roles=sorted(platform.roles),
        url=platform.url,
        database=platform.database.dialect,
    )
    notify_systemd("READY=1")
