"""The host's own file, `runtimes.toml`: which agents are here, how to reach them, and how to start them."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gofer.errors import ConfigError
from gofer.validation import first_error

MAX_FILE = 1024 * 1024
NAME = r"^[a-z0-9][a-z0-9_-]{0,39}$"
SHELLS = frozenset(
    {"ash", "bash", "csh", "dash", "elvish", "fish", "ksh", "nu", "pwsh", "sh", "tcsh", "xonsh", "zsh"}
)
EDITORS = frozenset({"emacs", "ed", "hx", "kak", "less", "man", "mcedit", "micro", "more", "most", "nano", "nvim",
                     "vi", "view", "vim", "vim.basic", "vim.tiny"})  # fmt: skip
TMUX_FOLDER = "/tmp"  # noqa: S108 # where tmux itself has its sockets, in a folder of the user's own
USUAL_ENVIRONMENT = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
                     "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")  # fmt: skip
"""What every program gets; a runtime's `env` names what it gets besides."""


def _command(words: list[str]) -> list[str]:
    if any("\0" in word for word in words) or (words and not words[0]):
        raise ValueError('should be a list of words such as ["claude", "--continue"]')
    return words


def _folder(value: str) -> str:
    path = Path(value).expanduser()
    if not path.is_absolute() or not path.is_dir():
        raise ValueError("should be a folder that exists, from the root or ~ on")
    return str(path)


def _socket(value: str) -> str:
    """The path of a tmux server's socket; a bare name is one that `tmux -L` was given."""
    if not value or "/" in value:
        return os.path.expanduser(value)
    return os.path.join(os.environ.get("TMUX_TMPDIR") or TMUX_FOLDER, f"tmux-{os.geteuid()}", value)


def _programs(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _no_shells(names: list[str]) -> list[str]:
    for name in names:
        if not name.strip() or "/" in name:
            raise ValueError(f"{name!r} is no name of a program: write its last part, such as claude")
        if name in SHELLS | EDITORS:
            raise ValueError(f"{name} is no agent: what people write would be commands to it")
    return names


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is no regular expression ({error})") from None
    return value


Command = Annotated[list[str], AfterValidator(_command)]
Folder = Annotated[str, AfterValidator(_folder)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class _Runtime(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    agent: str = Field(pattern=NAME)
    """The agent of Gofer that it is."""
    cwd: Folder = Field(default="~", validate_default=True)
    """Where its commands run."""
    env: list[VariableName] = []
    """Variables of the host's environment that they get besides the usual ones."""

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """What a program of this runtime is given of the host's environment."""
        return {name: own[name] for name in (*USUAL_ENVIRONMENT, *self.env) if name in own}


class TmuxSettings(_Runtime):
    """An agent in a pane of tmux."""

    kind: Literal["tmux"]
    pane: str = Field(default="", max_length=200, pattern=r"^[^-\x00-\x1f][^\x00-\x1f]*$|^$")
    """Which pane, as tmux names it: `work:agent.0`, `%3`. It is looked for when the host starts."""
    program: Annotated[
        list[str], BeforeValidator(_programs), AfterValidator(_no_shells), Field(min_length=1, max_length=10)
    ]
    """The agent's program, by name. Nothing is typed while another one is in front."""
    prompt: Annotated[str, AfterValidator(_pattern)] = ""
    """A regular expression that the line with the cursor, without spaces at its end, fits while the agent waits."""
    paste: Literal["bracketed", "line"] = "bracketed"
    """`line` puts a text on one line, for programs that do not know bracketed paste."""
    socket: Annotated[str, AfterValidator(_socket)] = ""
    """The tmux server's socket, as a path or as the name that `tmux -L` takes; by default the user's own server."""
    resume: Command = []
    spawn: Command = []
    ready_within: float = Field(default=30, gt=0, le=600)
    """Seconds for a program that was started to show its prompt."""

    @property
    def commands(self) -> list[list[str]]:
        """What may be started."""
        return [self.resume, self.spawn]


class AcpSettings(_Runtime):
    """An agent that speaks the Agent Client Protocol."""

    kind: Literal["acp"]
    command: Annotated[Command, Field(min_length=1)]
    ready_within: float = Field(default=30, gt=0, le=600)

    @property
    def commands(self) -> list[list[str]]:
        """What may be started."""
        return [self.command]


RuntimeSettings = Annotated[TmuxSettings | AcpSettings, Field(discriminator="kind")]


class HostSettings(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(default_factory=lambda: _own_name(), pattern=NAME)
    """What Gofer calls this host."""
    url: str = Field(default="", pattern=r"^$|^https?://[^\s]+$")
    """Where Gofer is; by default on this machine."""
    state: str = ""
    """Where the host keeps what it must not forget; by default below `~/.local/state/gofer`."""
    runtimes: dict[Annotated[str, Field(pattern=NAME)], RuntimeSettings] = Field(min_length=1)

    @property
    def state_folder(self) -> Path:
        """Where the journal is."""
        usual = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "gofer" / "hosts" / self.host
        return (Path(self.state) if self.state else usual).expanduser()


def not_found(runtime: RuntimeSettings) -> list[str]:
    """Programs that a runtime's commands name and that are not on the PATH that they get."""
    words = {command[0] for command in runtime.commands if command and "/" not in command[0]}
    return sorted(word for word in words if shutil.which(word) is None)


def _own_name() -> str:
    name = re.sub(r"[^a-z0-9_-]", "-", socket.gethostname().partition(".")[0].lower()).strip("-_")
    return name[:40] or "host"


def read_file(path: Path) -> HostSettings:
    """The file, if it is the user's own and nobody else may write to it: it says what is run in the user's name."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}). docs/external-agents.md shows one to copy."
        ) from None
    try:
        # Checked on the open file, so it cannot be exchanged between the check and the read.
        _check_owner(path, os.fstat(descriptor))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_FILE + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_FILE:
        raise ConfigError(f"{path} is larger than a file of settings can be.")
    try:
        return HostSettings.model_validate(tomllib.loads(content.decode()))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_error(error)}") from None


def _check_owner(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path} is not a regular file.")
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"{path} belongs to another user. Run: chown {os.geteuid()} {path}")
    if status.st_mode & 0o022:
        raise ConfigError(f"Others may write to {path}, which says what is run. Run: chmod go-w {path}")
    parent = path.resolve().parent
    above = parent.stat()
    # In a sticky folder others can add files but not exchange ours.
    if above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX:
        raise ConfigError(f"Others may exchange {path}. Run: chmod go-w {parent}")
