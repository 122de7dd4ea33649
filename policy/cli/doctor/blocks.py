# SPDX-License-Identifier: Apache-2.0
"""Checks for berth doctor that slurmctld places jobs by the blocks of Slurm's file.

Slurm 25.11.2 drops nodes from their blocks as they power down. If a node's block is set again by `scontrol update`,
slurmctld forgets that the node is in a block at all, while `scontrol show topology` looks right (SchedMD's pull
request 225).
"""

import re
from collections.abc import Sequence
from itertools import groupby, product

from policy.cli.doctor.models import Printed
from policy.cli.output import some
from policy.formats.errors import SlurmError
from policy.formats.hostlist import expand
from policy.formats.slurm_facts import NodeFacts
from topology.providers.slurm_fabric import SlurmFabric

_SHOWN = re.compile(r"^BlockName=(\S+).*? Nodes=(\S+)", re.MULTILINE)
_CURE = "run scontrol reconfigure"


def not_in_force(read: SlurmFabric, nodes: Sequence[NodeFacts], printed: Printed) -> str:
    """Returns what is wrong, and the command that mends it; empty if the blocks are in force."""
    try:
        said = printed("scontrol", "show", "topology").decode("utf-8", "replace")
    except SlurmError as problem:
        return f"slurmctld does not show its blocks: {problem}"
    shown = {name: frozenset(expand(members)) for name, members in _SHOWN.findall(said)}
    known = {node.name for node in nodes}
    dropped = [
        node
        for block in read.leaves
        for node in block.nodes
        if shown and node in known and node not in shown.get(block.name, ())
    ]
    if dropped:
        return f"{some(dropped)}: in a block of {read.source}, and not in slurmctld's; {_CURE}"
    pair = _of_two_blocks(read, nodes)
    if pair and _starts(pair, printed):
        names = " and ".join(node.name for node in pair)
        return f"one job may have {names}, which are in two blocks: slurmctld goes by no block; {_CURE}"
    return ""


def torn(read: SlurmFabric, nodes: Sequence[NodeFacts]) -> str:
    """Returns a block whose nodes are no neighbours in Slurm's order, by which it numbers ranks; empty if none is."""
    block = {name: leaf.name for leaf in read.leaves for name in leaf.nodes}
    runs = [name for name, _ in groupby(block[node.name] for node in nodes if node.name in block)]
    return next((name for name in runs if runs.count(name) > 1), "")


def _of_two_blocks(read: SlurmFabric, nodes: Sequence[NodeFacts]) -> tuple[NodeFacts, NodeFacts] | None:
    """Returns two nodes of a partition in two blocks; None if there are none, or Slurm may give such nodes to a job."""
    if not read.block_sizes or read.block_sizes[0] < 2:
        return None
    up = {node.name: node for node in nodes if node.up}
    first, *others = [[up[name] for name in block.nodes if name in up] for block in read.leaves]
    pairs = ((a, b) for block in others for a, b in product(first, block))
    return next((pair for pair in pairs if pair[0].partitions & pair[1].partitions), None)


def _starts(pair: tuple[NodeFacts, NodeFacts], printed: Printed) -> bool:
    """Tells whether slurmctld would start a job on both nodes; nothing is submitted."""
    partition = min(pair[0].partitions & pair[1].partitions)
    names = ",".join(node.name for node in pair)
    try:
        printed("sbatch", "--test-only", "-N2", f"--nodelist={names}", f"--partition={partition}", "--wrap=true")
    except SlurmError:
        return False
    return True
