# SPDX-License-Identifier: Apache-2.0
"""Jobs with a range of numbers of nodes (`-N 1-4`).

With GPUs of each node Slurm starts such a job on as many nodes as are free at that moment, with GPUs of the whole job
on the fewest. A place has one number of nodes, so a job has one only while it can start there. Else it is left to
Slurm, which may start it on fewer nodes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from policy.formats.wire import number

if TYPE_CHECKING:
    from policy.formats.job_plan import Pairs

WHY_NOT = "its place is not free, and Slurm may start it on another number of nodes"
"""The reason why a waiting job of this kind is given back."""

_SLURMS_TO_SETTLE = (
    *("req_nodes", "array", "het", "held", "begin", "dependency", "switches", "reservation"),
    *("cpus_per_tres", "ntasks_per_tres", "ntasks_per_node", "mem_per_tres"),
    *("exclusive", "flag.locality", "flag.group", "flag.gpu_share", "flag.gpu_tier"),
)
"""Keys of a request beside which a range is left to Slurm, such as tasks of each node: a pin would count them anew."""


def counts(texts: Mapping[str, str], gpus: int | None) -> range | tuple[int, ...]:
    """Returns the numbers of nodes of a job that may have a place; nothing if it has no range, or Slurm settles it.

    GPUs of the whole job are on the first number that a place has; GPUs of each node on the most that are free.
    """
    least, most = number(texts, "min_nodes") or 1, number(texts, "max_nodes")
    by_job = "tres_per_job" in texts
    other = by_job and not texts.keys().isdisjoint(("tres_per_node", "num_tasks"))
    other |= "gpu" in texts.get("tres_per_task", "")
    left = other or texts.get("client") != "batch" or "," in texts.get("partition", "")
    if most is None or most == least or left or not texts.keys().isdisjoint(_SLURMS_TO_SETTLE):
        return ()
    every = range(least, most + 1)
    return tuple(n for n in every[:gpus] if gpus and gpus % n == 0) if by_job else every


def of(was: "Pairs") -> str:
    """Returns the range of a request as it was before its pin, such as `1-4`; empty if it had none.

    >>> of((("min_nodes", "1"), ("max_nodes", "4"))), of((("min_nodes", "2"), ("max_nodes", "2")))
    ('1-4', '')
    """
    before = dict(was)
    least, most = before.get("min_nodes", "1"), before.get("max_nodes", "")
    return f"{least}-{most}" if most not in {"", least} else ""
