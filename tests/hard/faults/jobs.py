"""Submits jobs of every kind; each writes when it starts and ends, and which GPUs it could open."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from tests.slurm.harness import PROBE, Slurm

FOLDER = "/home/tests/faults"
_BODY = f"""{PROBE}
told() {{ echo "$1 ${{SLURM_RESTART_COUNT:-0}} $node ${{open#,}}" >>{FOLDER}/$SLURM_JOB_ID; }}
told start
"""
KINDS: Mapping[str, tuple[str, str]] = {
    "one GPU": ("--gpus=1", "sleep {s}"),
    "four GPUs": ("--gpus=4", "sleep {s}"),
    "a whole node": ("--gpus=8", "sleep {s}"),
    "a gang": ("-N2 --gpus-per-node=4", "sleep {s}"),
    "an array": ("--array=1-3 --gpus=1", "sleep {s}"),
    "steps": ("-n2 --gpus-per-task=1", "srun -n2 sleep {s}"),
    "no GPU": ("-n1", "sleep {s}"),
    "a share": ("--gpu-share=30", "fake-cuda-app alloc=64 hold={s} || true"),
    "a large share": ("--gpu-share=60", "fake-cuda-app alloc=64 hold={s} || true"),
    "a host": ("--gpus=1 --gpu-tier=guaranteed", "fake-cuda-app alloc=64 hold={s} || true"),
    "a guest": ("--gpus=1 --gpu-tier=opportunistic", "fake-cuda-app alloc=64 hold={s} || true"),
    "a movable job": ("--gpus=1 --movable=0:05", "sleep {s}"),
    "one that fails and retries": ("--gpus=1 --retry=1", "sleep 2; exit 1"),
}


@dataclass(frozen=True, slots=True)
class SentJob:
    """A job as it was submitted."""

    id: int
    kind: str


def submit(slurm: Slurm, dice: random.Random, count: int) -> tuple[list[SentJob], int]:
    """Some jobs of drawn kinds, by two users; and how many submissions Slurm did not take, being away."""
    found, untaken = list[SentJob](), 0
    for user in ("alice", "bob"):
        drawn = dice.choices(list(KINDS), k=-(-count // 2))
        lines = []
        for kind in drawn:
            options, work = KINDS[kind]
            body = _BODY + work.format(s=dice.randrange(4, 25)) + "\ntold end\n"
            script = f"#!/bin/bash\n{body}"
            lines.append(
                f'echo "$(timeout 20 sbatch --parsable -t 3 --mem=50 --requeue -o /dev/null {options} 2>/dev/null'
                f" <<'JOB'\n{script}JOB\n)\""
            )
        told = slurm.target.bash("\n".join(lines), user=user, check=False, timeout=300).out.splitlines()
        for kind, number in zip(drawn, told, strict=False):
            untaken += not number.strip().isdigit()
            if number.strip().isdigit():
                found.append(SentJob(int(number), kind))
    return found, untaken
