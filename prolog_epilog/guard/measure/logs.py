"""Reads MPS's logs as they grow: asking its control program would start a process for each look."""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from prolog_epilog.node import processes
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants.state import SetState

_FAULT = re.compile(rb"(?<!de)fault|illegal|fatal|exception", re.IGNORECASE)
_MOST = 65_536


@dataclass(slots=True)
class Logs:
    """The position up to which each log was read."""

    read: dict[Path, int] = field(default_factory=dict)

    def hints_at_fault(self, one: SetState, paths: Paths, boot: str) -> bool:
        """Tells whether MPS should be asked for its state: its daemon is gone, or a log hints at a new fault."""
        if one.daemon is not None and not processes.alive(one.daemon, boot):
            return True
        try:
            hints = [self._hints(log) for log in paths.log(one.name).glob("*.log")]
        except OSError:
            # The last tenant's Epilog removes the folder at this moment.
            return False
        return any(hints)

    def _hints(self, path: Path) -> bool:
        with suppress(OSError):
            size, known = path.stat().st_size, self.read.get(path, 0)
            self.read[path] = size
            if size == known:
                return False
            with path.open("rb") as file:
                file.seek(max(known if known < size else 0, size - _MOST))
                return _FAULT.search(file.read(_MOST)) is not None
        return False
