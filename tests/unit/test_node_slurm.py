"""What a node asks of Slurm about a guest: is it ended because berthd sent it away?"""

from __future__ import annotations

from pathlib import Path

import pytest

from prolog_epilog.slurm import Scontrol

AWAY = "site text [berth/1 state=placed id=00 tier=opportunistic parked=1795327596 evicted=1] more"
SEATED = "[berth/1 state=placed id=00 tier=opportunistic evicted=1]"


def scontrol(folder: Path, state: str, comment: str, name: str = "job") -> Scontrol:
    """Prints a record as Slurm does."""
    record = f"JobId=42 JobName={name}\n   UserId=alice(1001)\n   JobState={state} Reason=None\n   Restarts=1\n"
    (folder / "record").write_text(f"{record}   AdminComment={comment}\n   Comment={AWAY}\n")
    program = folder / "scontrol"
    program.write_text(f'#!/bin/sh\n[ "$*" = "show job 42" ] && cat {folder}/record\n')
    program.chmod(0o755)
    return Scontrol(str(program))


@pytest.mark.parametrize(
    ("state", "comment", "sent_away"),
    [
        ("COMPLETING", AWAY, True),
        ("PENDING", AWAY, True),
        ("RUNNING", AWAY, False),  # warned, and not put back yet
        ("COMPLETING", SEATED, False),  # its user or its time limit ends it
        ("CANCELLED", AWAY, False),
        ("COMPLETING", "", False),
    ],
)
def test_only_a_guest_that_is_put_back_was_sent_away(
    tmp_path: Path, state: str, comment: str, *, sent_away: bool
) -> None:
    assert scontrol(tmp_path, state, comment).is_sent_away(42) is sent_away
