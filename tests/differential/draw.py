# SPDX-License-Identifier: Apache-2.0
"""Requests drawn from the grammar of GPU jobs: all words of so many options together once, or at random."""

from __future__ import annotations

import random
from collections.abc import Iterator

from covertable import make

from .outcome import Request

GRAMMAR: dict[str, tuple[str, ...]] = {
    "command": ("srun", "sbatch", "salloc", "#SBATCH", "SBATCH_", "SALLOC_", "SLURM_"),
    "gpus": (
        *("", "--gpus=1", "--gpus=2", "--gpus=4", "--gpus=9", "--gres=gpu:1", "--gres=gpu:2", "--gres=gpu:8"),
        *("--gpus-per-node=2", "--gpus-per-task=1", "--gpus-per-task=2", "--tres-per-task=gres/gpu:1"),
        *("--gpus-per-socket=1", "--gres=none", "--gres=gpu:0", "--gpus=2 --gres=gpu:2", "--gpus-per-node=1 --gpus=2"),
    ),
    "nodes": ("", "-N1", "-N2", "-N1-2", "-w n2", "-x n1"),
    "tasks": ("", "-n1", "-n2", "-n4", "-n5"),
    "tasks_on_each": ("", "", "--ntasks-per-node=1", "--ntasks-per-node=2"),
    "tasks_per_gpu": ("", "", "", "--ntasks-per-gpu=1", "--ntasks-per-gpu=2"),
    "cpus": ("", "", "-c2", "-c3", "--mincpus=4"),
    "cpus_per_gpu": ("", "", "--cpus-per-gpu=1", "--cpus-per-gpu=2", "--cpus-per-gpu=3"),
    "memory": ("", "", "--mem=500", "--mem-per-cpu=100", "--mem-per-gpu=300", "--mem=0"),
    "bind": ("", "", "", "--gpu-bind=none", "--gpu-bind=closest", "--gpu-bind=single:1", "--gpu-bind=map_gpu:0,1"),
    "where": ("", "", "", "-C h100", "-C v100|h100", "--exclusive", "--exclusive=user"),
    "layout": ("", "", "", "-m cyclic", "-m plane=2", "--hint=nomultithread", "--threads-per-core=1"),
    "size": ("", "", "", "--overcommit", "--contiguous", "--spread-job", "--tmp=1"),
    "more": ("", "", "", "--array=1-2", ": -n1 --gpus=1", "--test-only"),
    "step": ("", "", "", "-n1", "-n1 --gpus=1", "--exact -n1 -c1 --gpus=1", "--gres=none", "-n2 --gpus-per-task=1"),
}
"""What one option says in each of its forms; an empty word leaves the option away, and stands more often."""

LEFT_AWAY = 0.55
"""The part of the draws in which an option that may stand is left out."""


def request(choice: dict[str, str]) -> Request:
    """The request of one word for each option, without what its command does not know."""
    command, more, step = choice["command"], choice["more"], choice["step"]
    by_srun = command in {"srun", "SLURM_"}
    waits = by_srun or command in {"salloc", "SALLOC_"}
    if waits and more in {"--array=1-2", "" if by_srun else "--test-only"}:
        more = ""
    if more.startswith(":") and command != "sbatch":
        more = ""
    words = [
        word for name, value in choice.items() if name not in {"command", "more", "step"} for word in value.split()
    ]
    return Request(command, (*words, *more.split()), () if by_srun or more else tuple(step.split()))


def at_random(seed: int, count: int) -> Iterator[Request]:
    """So many requests, each once."""
    drawn = random.Random(seed)
    seen: set[Request] = set()
    while len(seen) < count:
        # Most requests of many options contradict themselves, and say nothing.
        one = request(
            {
                name: "" if "" in words and drawn.random() < LEFT_AWAY else drawn.choice(words)
                for name, words in GRAMMAR.items()
            }
        )
        if one not in seen:
            seen.add(one)
            yield one


def covering(strength: int) -> list[Request]:
    """Requests in which each words of so many different options stand together at least once; always the same."""
    words = {name: list(dict.fromkeys(choices)) for name, choices in GRAMMAR.items()}
    return list(
        dict.fromkeys(request({name: str(row[name]) for name in GRAMMAR}) for row in make(words, strength=strength))
    )
