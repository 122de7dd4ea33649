# SPDX-License-Identifier: Apache-2.0
"""What this process may do: root of a container without privileges may do less than slurmd's root."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

_SYS_PTRACE = 19


def sees_others() -> bool:
    """Whether it may look into the processes of all users, as Berth's programs have to on a node."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    return os.geteuid() == 0 and found is not None and bool(int(found[1], 16) >> _SYS_PTRACE & 1)


needs_root = pytest.mark.skipif(
    not sees_others(), reason="only root, with the capability SYS_PTRACE, can look into processes of several users"
)
