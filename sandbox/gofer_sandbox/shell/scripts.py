"""What runs inside: the keeper, the user's shell and the few lines that join them to the server.

Nothing here parses output. A command is a file that is sourced; its output has a FIFO of its own; how it ended goes
over the channel, which is also where the shell's lines come from.

What the shell is told comes in one piece, which bash takes in one. A process that was left running may hold a copy of
the channel, but can only be first: it takes all of a piece, or its beginning, and cannot add anything. Whatever is left
then runs no file of its choice in the shell itself, and no command: one runs only when its number is higher than the
last one's, and the number is what the piece begins with. The report names it, so that a loss is noticed.

Builtins are called with a backslash (no alias) and through `builtin` (no function). A user who redefines
`builtin` itself only makes his own shell unable to report; it is then replaced, as after any other death.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from gofer_sandbox.limits import Limits

INSIDE = "/run/s"
"""The control directory as the sandbox sees it: read-only, made of files and FIFOs of the server."""

SLOTS = 3
"""How many pairs of output FIFOs the keeper holds open; more are made when so many are held at once. Each is a
pipe, of which the kernel gives an ordinary user about a thousand of full size."""
OUTPUTS = tuple(f"{kind}{slot}" for slot in range(1, SLOTS + 1) for kind in "oe")
KEEPER_OPTIONS = ("--noprofile", "--norc", "-p")
"""The keeper takes neither functions nor `BASH_ENV` from the caller's environment, which is for the shell."""
BEYOND = 20
"""From here on the keeper uses no descriptor of its own choice."""
HELD = 9
"""The keeper's descriptor of the server's end of the channel, from which the next server takes it."""
_STATUS = 8
_FIRST = 11
"""The keeper's own descriptors have lower numbers than those it holds."""
_SAVED = range(10, 20)
"""Where bash keeps the shell's standard input while a command has another."""


REPORT = b"\\gofer_report\n"
"""Has the shell say how its command ended. A line of its own, because an error or an interrupt in an interactive bash
returns to the next line."""


def ask(status: str = "&0", control: str = INSIDE) -> bytes:
    """The line that has it leave a snapshot. Without arguments, for the shell's own are part of it."""
    return f"BASH_I=i; \\builtin . {control}/s >{status}\n".encode()


RUN = b"BASH_S= BASH_N="
"""How the lines that run a command begin."""


def run(number: int, before: int, fifos: Sequence[str], control: str = INSIDE) -> bytes:
    """The lines that run a command: its number, what it shall find in `$?` if that is not 0, and what sources it. The
    shell may be told more than once, for the first lines may have been taken away: a command whose number is not higher
    than the last is not run again. Neither `set -e` nor a trap on ERR minds what stands before `&&`."""
    code = f"\\builtin . {control}/q {before} && \\builtin :\n".encode() if before else b""
    return b"%b%d\n%b%b" % (RUN, number, code, _source(tuple(fifos), control))


@cache
def _source(fifos: tuple[str, ...], control: str) -> bytes:
    """The output's FIFOs are opened for both directions, so that a writer waits for a server that is away instead of
    dying. The command is sourced by a line of the shell's own, for within `eval` an `exit` has no output any more for
    the trap that it sets off."""
    errors = f"2<>{control}/{fifos[1]}" if len(fifos) > 1 else "2>&1"
    file = f'"{control}/c$((BASH_N>BASH_M?(BASH_M=BASH_N,1):0))"'
    return f"\\builtin . {file} </dev/null 1<>{control}/{fifos[0]} {errors}\n".encode()


@dataclass(frozen=True, slots=True)
class Channel:
    """How server and shell speak: over a socket that the keeper gets as descriptor `theirs`, beyond those it uses
    itself, or by FIFOs.

    `ours` is a copy of the server's end for the keeper to hold, so that the channel outlives the server; without one
    the keeper ends when the server does."""

    control: str = INSIDE
    theirs: int = -1
    ours: int = -1

    @property
    def attested(self) -> bool:
        """Whether it is a socket, on which the kernel says who speaks."""
        return self.theirs >= 0

    @property
    def status(self) -> str:
        """Where the shell writes, between commands."""
        return "&0" if self.attested else f"{self.control}/st"

    @property
    def said(self) -> str:
        """Sends there what the shell prints between commands. A socket is its standard output then, which saves bash a
        redirection with every command."""
        return "" if self.attested else f" >{self.status}"

    def _open(self) -> str:
        if not self.attested:
            return f"exec 0<>{self.control}/in {_STATUS}<>{self.control}/st"
        held = f" {HELD}<&{self.ours} {self.ours}<&-" if self.ours >= 0 else ""
        return f"exec 0<&{self.theirs} {self.theirs}<&-{held}"

    def _shell(self, shell: str, closing: str) -> str:
        """Lines that run a shell to its end and put how it ended in `status`.

        On a socket only the keeper can say who the shell is: anything inside can look like it. So the shell is started
        in the background, with job control on, or it would ignore interrupts for ever; and with signals trapped, not
        ignored, or it would ignore them all. For the first there is nothing to trap yet: PID 1 gets no signal from
        inside that it has not asked for. Outputs are held while that one comes up, and before the server is told of it.

        `wait` comes after both are off. A trapped signal that arrives between the kernel's answer and bash's note of it
        loses the child's end, and `wait -f` would then ask the kernel for ever. Job control would end `wait` with a
        shell that is only stopped. One that was stopped before that is ended."""
        own = HELD if self.attested else _STATUS
        named = r"printf '\0S%s\0' $child >&0" if self.attested else ":"
        says = ">&0" if self.attested else ""
        return f"""((death)) && trap : $signals
set -m
{shell} --noprofile --rcfile {self.control}/rc --noediting -i <&0 {says} {own}>&- {closing} &
child=$!
set +m; trap '' $signals
((death)) || . {self.control}/hold
{named}
wait "$child"; status=$?
((status < 128 + 19 || status > 128 + 22)) || kill -KILL $child"""


def keeper(
    limits: Limits,
    processes: int | None,
    address_space: int | None,
    channel: Channel,
    entrances: Sequence[int] = (),
    besides: Sequence[int] = (),
    locale: str = "",
) -> dict[str, str]:
    """PID 1: it sets limits nobody inside can raise, then starts a shell whenever the server says so. As files: what
    bash has read of a loop it keeps in memory as long as that goes on, and most sessions never come to the loop.

    `entrances` are the descriptors of its control groups, which it enters before all else and then lets go of, as
    it does of those `besides`.

    With the news goes each line the dead shell had not read, which tells whether it ever began its command.
    A keeper that never heard from a server ends: its server died before it could record it. So does one whose channel
    has no other end any more, and one whose shell has died and that no server has answered for a day: after a minute
    it says nothing more until it is asked, which a server does that takes over. The answer is a line that would do
    nothing in a shell, should it ever reach one.
    `locale` is an assignment for shells alone: bash takes long to load one, and the keeper needs none.
    It holds the reading ends of outputs, or what a command printed would vanish when it ends while no server is
    there; only the reading ends, so that a server still sees when nobody writes any more.
    It repeats the news of a shell's death until it gets the matching `go`: neither a server that dies between
    reading and answering nor a stale answer can start a shell without its state.
    """
    ulimits = [
        "-c 0",
        f"-n {limits.open_files}",
        f"-f {limits.file_size // 1024}",
        *([f"-u {processes}"] if processes else []),
        *([f"-v {address_space // 1024}"] if address_space else []),
    ]
    held = range(_FIRST, _FIRST + len(OUTPUTS))
    opening = zip(held, OUTPUTS, strict=True)
    holding = "\n".join(
        f"exec 7<>{channel.control}/{name} {fd}<{channel.control}/{name} 7>&-" for fd, name in opening
    )
    closing = " ".join(f"{fd}<&-" for fd in held)
    shell = f'{locale} "$BASH"'.strip()
    status = "&0" if channel.attested else f"&{_STATUS}"
    step = f". {channel.control}/await || . {channel.control}/start"
    begin = f"""exec >/dev/null 2>&1
{enter(entrances, besides)}
{channel._open()}
{"; ".join(f"ulimit {one}" for one in ulimits)}
signals='HUP INT QUIT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM TERM XCPU XFSZ VTALRM PROF SYS'
death=0 status=0 waited=0
{step}
while :; do {step}; done
"""
    wait = f"""read -r -t $((waited < 60 ? 1 : 600)) answer
got=$?
((got)) || [[ $answer != ": $death" ]] || return
((got != 1 && ++waited < (death ? 60 + 144 : 60))) || exit
((got && waited > 60)) || printf '\\0X%s %s %s\\0' "$death" "$status" "$answer" >{status}
:
"""
    start = f"""{channel._shell(shell, closing)}
death=$((death + 1)) waited=0
printf '\\0X%s %s \\0' "$death" "$status" >{status}
"""
    return {"await": wait, "start": start, "hold": holding, "keeper": begin}


def enter(entrances: Sequence[int], besides: Sequence[int] = ()) -> str:
    """Lines that put the process that runs them in its control groups, or end it, and close all these."""
    entering = "\n".join(f"echo 0 >&{fd} || exit 1" for fd in entrances)
    closing = " ".join(f"{fd}>&-" for fd in (*entrances, *besides))
    return f"{entering}\nexec {closing}" if closing else ""


def rc(channel: Channel) -> str:
    """What every user shell begins with; options come last, for `set -e` must not see the lines above.

    The traps run amid a command, whose `set -x` must not print them. Limits are told where a shell before may have had
    others.
    """
    control, status = channel.control, channel.status
    return f"""
PS1= PS2= PS0=
unset PROMPT_COMMAND MAILCHECK TMOUT HISTFILE
set +o history +H
shopt -u checkwinsize
{_report(channel)}
[ -r {control}/state ] && . {control}/state
\\builtin trap '{{ \\builtin kill -INT $$; }} 2>/dev/null' USR2
\\builtin trap '{{ BASH_I=e; \\builtin . {control}/x; }} 2>/dev/null' EXIT
FUNCNEST=2000
BASH_N=0 BASH_M=0 BASH_S=
\\builtin printf '\\0R%s\\n' "$$" >{status}
\\builtin test -s {control}/state && \\builtin ulimit -a >{status}
\\builtin printf '\\n%s\\0' "$PWD" >{status}
\\builtin . {control}/options
"""


def _report(channel: Channel) -> str:
    """Say how the command ended that was begun last, BASH_M: one that could not begin is not reported. A function,
    which bash has read before anything of the user's and keeps: to source a file takes it as long as all the rest. A
    shell that cannot source the next command is not heard of again, and replaced."""
    return f"""gofer_report() {{
BASH_X=$?
\\builtin enable . && \\builtin printf '\\0D%s%s %s %s\\0' "$BASH_S" "$BASH_M" "$BASH_X" "$PWD"{channel.said}
[[ $BASH_X != 2 && -z ${{TMOUT-}} ]] || \\builtin . {channel.control}/m || \\builtin :
}}
readonly -f gofer_report"""


def mend(control: str) -> str:
    """What few commands make necessary before the shell reads on.

    After a command that ends within `$(`, whose exit code is 2, bash 5.2 has popped one delimiter too many. It writes
    each quote that it reads from then on in front of where it keeps them, and dies of that sooner or later. An error of
    syntax has its parser begin anew; until then nothing here is quoted.

    A shell whose `TMOUT` ran out would end by itself, and might take the lines of the next command with it: one that
    cannot be rid of it ends now, when it has read none of them. While there are jobs bash may have to be told twice."""
    return f"""\\builtin . {control}/r 2>/dev/null
\\builtin unset -v TMOUT || \\builtin exit || \\builtin exit
"""


BEGUN = "BASH_S=-\n"
"""What runs instead of a command that had begun before its lines were given again: how it ended is not known, which its
number's sign says."""
CODE = "\\builtin return $1\n"
ERROR = ")\n"
"""What is no command in any syntax."""


_BEGINNING = r"""
\builtin printf '\0U%s%s\0O%s\0T%s\n' "$BASH_I" "$PWD" "$SHELLOPTS" "$BASHOPTS"
\builtin umask
\builtin printf '\0L'
\builtin ulimit -a
\builtin test "${FUNCNAME-}" || { \builtin printf '\0P'; \builtin printf '%s ' "${@@Q}"; }
\builtin printf '\0Wdirs %s\n' "${DIRSTACK[1]+more}"
\builtin jobs -p
\builtin enable -n
\builtin trap -p
\builtin printf '%s\n' /proc/self/fd/*
\builtin printf '\0A'
\builtin alias -p
\builtin printf '\0F'
\builtin declare -f
\builtin printf '\0V'
"""

STATE = (
    _BEGINNING
    + r"""\builtin declare -p
\builtin printf '\0E\0'
"""
)
"""Everything that is kept or told, section by section; bash writes each line on its own. The positional parameters are
not seen from within a function."""

_NAMES = " ".join(f'"${{!{letter}@}}"' for letter in f"_{string.ascii_letters}")

SMALL_STATE = (
    _BEGINNING
    + rf"""BASH_Y=
for BASH_V in {_NAMES}; do
  \builtin declare -n BASH_W="$BASH_V"
  BASH_T="${{BASH_W[*]-}}"
  \builtin unset -n BASH_W
  \builtin test "${{#BASH_T}}" -le 2000 && \builtin declare -p "$BASH_V" || BASH_Y+="$BASH_V"$'\n'
done 2>/dev/null
\builtin printf '\0N%s\0E\0' "$BASH_Y"
\builtin unset -v BASH_T BASH_V BASH_Y
"""
)
"""The same for a shell that has more than is kept: its large variables are named instead, which takes longer."""


def snapshot(channel: Channel) -> str:
    """The EXIT trap: leave a snapshot, so that what the last command changed before its `exit` is kept too. A command
    has another standard input, so the channel is looked for where bash has put it; only what is the very socket that
    the keeper has is written to."""
    control = channel.control
    if not channel.attested:
        return f"\\builtin . {control}/s >{channel.status}\n"
    return "".join(
        f"[[ /dev/fd/{fd} -ef /proc/1/fd/0 ]] && \\builtin . {control}/s >&{fd} && \\builtin return\n"
        for fd in (0, *_SAVED)
    )
