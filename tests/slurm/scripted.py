# SPDX-License-Identifier: Apache-2.0
"""A stand-in for berthd that says what a test wants, so that the plugin can be watched on its own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from policy.formats.wire import escape

from .harness import Slurm

DAEMON = Path(__file__).with_name("scripted_daemon.py")


def place(nodes: str, gpus: str, asked: str = "", **more: str) -> dict[str, str]:
    """The reply that pins a job to these GPUs of each of these nodes."""
    segment = f"state=placed id=0 asked={escape(asked)} nodes={nodes} gpus={gpus} seats=0"
    return {"verb": "place", "nodes": nodes, "gpus": gpus, "seats": "0", "segment": escape(segment), **more}


def later(nodes: int, gpus: int, asked: str = "", **more: str) -> dict[str, str]:
    """The reply that leaves a job unpinned for now, in the form in which it can be pinned."""
    segment = f"state=later id=0 asked={escape(asked)} n={nodes} k={gpus}"
    return {"verb": "later", "n": str(nodes), "k": str(gpus), "segment": escape(segment), **more}


@contextmanager
def scripted(slurm: Slurm, *replies: dict[str, str]) -> Iterator[None]:
    """Puts the stand-in in berthd's place; afterwards berthd is stopped, and the next test starts it."""
    slurm.berthd("stop")
    slurm.target.run(["tee", "/tmp/scripted_daemon.py"], user="root", stdin=DAEMON.read_text(encoding="utf-8"))
    words = shlex.quote(json.dumps(replies))
    slurm.target.bash(
        f"""
        rm -f /run/berth/berthd.sock
        as_slurm="setpriv --reuid=slurm --regid=slurm --init-groups"
        setsid $as_slurm python3 /tmp/scripted_daemon.py {words} </dev/null >/tmp/scripted.log 2>&1 &
        echo $! >/tmp/scripted.pid
        for i in $(seq 100); do [ -S /run/berth/berthd.sock ] && exit 0; sleep 0.05; done
        cat /tmp/scripted.log >&2; exit 1
        """,
        user="root",
    )
    try:
        yield
    finally:
        slurm.target.bash("kill $(cat /tmp/scripted.pid); rm -f /run/berth/berthd.sock", user="root", check=False)
