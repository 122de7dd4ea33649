# SPDX-License-Identifier: Apache-2.0
"""Opens sockets for berthd's processes on their host, and lowers their priority."""

import contextlib
import os
import socket
from pathlib import Path

from policy.formats.errors import DaemonError

_BACKLOG = 4_096


def listen(port: int) -> socket.socket:
    """Returns a listening socket for IPv6 and IPv4."""
    problem = OSError()
    # A host whose kernel has no IPv6, or has it switched off, still has IPv4.
    for family, dual in ((socket.AF_INET6, True), (socket.AF_INET, False)):
        try:
            return socket.create_server(("", port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
        except (OSError, ValueError) as found:
            problem = found if isinstance(found, OSError) else problem
    raise DaemonError(f"cannot listen on port {port}: {problem.strerror}")


def listen_here(path: Path) -> socket.socket:
    """Returns a listening socket for users of this host only."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        # The connection names the user, and answers contain only what Slurm would show that user.
        path.chmod(0o666)
        listener.listen(_BACKLOG)
    except OSError as problem:
        listener.close()
        raise DaemonError(f"cannot listen on {path}: {problem.strerror or problem}") from None
    return listener


_NICENESS = 10


def give_way() -> None:
    """Lowers this process's priority, for good."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
