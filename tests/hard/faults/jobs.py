# SPDX-License-Identifier: Apache-2.0
"""Submits jobs of every kind; each writes when it starts and ends, and which GPUs it could open."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tests.hard.faults.site import FaultySite
from tests.slurm.harness import PROBE

FOLDER = "/home/tests/faults"
OUTPUT = "/home/tests/faults.out"
USERS = ("alice", "bob")
FAILS = "one that fails and retries"
_BODY = f"""{PROBE}
told() {{ echo "$1 ${{SLURM_RESTART_COUNT:-0}} $node $(date +%s) ${{open#,}}" >>{FOLDER}/$SLURM_JOB_ID; }}
told start
"""
_USES_CUDA = "fake-cuda-app alloc=64 hold={s} || true"
_KINDS: Mapping[str, tuple[str, str]] = {
    "one GPU": ("--gpus=1", "sleep {s}"),
    "four GPUs": ("--gpus=4", "sleep {s}"),
    "a whole node": ("--gpus=8", "sleep {s}"),
    "a gang": ("-N2 --gpus-per-node=4", "sleep {s}"),
    "an array": ("--array=1-3 --gpus=1", "sleep {s}"),
    "steps": ("-n2 --gpus-per-task=1", "srun -n2 sleep {s}"),
    "no GPU": ("-n1", "sleep {s}"),
    "a movable job": ("--gpus=1 --movable=0:05", "sleep {s}"),
    FAILS: ("--gpus=1 --retry=1", "sleep 2; exit 1"),
}
_SHARED: Mapping[str, tuple[str, str]] = {
    "a share": ("--gpu-share=30", _USES_CUDA),
    "a large share": ("--gpu-share=60", _USES_CUDA),
    "a host": ("--gpus=1 --gpu-tier=guaranteed --gpu-mem=1G", _USES_CUDA),
    "a guest": ("--gpus=1 --gpu-tier=opportunistic", _USES_CUDA),
}
_WIDE: Mapping[str, tuple[str, str]] = {
    "eight whole nodes": ("-N8 --gpus-per-node=8", "sleep {s}"),
    "a wide gang": ("-N16 --gpus-per-node=4", "sleep {s}"),
    "a gang of one kind of node": ("-N12 --gpus-per-node=8 -C h100", "sleep {s}"),
    "a long array": ("--array=1-8 --gpus=2", "sleep {s}"),
}


@dataclass(frozen=True, slots=True)
class SentJob:
    """A job as it was submitted."""

    id: int
    kind: str
    at: float


def kinds_of(site: FaultySite) -> Mapping[str, tuple[str, str]]:
    """The kinds of jobs that a cluster can run: nobody holds shares where the nodes lack Berth's Prolog."""
    return {**_KINDS, **(_SHARED if site.holds_jobs else _WIDE)}


def submit(site: FaultySite, dice: random.Random, count: int) -> tuple[list[SentJob], int]:
    """Some jobs of drawn kinds, by two users; and how many submissions Slurm did not take, being away."""
    found, untaken = list[SentJob](), 0
    kinds = kinds_of(site)
    for user in USERS:
        drawn = dice.choices(list(kinds), k=-(-count // 2))
        lines = []
        for kind in drawn:
            options, work = kinds[kind]
            body = _BODY + work.format(s=dice.randrange(4, 25)) + "\nrc=$?\ntold end\nexit $rc\n"
            script = f"#!/bin/bash\n{body}"
            lines.append(
                'echo "$(timeout 20 sbatch --parsable -t 3 --mem=50 --requeue --open-mode=append'
                f" -o {OUTPUT}/%j {options} 2>/dev/null <<'JOB'\n{script}JOB\n)\""
            )
        told = site.slurm.target.bash("\n".join(lines), user=user, check=False, timeout=300).out.splitlines()
        at = time.time()
        for kind, number in zip(drawn, told, strict=False):
            untaken += not number.strip().isdigit()
            if number.strip().isdigit():
                found.append(SentJob(int(number), kind, at))
    return found, untaken
