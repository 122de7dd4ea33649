# SPDX-License-Identifier: Apache-2.0
"""The guard's notice of its node's GPUs (docs/develop/formats.md): a node's name may since name another machine."""

import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prolog_epilog.guard.tell.notice import Payload

EVERY_S = 600.0
"""Seconds between two notices: berthd forgets them when it restarts."""
SOON_S = 60.0
"""Seconds to the second notice: at the node's start there may be nothing yet that signs the first."""

_GPUS = Path("/proc/driver/nvidia/gpus")
_FOUND = re.compile(r"GPU UUID:\s*([A-Za-z0-9-]+)\s.*?Device Minor:\s*(\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MachineNotice:
    """The UUIDs of a node's GPUs, by position."""

    node: str
    uuids: tuple[str, ...]

    @property
    def text(self) -> str:
        """Returns the credential's payload."""
        return f"berth/1 machine node={self.node} gpus={','.join(self.uuids)}"


class MachineNotices:
    """Tells at the guard's start, and again from time to time."""

    def __init__(self, notify: Callable[[Payload], None], folder: Path = _GPUS, node: str = "") -> None:
        self._notify, self._folder = notify, folder
        self._node = node or socket.gethostname().partition(".")[0]
        self._due, self._wait = 0.0, SOON_S

    def look(self) -> None:
        """Tells if it is time, and if the driver knows each GPU: it hides the UUID of one that nobody has used yet."""
        if (now := time.monotonic()) < self._due:
            return
        self._due, self._wait = now + self._wait, EVERY_S
        texts = [path.read_text(encoding="ascii", errors="replace") for path in self._folder.glob("*/information")]
        found = [match for text in texts if (match := _FOUND.search(text))]
        if found and len(found) == len(texts):
            in_order = sorted(found, key=lambda match: int(match[2]))
            self._notify(MachineNotice(self._node, tuple(match[1] for match in in_order)))
