# SPDX-License-Identifier: Apache-2.0
"""The job of a Prolog or Epilog, as slurmd's environment names it."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from prolog_epilog.errors import CalledWrongly

_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_NODE = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_MAX = (1 << 32) - 1
_MOST_DIGITS = 12


class NodeJob(NamedTuple):
    """A job as slurmd names it. The texts in `environment` are the user's: data, never words of a command."""

    id: int
    uid: int
    node: str
    extra: str
    indices: tuple[int, ...]
    """The GPUs that Slurm names: with typed GRES only the last one, and none for a seat."""
    environment: Mapping[str, str]

    @property
    def start(self) -> int:
        """Returns the start of this run of the job, seconds since 1970; 0 if Slurm does not say."""
        return _or_zero(self.environment.get("SLURM_JOB_START_TIME", ""))

    @property
    def restarts(self) -> int:
        """Returns how often the job was requeued; 0 if Slurm does not say."""
        return _or_zero(self.environment.get("SLURM_JOB_RESTART_COUNT", ""))

    @property
    def ended_badly(self) -> bool:
        """Tells whether the job failed; one that was ended by SIGTERM did not."""
        return self.environment.get("SLURM_JOB_EXIT_CODE2", "0:0") not in {"0:0", "0:15"}


def of(environment: Mapping[str, str], context: str) -> NodeJob:
    """Returns the job of this call; `context` is `prolog` or `epilog`."""
    if environment.get("SLURM_SCRIPT_CONTEXT", f"{context}_slurmd") != f"{context}_slurmd":
        raise CalledWrongly(f"berth-{context} is slurmd's {context.title()}, and runs nowhere else; see slurm.conf")
    node = environment.get("SLURMD_NODENAME", "")
    if not _NODE.fullmatch(node):
        raise CalledWrongly(f"SLURMD_NODENAME is no node's name; berth-{context} is run by slurmd alone")
    return NodeJob(
        id=_number(environment, context, "SLURM_JOB_ID"),
        uid=_number(environment, context, "SLURM_JOB_UID"),
        node=node,
        extra=environment.get("SLURM_JOB_EXTRA", ""),
        indices=_indices(environment.get("SLURM_JOB_GPUS", "")),
        environment=environment,
    )


def _number(environment: Mapping[str, str], context: str, name: str) -> int:
    text = environment.get(name, "")
    if not _NUMBER.fullmatch(text) or int(text) > _MAX:
        raise CalledWrongly(f"{name} is no number; berth-{context} is run by slurmd alone")
    return int(text)


def _or_zero(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0


def _indices(text: str) -> tuple[int, ...]:
    words = text.split(",")
    return tuple(map(int, words)) if all(map(_NUMBER.fullmatch, words)) else ()


def first_node(folded: str) -> str:
    """Returns the first node of a list such as `n[1-3,07],login`: it ran the job's script.

    >>> first_node("rack[2-3]n[07,9],login"), first_node("n4")
    ('rack2n07', 'n4')
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", folded)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first.group()) if first else ""
