# SPDX-License-Identifier: Apache-2.0
"""The program nvidia-cuda-mps-control: the daemon's start, and the way to speak to it."""

from __future__ import annotations

# Commands come by the dozen, and each starts Python anew: socket, json and typing would double their time.
import _socket
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_HELP = """\
usage: nvidia-cuda-mps-control [options]
  -h                          Print this message
  -d                          Start daemon in background process
  -f                          Start daemon in foreground
  -v                          Print version of control daemon executable
  -multiuser-server           Start daemon in multi-user mode
"""
_HELP_STATIC = "  -S, --static-partitioning   Start daemon with static partitioning mode enabled\n"
_HELP_V3 = """\
usage: nvidia-cuda-mps-control [options] | <module> <verb> [arguments]
  -h, --help                  Print this message
  -d, --daemon                Setup the daemon in the background
  -f, --foreground            Setup the daemon in the foreground
  -m, --multiuser             Enable multiuser mode
  -a, --apply <file>          Apply configuration from a TOML file
  -p, --protocol <2|3>        Protocol 2 (legacy, default) or 3
  -q, --quit                  Quit and stop the control daemon and all running servers
  -v, --version               Print the version
"""
_DAEMON = {"-d", "--daemon", "-f", "--foreground"}
_MULTI_USER = {"-multiuser-server", "-m", "-M", "--multiuser", "--multiuser-server"}
_NEWER = ("r580", "r595")
# The numbers of CUDA's errors, as far as an exit status holds them: no GPU (100), a library that is not found (500).
_NO_GPU, _NO_LIBRARY = 100, 244
_STATIC = {"-S", "--static", "--static-partitioning"}


def main(arguments: list[str]) -> int:
    """Exit status of nvidia-cuda-mps-control."""
    pipe = pipe_directory()
    if not {"-h", "--help", "-v", "--version", *_DAEMON} & set(arguments):
        return _speak(arguments, pipe)
    from tests.fakes.mps import node  # noqa: PLC0415 - see above

    # What this driver can do: "r535", "r550", "r580", "r595", "v2" (default, as r550 with -multiuser-server), "static"
    # (with -S), "v3".
    driver = str(node.settings(pipe).get("driver", "v2"))
    if set(arguments) - _options(driver):
        if driver in _NEWER:
            sys.stdout.write("Unrecognized option \n" + _HELP)
            return 0
        # Older ones take what they do not know for a command.
        return _speak(arguments, pipe)
    if {"-h", "--help"} & set(arguments):
        sys.stdout.write(_HELP_V3 if driver == "v3" else _HELP + (_HELP_STATIC if driver == "static" else ""))
        return 0
    if {"-v", "--version"} & set(arguments):
        sys.stdout.write("CUDA MPS Control binary version: 13000\n")
        return 0
    return _daemon(arguments, pipe, driver)


def pipe_directory() -> str:
    """Returns where clients find the daemon. A test's node has a folder of its own: the machine may run a real MPS."""
    settings = os.environ.get("BERTH_FAKE_MPS", "/tmp/")
    return os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or os.path.dirname(settings) + "/nvidia-mps"  # noqa: PTH120


def _options(driver: str) -> set[str]:
    if driver == "v3":
        return {"-h", "--help", "-v", "--version", "-m", "--multiuser", "-p", "--protocol", "2", "3", *_DAEMON}
    several = {"-multiuser-server", "-M", "--multiuser", "--multiuser-server"}
    more = {
        "v2": {"-multiuser-server"},
        "static": {"-multiuser-server", *_STATIC},
        "r580": several,
        "r595": {*several, *_STATIC},
    }.get(driver, set())
    return {"-h", "--help", "-d", "-f", *more}


def _daemon(arguments: list[str], pipe: str, driver: str) -> int:
    import fcntl  # noqa: PLC0415 - see above

    from tests.fakes.mps import node  # noqa: PLC0415 - see above

    if driver in _NEWER:
        wanted = node.settings(pipe)
        if wanted.get("no_library"):
            return _NO_LIBRARY
        if not node.Machine(node.machine_file(wanted)).visible(os.environ.get("CUDA_VISIBLE_DEVICES")):
            return _NO_GPU
    words = set(arguments)
    protocol = 3 if driver == "v3" and ({"-p", "--protocol"} & words) and "3" in words else 2
    options = {
        "foreground": not words & {"-d", "--daemon"},
        "protocol": protocol,
        "multi_user": bool(words & _MULTI_USER),
        "static": bool(words & _STATIC),
    }
    log = os.environ.get("CUDA_MPS_LOG_DIRECTORY") or "/var/log/nvidia-mps"
    lock = os.open(f"{pipe}/control_lock", os.O_RDWR | os.O_CREAT, 0o666)
    if os.fstat(lock).st_uid == os.geteuid():
        # It heeds no umask.
        os.fchmod(lock, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write("An instance of this daemon is already running\n")
        return 1
    from tests.fakes.mps import daemon  # noqa: PLC0415 - see above

    if not words & {"-d", "--daemon"}:
        return daemon.serve(pipe, log, options, lambda: None)
    return _in_background(lambda started: daemon.serve(pipe, log, options, started))


def _in_background(serve: Callable[[Callable[[], None]], int]) -> int:
    """Return when the daemon listens."""
    ready, listening = os.pipe()
    if os.fork() == 0:
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for number in (0, 1):
            os.dup2(null, number)

        def started() -> None:
            os.dup2(null, 2)
            os.write(listening, b"1")

        os._exit(serve(started))
    os.close(listening)
    return 0 if os.read(ready, 1) else 1


def _speak(arguments: list[str], pipe: str) -> int:
    """Module and verb as arguments, else one command a line on standard input."""
    if {"-q", "--quit"} & set(arguments):
        arguments = ["quit"]
    commands = [arguments] if arguments else [line.split() for line in sys.stdin]
    code = 0
    for words in commands:
        if not words:
            continue
        answer = _ask(pipe, words)
        if answer is None:
            sys.stderr.write("Cannot find MPS control daemon process\n")
            return 1
        first, _, text = answer.partition("\n")
        sys.stdout.write(text)
        sys.stdout.flush()
        code = int(first)
    return code


def _ask(pipe: str, words: list[str]) -> str | None:
    """Exit status on a line, then the text; the daemon hangs up behind it."""
    one = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    answer = b""
    try:
        # Who did not start it comes in where clients do.
        door, mark = (
            ("control_privileged", b"") if os.access(f"{pipe}/control_privileged", os.W_OK) else ("control", b"!")
        )
        one.connect(f"{pipe}/{door}")
        one.send(mark + "\t".join(words).encode() + b"\n")
        while data := one.recv(65536):
            answer += data
    except OSError:
        return None
    return answer.decode() or None
