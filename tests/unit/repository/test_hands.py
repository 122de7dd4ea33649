# SPDX-License-Identifier: Apache-2.0
"""Commands that tests run in a container: what they write comes back whole."""

from __future__ import annotations

from tests.rights import needs_root
from tests.slurm import hands


@needs_root
def test_what_two_processes_write_at_once_comes_back() -> None:
    """As srun does for the components of a job."""
    write = "write() { i=0; while [ $i -lt 100 ]; do echo $1; i=$((i + 1)); done; }"
    script = f"{write}; for n in 1 2 3 4 5 6 7 8 9; do write a & write b & done; wait"
    said = hands.perform({"argv": ["sh", "-c", script], "user": "root", "env": {}, "stdin": ""})
    assert sorted(said["out"].split()) == ["a"] * 900 + ["b"] * 900
