"""Settings: one class, from `GOFER_*` variables or `GOFER_*_FILE` files that hold the value."""

from __future__ import annotations

import os
import stat
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gofer.database_url import check_address
from gofer.errors import ConfigError
from gofer.validation import first_error

PREFIX = "GOFER_"


def listed(value: str) -> tuple[str, ...]:
    """The parts of a list with commas."""
    return tuple(part.strip().lower() for part in value.split(",") if part.strip())


def default_data_dir() -> Path:
    """Where the platform keeps per-user data."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "gofer"


class Settings(BaseModel):
    """Everything a person may set. Each field is documented in docs/operations.md."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True, validate_default=True)

    data_dir: Path = Field(
        default_factory=default_data_dir, description="Where the database, keys and socket live."
    )
    home: Path | None = Field(
        default=None,
        description="Where `gofer up` keeps releases and its state; `home` in the data directory if not given.",
    )
    build: str = Field(
        default="", description="The build of the release that runs; `gofer up` sets it, nobody else."
    )
    database_url: str = Field(
        default="",
        description="Empty for SQLite in the data directory, or postgresql://user:password@host/name.",
    )
    redis_url: str = Field(
        default="",
        description="Optional: wakes workers and carries live words between machines. Holds nothing.",
    )
    master_key: str = Field(
        default="",
        repr=False,
        description="The master key (base64, 32 bytes) when not kept in the data directory.",
    )
    rows_key: str = Field(
        default="",
        description=(
            "The id of the key that rows are signed with, where the data directory is not kept "
            "(see `rows-signed.json`)."
        ),
    )
    host: str = Field(default="127.0.0.1", description="The address to listen on.")
    port: int = Field(default=8765, ge=0, le=65535, description="The port to listen on; 0 takes a free one.")
    gateway_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="A port of its own for OpenClaw's gateway protocol, where its clients expect 18789; 0 for none.",
    )
    public_url: str = Field(
        default="", description="How services reach this server, e.g. https://gofer.example.org."
    )
    allowed_hosts: str = Field(
        default="",
        description="Further names this server is visited by, separated by commas; addresses always work.",
    )
    trusted_proxies: str = Field(
        default="",
        description="Addresses or networks of reverse proxies whose X-Forwarded-* headers are believed.",
    )
    owner_password: str = Field(
        default="", repr=False, description="The first owner's password; used while no owner has one."
    )
    slots: int = Field(default=16, ge=1, le=1000, description="Jobs one process runs at once.")
    max_running: int | None = Field(
        default=None, ge=1, description="Jobs all processes together run at once."
    )
    max_waiting: int = Field(
        default=10_000, ge=1, description="Unfinished jobs above which new webhooks are answered 503."
    )
    lease: float = Field(
        default=30, gt=0, description="Seconds a silent worker keeps its jobs; renewed each third."
    )
    poll_interval: float = Field(
        default=1, gt=0, description="Seconds between looks for work nobody announced."
    )
    catch_up_every: float = Field(
        default=900, gt=0, description="Seconds between looks for what a service could not deliver."
    )
    stop_within: float = Field(default=20, ge=0, description="Seconds a stopping process gives its jobs.")
    request_timeout: float = Field(
        default=20, gt=0, description="Seconds a call to an outside service may take."
    )
    max_body: int = Field(default=25 * 1024 * 1024, ge=1024, description="Bytes of a webhook body at most.")
    body_timeout: float = Field(default=10, gt=0, description="Seconds a webhook body may take to arrive.")
    max_from_stranger: int = Field(
        default=30,
        ge=1,
        description="Messages to an agent, and look-ups of who wrote, of one unknown author within an hour.",
    )
    max_connections: int | None = Field(
        default=None,
        ge=16,
        description="Open connections at most; half of the descriptors the process may open if not given.",
    )
    max_per_address: int = Field(
        default=200,
        ge=4,
        description="Open connections of one address at most; trusted proxies have no such bound.",
    )
    keep_finished: float = Field(
        default=30 * 86400,
        ge=0,
        description="Seconds finished jobs, their events and old deliveries are kept.",
    )
    memory_v1: bool = Field(
        default=True,
        description="Memory ids, tombstones and the recall tool. Off: a result that is cleared is gone for its run.",
    )
    automatic_recall: bool = Field(
        default=True,
        description="Show an agent what memory has to say when a run begins, in at most 600 tokens.",
    )
    memory_quiet: float = Field(
        default=900,
        ge=1,
        description="Seconds without a message after which a conversation is summed up in the background.",
    )
    workers_v1: bool = Field(
        default=True,
        description="Whether runs may delegate tasks to worker runs. Off: there is no `delegate`.",
    )
    workers: Literal["model", "local"] = Field(
        default="model",
        description="model: worker runs call models. local: only planners do; research and status are done by rule.",
    )
    worker_slots: int = Field(default=4, ge=1, le=1000, description="Tasks one process works on at once.")
    max_tasks: int | None = Field(
        default=None, ge=1, description="Tasks all processes together work on at once."
    )
    agent_tasks: int = Field(default=4, ge=1, description="Tasks of one agent that are worked on at once.")
    task_queue: int = Field(
        default=32, ge=1, description="Tasks of one agent that may wait; a run that wants more is refused."
    )
    embeddings_url: str = Field(
        default="",
        description="An OpenAI-compatible server for embeddings; off when empty.",
    )
    embeddings_model: str = Field(default="", description="The model that makes embeddings.")
    embeddings_secret: str = Field(
        default="",
        description="The name of the secret with the key for embeddings; empty when it needs none.",
    )
    max_goals: int = Field(
        default=32, ge=1, le=1000, description="Goals of one agent that may be under way at once."
    )
    goal_parallel: int = Field(
        default=2, ge=1, le=20, description="Tasks of one goal that may run side by side."
    )
    goal_dollars: float = Field(
        default=5, gt=0, description="Dollars a goal may cost before it asks whether to go on."
    )
    goal_approval: bool = Field(
        default=False, description="Whether an owner has to approve a goal's plan before work on it begins."
    )
    runtime_heartbeat: float = Field(
        default=15,
        ge=0.1,
        le=600,
        description="Seconds between two announcements of an external agent's runtime; three missed make it stale.",
    )
    runtime_resume_within: float = Field(
        default=12 * 3600,
        ge=0,
        description="Seconds of silence after which an external agent's session is not resumed any more.",
    )
    runtime_crashes: int = Field(
        default=3, ge=1, description="Crashes of a runtime in ten minutes after which it is not tried."
    )
    trigger_quiet: float = Field(
        default=20, ge=0, le=600, description="Seconds a terminal has to be quiet before text goes into it."
    )
    trigger_look_again: float = Field(
        default=5, ge=0.1, le=60, description="Seconds between two looks at a terminal that is not quiet."
    )
    trigger_defer: float = Field(
        default=60,
        ge=0,
        le=90,
        description="Seconds for which somebody who types may put off a delivery to their terminal.",
    )
    trigger_turns: int = Field(
        default=20,
        ge=1,
        description="Triggers in a conversation, without a word from a person, after which the agent is blocked there.",
    )
    trigger_findings: int = Field(
        default=3, ge=2, description="Equal answers in a row after which an external agent is blocked."
    )
    posts_per_minute: int = Field(
        default=20, ge=1, description="Messages of one external agent in one conversation in a minute."
    )
    triggers_per_agent: int = Field(
        default=60, ge=1, description="Triggers of one external agent in an hour."
    )
    triggers_per_conversation: int = Field(
        default=30, ge=1, description="Triggers of external agents in one conversation in an hour."
    )
    anthropic_key: str = Field(
        default="",
        repr=False,
        description="A key for Anthropic's API; better kept in the vault as anthropic_key.",
    )
    anthropic_base_url: str = Field(default="", description="Another address that speaks Anthropic's API.")
    openai_key: str = Field(
        default="", repr=False, description="A key for an OpenAI-compatible server; better kept in the vault."
    )
    openai_base_url: str = Field(
        default="", description="An OpenAI-compatible server, e.g. http://127.0.0.1:11434/v1."
    )
    sandbox: Literal["bubblewrap", "docker", "unconfined", "off"] = Field(
        default="bubblewrap",
        description="Where commands run. unconfined is for development: no isolation at all.",
    )
    sandbox_image: str = Field(
        default="debian:12",
        description="The image that shells run in, with GOFER_SANDBOX=docker; it needs bash.",
    )
    sandbox_hosts: str = Field(
        default="",
        description="Hosts a shell may reach, separated by commas; *.example.org for all below one.",
    )
    sandbox_narrowed_hosts: str = Field(
        default="",
        description="Hosts a shell may reach also once its run has read strangers' text, separated by commas.",
    )
    sandbox_reserve: int = Field(
        default=1 << 30,
        ge=0,
        description="Bytes of free disk below which no shell's files may grow.",
    )
    sandbox_images: bool = Field(
        default=False,
        description="Whether, as root and without project quotas, each shell's files are in an image of limited size.",
    )
    spare_shells: int = Field(
        default=1,
        ge=0,
        le=8,
        description="Shells made ahead while there is nothing else to do, for new conversations.",
    )
    keep_shells: bool = Field(
        default=True,
        description="Whether shells live on while the server is down, to be found again by the next.",
    )
    agent_runtime_v1: bool = Field(
        default=True,
        description="Whether agents have folders with identity layers, and the session protocol `agent.run`.",
    )
    timezone: str = Field(default="UTC", description="The workspace's time zone, e.g. Europe/Berlin.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="How much to log."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="auto is console on a terminal and json elsewhere."
    )

    log_to: Literal["auto", "stderr", "file"] = Field(
        default="auto",
        description="Where the log goes: stderr, or logs/gofer.log in the data directory; auto is file on a terminal.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_environment(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {**_given(), **values}

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str) -> str:
        scheme = value.partition("://")[0].split("+")[0]
        if value and scheme not in ("sqlite", "postgresql", "postgres"):
            raise ValueError("must be empty, sqlite:///path or postgresql://user:password@host/name")
        if scheme.startswith("postgres"):
            check_address(value)
        return value

    @field_validator("redis_url")
    @classmethod
    def _known_redis(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            usable = parts.scheme == "unix" or (parts.scheme in ("redis", "rediss") and parts.port != 0)
        except ValueError:
            usable = False
        if value and not usable:
            raise ValueError("must be redis://host:port/number, rediss://… with TLS, or unix:///path")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: str) -> str:
        for part in listed(value):
            try:
                ip_network(part, strict=False)
            except ValueError:
                raise ValueError("must be addresses or networks such as 10.0.0.0/8") from None
        return value

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError("must be a time zone such as Europe/Berlin") from None
        return value

    @model_validator(mode="after")
    def _public_url_is_one(self) -> Settings:
        if self.public_url and urlsplit(self.public_url).scheme not in ("http", "https"):
            raise ValueError("GOFER_PUBLIC_URL must begin with https:// (or http:// on a private network)")
        return self

    @property
    def sqlite_path(self) -> Path | None:
        """The database file, or None on Postgres."""
        if not self.database_url:
            return self.data_dir / "gofer.db"
        if self.database_url.startswith("sqlite"):
            return Path(self.database_url.partition(":///")[2]).absolute()
        return None

    @property
    def sandbox_host_list(self) -> tuple[str, ...]:
        """The hosts a shell may reach."""
        return listed(self.sandbox_hosts)

    @property
    def sandbox_narrowed_host_list(self) -> tuple[str, ...]:
        """Hosts that stay reachable in a narrowed run."""
        return listed(self.sandbox_narrowed_hosts)

    @property
    def socket_path(self) -> Path:
        """Where a running server listens for the command line."""
        return self.data_dir / "gofer.sock"

    @property
    def home_path(self) -> Path:
        """Where the supervisor keeps releases and its state."""
        return self.home or self.data_dir / "home"

    @property
    def log_path(self) -> Path:
        """Where the log is kept when it goes to a file."""
        return self.data_dir / "logs" / "gofer.log"

    @property
    def key_path(self) -> Path:
        """Where the master key is kept unless it is given."""
        return self.data_dir / "master.key"


def _given() -> dict[str, str]:
    """What the environment says. `GOFER_X_FILE=/run/secrets/x` means what `GOFER_X=<its content>` means, unless that is
    there too; empty is as good as unset."""
    given = {name.upper(): value for name, value in os.environ.items()}
    found = {}
    for name in Settings.model_fields:
        variable = f"{PREFIX}{name.upper()}"
        content = _content_of(f"{variable}_FILE")
        if value := given.get(variable) or content:
            found[name] = value
    return found


def _content_of(variable: str) -> str:
    """The content of the file that a variable names."""
    path = os.environ.get(variable)
    if not path:
        return ""
    try:
        if variable == f"{PREFIX}MASTER_KEY_FILE":
            _refuse_open_file(Path(path))
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{variable} cannot be read: {error}.") from error


def _refuse_open_file(path: Path) -> None:
    """A master key that others can read is none. Containers mount secrets as 0444 where only they see them."""
    if path.stat().st_mode & 0o077 and not path.resolve().is_relative_to("/run/secrets"):
        raise ConfigError(f"Others may read the master key in {path}. Run: chmod 600 {path}")


def load_settings(**overrides: Any) -> Settings:
    """Read the environment; raises ConfigError naming the variable that is wrong."""
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        place, words = first_error(error)
        name = f"{PREFIX}{'_'.join(place).upper()}" if place else ""
        # Our own messages go on from the variable's name; pydantic's are sentences of their own.
        between = ": " if words[:1].isupper() else " "
        raise ConfigError((f"{name}{between}{words}" if name else words) + ".") from None


_OTHERS = ("CRASH_AT", "TOKEN", "CHROMIUM", "BROWSER_TESTS", "ON_PROBATION")
"""Variables that are ours but no settings: for tests and scripts, the token in an example, and what the supervisor
tells a process."""


def unknown_variables() -> dict[str, str]:
    """`GOFER_*` variables that mean nothing, each with the known name nearest to it, if any is near."""
    known = {name.upper() for name in Settings.model_fields}
    known |= {f"{name}_FILE" for name in known} | set(_OTHERS)
    given = {name.removeprefix(PREFIX) for name in os.environ if name.startswith(PREFIX)}
    unknown = sorted(name for name in given - known if not name.startswith("TEST_"))
    near = {name: get_close_matches(name, sorted(known), n=1) for name in unknown}
    return {PREFIX + name: PREFIX + found[0] if found else "" for name, found in near.items()}


ANOTHER_DIRECTORY = "It is not Gofer's alone: choose another directory with GOFER_DATA_DIR."


def may_be_closed(path: Path) -> bool:
    """Whether a directory is ours to take from others: not a shared one, and empty or with our own files in it."""
    try:
        if path.stat().st_mode & stat.S_ISVTX:
            return False
        inside = os.listdir(path)
    except OSError:
        return False
    return not inside or not {"gofer.db", "master.key"}.isdisjoint(inside)


def prepare_data_dir(settings: Settings) -> None:
    """Make the data directory for this user alone; refuse one that others may write to."""
    path = settings.data_dir
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(
            f"The data directory {path} cannot be made: {error}. Set GOFER_DATA_DIR."
        ) from error
    if mode & 0o022:
        if not may_be_closed(path):
            raise ConfigError(f"Others may write to the data directory {path}. {ANOTHER_DIRECTORY}")
        raise ConfigError(f"Others may write to the data directory. Run: chmod go-w {path}")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(
            f"The data directory {path} is not writable. Set GOFER_DATA_DIR, or run: chown $USER {path}"
        )
