# SPDX-License-Identifier: Apache-2.0
"""Jobs for both sides: sbatch's options, and the record that the model makes of the same request."""

from __future__ import annotations

import time
from collections.abc import Callable

from policy.formats.slurm_syntax import pin_text
from tests.world.cluster import ModelJob

USERS = ("alice", "bob", "carol")
_ORDINARY = ("COMPLETED", 10**9)


def options(kind: str, size: int) -> list[str]:
    """sbatch's options."""
    k, node = 1 + size % 4, f"n{1 + size % 4}"
    return {
        "cpu": ["-N1", f"-n{1 + size % 8}"],
        "whole": ["-N1", f"--gpus={k}"],
        "gang": ["-N2", f"--gres=gpu:{k}"],
        "typed": ["-N1", "-w", node, f"--gres={_words(('gpu', 'seat'), size)}"],
        "share": ["-N1", "-w", node, f"--gres=shard:g{size % 8}:{10 * (3 + size % 6)}"],
        "seat": ["-N1", "-w", node, f"--gres=seat:g{size % 8}:1"],
        "array": ["-N1", f"--gres=gpu:{k}", f"-a{_array(size)}"],
        "array-typed": ["-N1", "-w", node, f"--gres={_words(('gpu',), size)}", f"-a{_array(size)}"],
        "held": ["-N1", f"--gpus={k}", "-H"],
        "begin": ["-N1", f"--gpus={k}", "--begin=now+900"],
        "no-requeue": ["-N1", f"--gpus={k}", "--no-requeue", "--extra=words"],
        "nodelist": ["-N1", "-w", node, f"--gres=gpu:{k}"],
        "exclude": ["-N1", "-x", node, f"--gres=gpu:{k}"],
        "licenses": ["-N1", f"--gpus={k}", f"-Lberth_h100:{k}"],
        "expedite": ["-N1", "-w", node, f"--gpus={k}", "--requeue=expedite"],
    }[kind]


def record(number: int, user: int, kind: str, size: int) -> ModelJob:
    """The same job as slurmctld's record; it ends when a script says so."""
    k, node, now = 1 + size % 4, f"n{1 + size % 4}", int(time.time())
    job = ModelJob(number, user, "job", 1, k, kind, _ORDINARY[1], _ORDINARY[0], submitted=now)
    make: dict[str, Callable[[], None]] = {
        "cpu": lambda: _set(job, k=0, cpus=1 + size % 8),
        "gang": lambda: _set(job, n=2, cpus=2, tres_per_node=f"gres/gpu:{k}"),
        "typed": lambda: _set(job, req_nodes=node, tres_per_node=_tres(("gpu", "seat"), size)),
        "share": lambda: _set(job, req_nodes=node, tres_per_node=f"gres/shard:g{size % 8}:{10 * (3 + size % 6)}"),
        "seat": lambda: _set(job, req_nodes=node, tres_per_node=f"gres/seat:g{size % 8}:1"),
        "array": lambda: _set(job, tres_per_node=f"gres/gpu:{k}"),
        "array-typed": lambda: _set(job, req_nodes=node, tres_per_node=_tres(("gpu",), size)),
        "held": lambda: _set(job, priority=0, user_hold=True, reason="JobHeldUser"),
        "begin": lambda: _set(job, begin=now + 900),
        "no-requeue": lambda: _set(job, requeue=False, extra="words"),
        "nodelist": lambda: _set(job, req_nodes=node, tres_per_node=f"gres/gpu:{k}"),
        "exclude": lambda: _set(job, exc_nodes=node, tres_per_node=f"gres/gpu:{k}"),
        "licenses": lambda: _set(job, licenses=f"berth_h100:{k}"),
        "expedite": lambda: _set(job, req_nodes=node, expedites=True),
    }
    make.get(kind, lambda: None)()
    if not job.tres_per_node and kind != "cpu":
        job.tres_per_job = f"gres/gpu:{k}"
    if kind.startswith("array"):
        job.array, job.tasks, job.at_once = number, list(range(2 + size % 3)), size % 3
    return job


def _set(job: ModelJob, **values: object) -> None:
    for name, value in values.items():
        setattr(job, name, value)


def _array(size: int) -> str:
    return f"0-{1 + size % 3}" + (f"%{size % 3}" if size % 3 else "")


def _places(size: int) -> tuple[int, ...]:
    return tuple(range(size % 4, size % 4 + 1 + size % 3))


def _words(kinds: tuple[str, ...], size: int) -> str:
    return ",".join(f"{kind}:g{place}:1" for kind in kinds for place in _places(size))


def _tres(kinds: tuple[str, ...], size: int) -> str:
    return pin_text.tres_text(kinds, [str(place) for place in _places(size)], 1)
