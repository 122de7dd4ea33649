"""Numbers the GPUs of nodes whose GPUs have no GRES type of their own, so that such a cluster can be watched.

Nothing can be pinned there: Slurm alone chooses the GPUs of a node. What it chose is known by their numbers.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from policy.formats.slurm_facts import NodeFacts, Reading


def numbered(reading: Reading) -> Reading:
    """Returns the reading as if GPU K of each such node had the type gK."""
    return replace(reading, nodes=tuple(map(_numbered, reading.nodes)))


def untyped(nodes: Iterable[NodeFacts]) -> list[NodeFacts]:
    """Returns the nodes that Slurm knows by a count of GPUs, whole nodes only: a node with both kinds is a mistake."""
    return [node for node in nodes if node.loose and not node.gpus]


# The same facts give the same object: whoever reads can tell by `is` what has changed.
@lru_cache(maxsize=65_536)
def _numbered(node: NodeFacts) -> NodeFacts:
    return replace(node, gpus=node.loose, loose=0) if node.loose and not node.gpus else node
