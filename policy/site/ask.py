# SPDX-License-Identifier: Apache-2.0
"""Asks berthd over its own socket, which is for Slurm's user and root."""

import socket
from pathlib import Path

from policy.formats import wire
from policy.formats.errors import DaemonError

_SECONDS = 2.0


def status(path: Path) -> dict[str, str]:
    """Returns berthd's status."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.settimeout(_SECONDS)
            channel.connect(str(path))
            channel.send(wire.encode("status", {}))
            reply = channel.recv(wire.REPLY_BYTES)
    except PermissionError:
        raise DaemonError(f"{path} is for Slurm's user and root only; ask an admin, or use berth why JOBID") from None
    except TimeoutError:
        raise DaemonError(f"berthd does not answer on {path}; it hangs or is stopped, see its log") from None
    except OSError as problem:
        raise DaemonError(f"berthd does not answer on {path} ({problem.strerror}); is berthd running?") from None
    if not reply:
        raise DaemonError(f"berthd closed {path} without an answer; only Slurm's user and root may ask")
    return wire.decode(reply).fields
