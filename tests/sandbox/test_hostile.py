"""Hostile and awkward commands on a real sandbox.

Each row runs in a session of its own that has state to lose. Afterwards the session must be alive, with that
state, unless the row says what is lost; nothing may have become a zombie, and nothing may outlive the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gofer_sandbox import Bubblewrap, Limits, Result, Sandbox
from gofer_sandbox.limits import MIB
from sandbox.leftovers import ASLEEP, nothing_left
from support.patience import patience

BEFORE = f"export KEPT='a b'; kept() {{ echo \"f:$1\"; }}; cd /tmp; sleep 987 & {ASLEEP}"
AFTER = 'echo "$KEPT|$(kept 1)|$PWD"'
EXPECTED_AFTER = "a b|f:1|/tmp\n"


def forged(frames: str) -> str:
    """Has a process that is not the shell write to wherever the shell reports."""
    sockets = f"for f in 0 10 11 12; do [ -S /dev/fd/$f ] && printf '{frames}' >&$f; done"
    return f"( {sockets}; [ -p /run/s/st ] && printf '{frames}' >/run/s/st )"


MANY_LINES = "\n".join(f"x{n}={n}" for n in range(10_000)) + "\necho $x9999"


@dataclass(frozen=True)
class Row:
    """A command, the exit code and output a user would expect, and what may become of the shell."""

    name: str
    command: str
    code: int | None = 0
    has: str = ""
    exactly: str | None = None
    timeout: float = 10.0
    timed_out: bool = False
    restarted: bool = False
    recreated: bool = False
    after: str = EXPECTED_AFTER
    background_kept: bool = True
    alone_after: bool = False
    """Whether nothing but what ran before may run afterwards."""
    lacks: str = ""
    limits: Limits = field(default_factory=lambda: Limits(memory=256 * MIB, tmp=16 * MIB, shm=8 * MIB))


ROWS = [
    # Ends of the shell
    Row("exit", "exit 3", 3, restarted=True),
    Row("exit zero", "echo out; exit", 0, has="out", restarted=True),
    Row("exec true", "exec true", 0, restarted=True),
    Row("exec sleep", "exec sleep 100", None, timeout=0.3, timed_out=True, restarted=True),
    Row("exec missing", "exec /missing; echo NO", 127, lacks="NO", restarted=True),
    Row("errexit", "set -e; false; echo no", 1, lacks="no", restarted=True),
    Row("errexit in a pipe", "set -eo pipefail; false | true; echo no", 1, lacks="no", restarted=True),
    Row("nounset", "set -u; echo $undefined; echo no", 1, has="unbound", lacks="no"),
    Row("required parameter", 'echo "${undefined:?is missing}"; echo no', 1, has="is missing", lacks="no"),
    Row("kill the shell", "kill -9 $$", 137, restarted=True),
    Row("terminate the shell", "kill $$; echo on", 0, has="on"),
    Row("hang up the shell", "kill -HUP $$; sleep 5", 129, restarted=True),
    Row("segfault the shell", "kill -SEGV $$", 139, restarted=True),
    Row("abort the shell", "kill -ABRT $$", 134, restarted=True),
    Row("stop the shell", "kill -STOP $$", None, timeout=0.3, timed_out=True),
    Row("interrupt itself", "kill -INT $$; echo no", 130, lacks="no"),
    Row("kill the keeper", "for s in {1..64}; do kill -$s 1; done 2>/dev/null; echo on", 0, has="on"),
    Row("kill everything", "kill -9 -1; echo on", 0, has="on", background_kept=False),
    Row("exit in a function", "f() { exit 9; }; f; echo no", 9, lacks="no", restarted=True),
    Row("exit in a subshell", "(exit 7); echo $?", 0, exactly="7\n"),
    Row("exit trap", "trap 'echo bye' EXIT; exit 4", 4, has="bye", restarted=True),
    Row("exit trap that hangs",
        "trap 'sleep 50' EXIT; exit 4", None, timeout=0.3, timed_out=True, restarted=True),
    Row("logout", "logout", 1, has="not login shell"),
    Row("suspend", "suspend", None, timeout=0.3),
    Row("return", "return 5; echo no", 5, lacks="no"),
    Row("break", "break; continue; echo on", 0, has="on"),
    Row("one command", "set -t; echo hi", 0, has="hi", restarted=True),
    Row("no execution", "set -n; echo hi", 0),
    Row("change made before exit", "export KEPT=new; exit 3", 3, restarted=True, after="new|f:1|/tmp\n"),
    Row("time-out variable", "TMOUT=1; echo hi", 0, has="hi"),
    # What never ends
    Row("sleep", "sleep 20; echo NO", None, timeout=0.3, timed_out=True, lacks="NO"),
    Row("busy loop", "while :; do :; done", 130, timeout=0.3, timed_out=True),
    Row("traps ignored", "trap '' TERM INT; sleep 100", None, timeout=0.3, timed_out=True),
    Row("traps ignored by a loop, and another shell named as the one",
        forged(r"\0R999\n\n/\0") + "; trap '' INT TERM USR2; while :; do :; done", None, timeout=0.3, timed_out=True,
        restarted=True),
    Row("child that ignores the interrupt",
        "bash -c \"trap '' INT TERM; sleep 99\"; echo NO", None, timeout=0.3,
        timed_out=True, lacks="NO"),
    Row("loop of short sleeps", "while :; do sleep 0.05; done", None, timeout=0.3, timed_out=True),
    Row("pipe that never ends", "yes | sleep 100", None, timeout=0.3, timed_out=True),
    Row("yes", "yes", None, timeout=0.3, timed_out=True, has="y\ny"),
    Row("endless error output", "yes >&2", None, timeout=0.3, timed_out=True, has="y\ny"),
    Row("waits for a child", "sleep 500 & wait", None, timeout=0.3, timed_out=True),
    Row("fifo nobody writes", "mkfifo /tmp/f; cat /tmp/f", None, timeout=0.3, timed_out=True),
    Row("fifo the shell opens", "mkfifo /tmp/f; read x </tmp/f; echo NO", None, timeout=0.3, timed_out=True,
        restarted=True, lacks="NO"),
    Row("flock against itself",
        "exec 7>/tmp/l; flock 7; flock /tmp/l true", None, timeout=0.3, timed_out=True),
    Row("stopped child", "sleep 99 & kill -STOP $!; wait $!", None, timeout=0.3, timed_out=True),
    Row("lives on in its second thread",
        "python3 -c 'import ctypes, threading, time; threading.Thread(target=time.sleep, args=(77,)).start(); "
        "ctypes.CDLL(None).pthread_exit(None)'; echo NO", None, timeout=1, timed_out=True, lacks="NO"),
    Row("forks away from its end",
        "python3 -c 'import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while True:\n  if os.fork(): os._exit(0)' & sleep 100; echo NO",
        None, timeout=1, timed_out=True, lacks="NO", alone_after=True),
    Row("vfork-like daemon", "(setsid sleep 555 >/dev/null 2>&1 &) ; echo on", 0, has="on"),
    Row("recursion", "f() { f; }; f", 1, has="maximum function nesting"),
    Row("recursive source", "echo '. /tmp/r' >/tmp/r; . /tmp/r", None, restarted=True, timeout=30),
    Row("long arithmetic", "echo $((1<<63)) $((2**100))", 0, has="-9223372036854775808"),
    # Input
    Row("cat", "cat", 0, exactly=""),
    Row("read", "read x; echo $?", 0, exactly="1\n"),
    Row("interpreter on stdin", "bash; echo on", 0, has="on"),
    Row("no terminal", "tty; [ -t 0 ] || echo none", 0, has="none"),
    Row("select", "select x in a b; do break; done; echo on", 0, has="on"),
    Row("sudo", "sudo -n true || su -c true || echo refused", 0, has="refused"),
    # Syntax
    Row("open quote", "echo 'abc", 2, has="unexpected EOF"),
    Row("open double quote", 'echo "abc', 2, has="unexpected EOF"),
    Row("open heredoc", "cat <<EOF\nbody", 0, has="body"),
    Row("open brace", "f() { echo x", 2, has="syntax error"),
    Row("open parenthesis", "echo $(", 2, has="unexpected EOF"),
    Row("earlier lines run", "echo first\nif then", 2, has="first"),
    Row("only a comment", "# nothing", 0, exactly=""),
    Row("empty", "", 0, exactly=""),
    Row("only newlines", "\n\n\n", 0, exactly=""),
    Row("carriage returns", "echo hi\r\n", 0, has="hi"),
    Row("continuation at the end", "echo hi \\", 0, has="hi"),
    Row("unknown command", "no-such-command", 127, has="not found"),
    Row("directory as command", "/tmp", 126, has="directory"),
    Row("many lines", MANY_LINES, 0, exactly="9999\n"),
    Row("200 kB of command", "x='" + "a" * 200_000 + "'; echo ${#x}", 0, exactly="200000\n"),
    Row("5 MB heredoc", "wc -c <<'EOF'\n" + "a" * 5_000_000 + "\nEOF", 0, has="5000001"),
    Row("argument too long", "/bin/echo $(printf 'a%.0s' {1..200000})", 126, has="too long"),
    # Output
    Row("NUL and invalid bytes", r"printf 'a\0b\xff\xfe\n'", 0, has="a\0b\ufffd\ufffd"),
    Row("random bytes", "head -c 20000 /dev/urandom", 0),
    Row("escapes", r"printf '\e[31mred\e[0m\a\r\n'", 0, has="\x1b[31mred"),
    Row("50 MB in one line", "head -c 50000000 /dev/zero | tr '\\0' x", 0, has="bytes left out"),
    Row("no newline at the end", "printf abc", 0, exactly="abc"),
    Row("order of streams", "echo 1; echo 2 >&2; echo 3", 0, exactly="1\n2\n3\n"),
    Row("closed output", "exec 1>&-; echo gone", 1),
    Row("closed everything", "exec 0<&- 1>&- 2>&-", 0),
    Row("redirected for good", "exec >/tmp/log 2>&1; echo hidden", 0, exactly=""),
    Row("reopened output",
        "echo a >/dev/stdout; echo b >/dev/stderr; echo c >/proc/self/fd/1", 0, exactly="a\nb\nc\n"),
    Row("tee to error", "echo x | tee /dev/stderr", 0, exactly="x\nx\n"),
    Row("broken pipe", "yes | head -n 1", 0, exactly="y\n"),
    Row("full device", "echo x >/dev/full", 1, has="No space left"),
    # The protocol
    Row("printed frames", r"printf '\0D1 0 /\0X1 0 \0R1\0P\0'", 0),
    Row("forged status", forged(r"\0D999 77 /\0D1 77 /\0") + "; true", 0),
    Row("forged end", forged(r"\0D2 77 /\0") + "; sleep 0.05; echo on", 0, exactly="on\n"),
    Row("forged death", forged(r"\0X1 77 \0R999\n\n/\0X77 77 \0") + "; sleep 0.05; echo on; exit 4", 4,
        exactly="on\n", restarted=True),
    Row("forged death before it began",
        "echo >>/tmp/log; " + forged(r"\0X1 7 BASH_S= BASH_N=999\0R999\n\n/\0") +
        "; sleep 0.05; wc -l </tmp/log; exit", 0, exactly="1\n", restarted=True),
    Row("forged state", forged(r"\0Ui/\0O\0T\0L\0A\0F\0Vdeclare -- KEPT=\"x\"\n\0E\0") + "; kill -9 $$", 137,
        restarted=True),
    Row("junk in the status",
        "( for f in 10 11; do [ -S /dev/fd/$f ] && head -c 300000 /dev/urandom >&$f; done; echo on )", 0, has="on"),
    Row("control directory",
        "rm -rf /run/s/*; echo x >/run/s/c1; ln -s / /run/s/x; ls /run/s/c1", 0, has="Read-only"),
    Row("control modes", "chmod 777 /run/s /run/s/o1; mv /run/s/o1 /tmp", 1, has="Read-only"),
    Row("closes the shell's own descriptors", "exec 255>&- 10>&- 11>&- 12>&-; echo on", 0, has="on"),
    Row("outputs of the commands to come",
        "for f in /run/s/o[23]; do (exec 9<>$f; head -c 9999 /dev/zero >&9; sleep 0.1) & done; sleep 0.5", 0),
    Row("floods the keeper with signals",
        "python3 -c 'import os\nfor _ in range(50000): os.kill(1, 10); os.kill(1, 40)'; exit 4", 4, restarted=True),
    Row("traces the keeper", "python3 -c 'import ctypes; ctypes.CDLL(None).ptrace(16, 1, 0, 0)'; exit 4", 4,
        restarted=True),
    Row("eats its report", "( for f in 10 11; do [ -S /dev/fd/$f ] && timeout 0.2 cat <&$f; done; echo on )", None,
        has="on"),
    Row("closes its channel",
        "for f in 10 11 12; do [ -S /dev/fd/$f ] && "
        "python3 -c 'import socket; socket.socket(fileno=0).shutdown(2)' <&$f; done; sleep 0.1; echo on", None,
        recreated=True, background_kept=False),
    Row("prompt command", "PROMPT_COMMAND='sleep 0.2'; PS1=x; PS0=y; PS4=z", 0),
    Row("functions over builtins", "printf() { :; }; declare() { :; }; cd() { :; }; echo hi", 0, has="hi"),
    Row("builtin redefined", "builtin() { :; }; echo hi", None, has="hi", restarted=True),
    Row("dot redefined", "function . { :; }; echo hi", 0, has="hi"),
    Row("dot disabled", "enable -n .; echo hi", 0, has="hi"),
    Row("dot disabled for good", "enable -n . enable; echo hi", None, has="hi", restarted=True),
    Row("report redefined", "gofer_report() { :; }; unset -f gofer_report; alias gofer_report=:; false", 1),
    Row("printf disabled", "enable -n printf; echo hi", None, has="hi", restarted=True),
    Row("aliases over words",
        "shopt -s expand_aliases; alias builtin=false .=false printf=false trap=false; echo hi", 0,
        has="hi"),
    Row("no aliases", "unalias -a; shopt -u expand_aliases; echo hi", 0, has="hi"),
    Row("debug trap", "trap 'true' DEBUG; echo hi", 0, has="hi"),
    Row("debug trap that exits", "trap 'exit 6' DEBUG; echo no", 6, restarted=True),
    Row("error trap", "trap 'echo failed' ERR; false", 1, has="failed"),
    Row("return trap",
        "trap 'echo returned' RETURN; echo hi", 0, has="hi", after=EXPECTED_AFTER + "returned\n"),
    Row("no user signal trap",
        "trap - USR2; sleep 50; echo NO", None, timeout=0.3, timed_out=True, lacks="NO"),
    Row("tracing", "set -x; echo hi", 0, has="+ echo hi\nhi", after=""),
    Row("no clobber, no glob", "set -Cf; echo *", 0, exactly="*\n"),
    Row("posix mode", "set -o posix; echo hi", 0, has="hi"),
    Row("restricted shell", "set -r; exit 1", 1, restarted=True),
    Row("functions that cannot be redefined", "builtin() { return 1; }; readonly -f builtin; exit 1", 1,
        restarted=True),
    Row("names that lead to each other", "declare -n a=b; declare -n b=a; exit 1", 1, restarted=True),
    Row("restricted options", "shopt -s failglob nullglob extglob dotglob; echo hi", 0, has="hi"),
    Row("separator", "IFS=1; x=a1b; echo $x", 0, exactly="a b\n"),
    Row("readonly variables", "readonly KEPT PATH IFS PWD; echo hi", 0, has="hi"),
    Row("readonly prompt", "readonly PS1=a PROMPT_COMMAND=b TMOUT=1 FUNCNEST=1; echo hi", 0, has="hi"),
    Row("history", "set -o history -H; echo '!!' $HISTFILE", 0),
    Row("positional parameters", "set -- a b c; echo $#", 0, exactly="3\n"),
    # Background
    Row("nohup", "nohup sleep 1000 >/dev/null 2>&1 & echo on", 0, has="on"),
    Row("holds the pipe", "sleep 1000 & echo on", 0, has="on"),
    Row("setsid", "setsid sleep 1000 & echo on", 0, has="on"),
    Row("double fork", "( ( sleep 1000 & ) & ); echo on", 0, has="on"),
    Row("prints later", "(sleep 0.05; echo LATER) & echo on", 0, has="on", lacks="LATER"),
    Row("coprocess", "coproc cat; echo hi >&${COPROC[1]}; read x <&${COPROC[0]}; echo $x", 0, exactly="hi\n"),
    Row("process substitution", "cat <(echo a) <(echo b)", 0, exactly="a\nb\n"),
    Row("orphans", "for i in {1..60}; do ( sleep 0.01 & ); done; echo on", 0, has="on"),
    Row("disown", "sleep 1000 & disown -a; echo on", 0, has="on"),
    # Limits
    Row("few descriptors", "ulimit -n 20; echo hi", 0, has="hi"),
    Row("no files at all", "ulimit -f 0; echo hi", None, has="hi"),
    Row("no time at all", "ulimit -t 1; while :; do :; done", None, restarted=True, after=""),
    Row("memory without a name",
        "python3 -c \"import os; fd = os.memfd_create('x')\nfor _ in range(2000): os.write(fd, bytes(1000000))\"",
        None),
    Row("few processes", "ulimit -u 20; echo hi", 0, has="hi"),
    Row("raise limits", "ulimit -n 1000000 || ulimit -f unlimited || echo refused", 0, has="refused"),
    Row("too many files",
        "exec {x}<>/dev/null; for i in {1..2000}; do exec {y}<>/dev/null || break; done 2>/tmp/e; "
        "grep -c . /tmp/e", 0),
    Row("fill /tmp", "head -c 100000000 /dev/zero >/tmp/x; rm /tmp/x", 0, has="No space left"),
    Row("fill shared memory",
        "head -c 100000000 /dev/zero >/dev/shm/x; rm /dev/shm/x", 0, has="No space left"),
    Row("fill the root", "echo x >/x; mkdir /y; echo x >/dev/y; echo x >/usr/z", 1, has="Read-only"),
    Row("large file", "head -c 10000000 /dev/zero >/workspace/big; ls -l /workspace/big", 0, has="1048576",
        limits=Limits(file_size=MIB)),
    # Places
    Row("lost directory",
        "mkdir /tmp/d; cd /tmp/d; rmdir /tmp/d; pwd", 0, has="/tmp/d", after="a b|f:1|/tmp/d\n"),
    Row("odd directory", "mkdir -p $'/tmp/a\\nb \"c'; cd $'/tmp/a\\nb \"c'; exit 1", 1, restarted=True,
        after='a b|f:1|/tmp/a\nb "c\n'),
    Row("unreadable directory", "mkdir /tmp/u; cd /tmp/u; chmod 000 /tmp/u; ls", 2, after="a b|f:1|/tmp/u\n"),
    Row("no home", "unset HOME PATH; cd; echo on", 0, has="on"),
    Row("locale", "LC_ALL=C; x='h\u00e9\U0001f600'; echo ${#x} $x", 0, has="\U0001f600"),
    Row("unicode", "x='h\u00e9\U0001f600'; echo ${#x}", 0, exactly="3\n"),
    Row("long path",
        "d=$(printf 'd%.0s' {1..200}); for i in {1..30}; do mkdir $d && cd $d; done; pwd | wc -c", 0,
        after=""),
    Row("environment of PID 1", "tr '\\0' '\\n' </proc/1/environ | grep -c PYTEST", 1, exactly="0\n"),
    Row("descriptor kept", "exec 3>/tmp/three; echo hi >&3; cat /tmp/three", 0, exactly="hi\n"),
]  # fmt: skip


@pytest.fixture(scope="module")
def provider() -> Bubblewrap:
    return Bubblewrap()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_row(row: Row, provider: Bubblewrap) -> None:
    sandbox = Sandbox(provider, limits=row.limits)
    async with nothing_left(sandbox):
        before = await sandbox.run(BEFORE)
        assert (before.exit_code, before.cwd, before.restarted) == (0, "/tmp", False), before
        waits_out = row.timed_out and not row.has
        result = await sandbox.run(row.command, timeout=row.timeout if waits_out else patience(row.timeout))
        _judge(row, result)
        after = await sandbox.run(AFTER, timeout=patience(10))
        if row.after:
            assert after.output == row.after, (result, after)
        for _ in range(200):  # on a busy machine what was killed has not died yet
            if row.background_kept or not after.background:
                break
            after = await sandbox.run("sleep 0.02")
        assert ("sleep 987" in after.background) == row.background_kept
        assert after.background == ("sleep 987",) or not row.alone_after


async def test_a_command_that_ends_within_a_substitution_spoils_nothing_in_the_shell(
    provider: Bubblewrap,
) -> None:
    """bash 5.2 would write in front of its stack of delimiters from then on, and die when that has to grow."""
    async with Sandbox(provider) as sandbox:
        for opened in ("echo $(", 'echo "$(', "x=$(echo `echo"):
            assert (await sandbox.run(opened)).exit_code == 2
            deep = await sandbox.run("echo " + "$(echo " * 12 + "'deep'" + ")" * 12)
            assert (deep.output, deep.restarted) == ("deep\n", False)


def _judge(row: Row, result: Result) -> None:
    assert result.timed_out == row.timed_out, result
    assert result.recreated == row.recreated, result
    if row.restarted:
        assert result.restarted, result
    if row.code is not None:
        assert result.exit_code == row.code, result
    if row.exactly is not None:
        assert result.output == row.exactly, result
    assert row.has in result.output, result
    assert not row.lacks or row.lacks not in result.output, result
