# SPDX-License-Identifier: Apache-2.0
"""Numbers the GPUs of nodes whose GPUs have no GRES type of their own, so that such a cluster can be planned.

No GPUs can be pinned there, nodes can: Slurm alone chooses the GPUs of a node. What it chose is known by their numbers.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from policy.formats.plan_fields import GPUS, MODEL, holds_place, pins_nodes_alone
from policy.formats.slurm_facts import JobFacts, NodeFacts, Reading
from policy.request.constraint import joined


def numbered(reading: Reading) -> Reading:
    """Returns the reading as if GPU K of each such node had the type gK, and the node its models as features."""
    return replace(reading, nodes=tuple(map(_numbered, reading.nodes)))


def untyped(nodes: Iterable[NodeFacts]) -> list[NodeFacts]:
    """Returns the nodes that Slurm knows by a count of GPUs, whole nodes only: a node with both kinds is a mistake."""
    return [node for node in nodes if node.loose and not node.gpus]


# The same facts give the same object: a caller can tell by `is` what has changed.
@lru_cache(maxsize=65_536)
def _numbered(node: NodeFacts) -> NodeFacts:
    if not node.loose or node.gpus:
        return node
    return replace(node, gpus=node.loose, loose=0, features=node.features | node.models)


class NodePins:
    """Lets waiting jobs whose pins name nodes alone look as if those named the GPUs that the plan chose."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[JobFacts, JobFacts]] = {}

    def shown(self, reading: Reading) -> Reading:
        """Returns the reading with such jobs; the same record gives the same object again."""
        known, self._made = self._made, {}
        return replace(reading, jobs=tuple([self._shown(job, known) for job in reading.jobs]))

    def _shown(self, job: JobFacts, known: dict[int, tuple[JobFacts, JobFacts]]) -> JobFacts:
        if job.state not in {"PENDING", "ARRAY"} or not pins_nodes_alone(job.plan):
            return job
        before = known.get(job.id)
        made = before if before is not None and before[0] is job else (job, _as_pinned(job))
        self._made[job.id] = made
        return made[1]


def _as_pinned(job: JobFacts) -> JobFacts:
    features = joined(job.features, job.known.get(MODEL, ""))
    placed = holds_place(job.plan) and job.required
    gpus = sum(1 << gpu for gpu in job.known.get(GPUS, ())) if placed else 0
    return replace(job, features=features, gpus=gpus or None)
