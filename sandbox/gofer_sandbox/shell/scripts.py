"""What runs inside: the keeper, the user's shell and the few lines that join them to the server.

Nothing here parses output. A command is a file that is sourced; its status goes through a FIFO of its own and
is left in a file as well; its output has a FIFO of its own.

Builtins are called with a backslash (no alias) and through `builtin` (no function). A user who redefines
`builtin` itself only makes his own shell unable to report; it is then replaced, as after any other death.
"""

from __future__ import annotations

from collections.abc import Sequence

from gofer_sandbox.limits import Limits

INSIDE = "/run/s"
"""The control directory as the sandbox sees it: read-only, made of files and FIFOs of the server."""
PRIVATE = "/run/p"
"""A small tmpfs of the session's own, where the shell leaves its status and its snapshot."""

SLOTS = 3
"""How many pairs of output FIFOs the keeper holds open; more are made when so many are held at once. Each is a
pipe, of which the kernel gives an ordinary user about a thousand of full size."""
OUTPUTS = tuple(f"{kind}{slot}" for slot in range(1, SLOTS + 1) for kind in "oe")
KEEPER_OPTIONS = ("--noprofile", "--norc", "-p")
"""The keeper takes neither functions nor `BASH_ENV` from the caller's environment, which is for the shell."""
FIRST = 11
"""The keeper's own descriptors have lower numbers than those it holds."""


def keeper(
    limits: Limits,
    processes: int | None,
    address_space: int | None,
    control: str = INSIDE,
    private: str = PRIVATE,
    entrances: Sequence[int] = (),
    besides: Sequence[int] = (),
    locale: str = "",
) -> str:
    """PID 1: it sets limits nobody inside can raise, then starts a shell whenever the server says so.

    `entrances` are the descriptors of its control groups, which it enters before all else and then lets go of, as
    it does of those `besides`.

    With the news goes each line the dead shell had not read, which tells whether it ever began its command.
    A keeper that never heard from a server ends: its server died before it could record it.
    The answer is a line that would do nothing in a shell, should it ever reach one.
    `locale` is an assignment for shells alone: bash takes long to load one, and the keeper needs none.
    It holds the reading ends of outputs, or what a command printed would vanish when it ends while no server is
    there; only the reading ends, so that a server still sees when nobody writes any more.
    It repeats the news of a shell's death until it gets the matching `go`: neither a server that dies between
    reading and answering nor a stale answer can start a shell without its state. For one that dies after it has
    answered, the news is left in a file, too; opened for both directions, lest a FIFO in its place hold it up.
    """
    ulimits = [
        "-c 0",
        f"-n {limits.open_files}",
        f"-f {limits.file_size // 1024}",
        *([f"-u {processes}"] if processes else []),
        *([f"-v {address_space // 1024}"] if address_space else []),
    ]
    held = range(FIRST, FIRST + len(OUTPUTS))
    opening = zip(held, OUTPUTS, strict=True)
    holding = "\n".join(f"exec 9<>{control}/{name} {fd}<{control}/{name} 9>&-" for fd, name in opening)
    closing = " ".join(f"{fd}<&-" for fd in held)
    shell = f'{locale} "$BASH"'.strip()
    return f"""
exec >/dev/null 2>&1
{enter(entrances, besides)}
exec 0<>{control}/in 8<>{control}/st
{holding}
{"; ".join(f"ulimit {one}" for one in ulimits)}
trap : HUP INT QUIT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM TERM XCPU XFSZ VTALRM PROF SYS
death=0 status=0 answer= waited=0
while :; do
  until read -r -t 1 answer && [[ $answer == ": $death" ]]; do
    ((death || ++waited < 60)) || exit
    printf 'X%s %s %s\\0' "$death" "$status" "$answer" >&8
  done
  {shell} --noprofile --rcfile {control}/rc --noediting -i 8>&- {closing}
  status=$?
  death=$((death + 1))
  printf 'X%s %s \\0' "$death" "$status" 1<>{private}/x
  printf 'X%s %s \\0' "$death" "$status" >&8
done
"""


def enter(entrances: Sequence[int], besides: Sequence[int] = ()) -> str:
    """Lines that put the process that runs them in its control groups, or end it, and close all these."""
    entering = "\n".join(f"echo 0 >&{fd} || exit 1" for fd in entrances)
    closing = " ".join(f"{fd}>&-" for fd in (*entrances, *besides))
    return f"{entering}\nexec {closing}" if closing else ""


def rc(control: str = INSIDE) -> str:
    """What every user shell begins with; options come last, for `set -e` must not see the lines above.

    The traps run amid a command, whose `set -x` must not print them.
    """
    return f"""
PS1= PS2= PS0=
unset PROMPT_COMMAND MAILCHECK TMOUT HISTFILE
set +o history +H
shopt -u checkwinsize
[ -r {control}/state ] && . {control}/state
\\builtin trap '{{ \\builtin kill -INT $$; }} 2>/dev/null' USR2
\\builtin trap '{{ \\builtin . {control}/x e; }} 2>/dev/null' EXIT
FUNCNEST=2000
\\builtin printf 'R%s %s\\0' "$$" "$PWD" >{control}/st
\\builtin . {control}/options
"""


def lines(number: int, fifos: Sequence[str], snapshot: str, before: int = 0, control: str = INSIDE) -> bytes:
    """What the shell reads for one command: leave a snapshot in a slot, if one is named; run it; report.

    The report is a line of its own because an error or an interrupt in an interactive bash returns to the next
    line. The command begins only once the news of the snapshot has been sent: whoever does not hear it knows that
    the command never began, and may have it run by another shell. The report is sourced as the command is: a shell
    that has lost the word for that runs no command, and must not report one. The output's FIFOs are opened for
    both directions, so that a writer waits for a server that is away instead of dying. `before` is what the command
    shall find in `$?`; neither `set -e` nor a trap on ERR minds what stands before `&&`, and no alias takes the place
    of a quoted word, as it would that of a brace.
    """
    errors = f"2<>{control}/{fifos[1]}" if len(fifos) > 1 else "2>&1"
    run = f"\\builtin . {control}/c </dev/null 1<>{control}/{fifos[0]} {errors}\n"
    if before:
        run = f"\\builtin eval '\\builtin . {control}/q {before} && \\builtin :; {run[:-1]}'\n"
    leave = f"{_leave(snapshot, control)} && " if snapshot else ""
    return (leave + run + f'\\builtin . {control}/d {number} "$?"\n').encode()


def snapshot_line(slot: str, control: str = INSIDE) -> str:
    """The line that leaves a snapshot."""
    return f"{_leave(slot, control)}\n"


def _leave(slot: str, control: str) -> str:
    return f"\\builtin . {control}/x {slot}"


def done(control: str = INSIDE, private: str = PRIVATE) -> str:
    """Called with the command's number and status: tell the server, then leave the same in a file, for the one that
    takes over when this one has read it and dies. A shell whose `TMOUT` ran out would end by itself, and might take
    the lines of the next command with it: one that cannot be rid of it ends now, when it has read none of them. While
    there are jobs bash may have to be told twice."""
    return f"""
\\builtin printf 'D%s %s %s\\0' "$1" "$2" "$PWD" >{control}/st
\\builtin printf 'D%s %s %s\\0' "$1" "$2" "$PWD" >|{private}/d
\\builtin unset -v TMOUT || \\builtin exit || \\builtin exit
"""


STATUS = r"""\builtin return "$1"
"""
"""Called with what `$?` shall be."""

SNAPSHOT = r"""
\builtin printf 'U%s\0%s\0%s\n' "$PWD" "$SHELLOPTS" "$BASHOPTS"
\builtin umask
\builtin printf '\0'
\builtin alias -p
\builtin printf '\0'
\builtin declare -f
\builtin printf '\0'
\builtin declare -p
\builtin printf '\0E'
"""
"""What can be largest comes last: where there is no room for all, the rest is whole. bash writes each line on its
own, so options are taken as the list of those that are set."""


def snapshot(control: str = INSIDE, private: str = PRIVATE) -> str:
    """Called with a slot: leave a snapshot there, then wake the server. Also the EXIT trap, so that what the last
    command changed before its `exit` is kept too."""
    return f"""
\\builtin . {control}/s >|{private}/s"$1" 2>/dev/null
\\builtin printf 'P%s\\0' "$1" >{control}/st
"""
