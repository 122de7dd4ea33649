# SPDX-License-Identifier: Apache-2.0
"""Makes the words of the exact layout from the topology files, as `berth topo export --slurm` prints them."""

from collections.abc import Sequence
from pathlib import Path

from policy.cli.migrate.conf_text import entries
from policy.cli.migrate.node_lines import ExactNode
from policy.cli.output import some
from policy.cli.topo.export import layouts_of, machines_of
from policy.formats.errors import BerthError
from policy.formats.hostlist import expand


def exact_words(names: Sequence[str], folder: Path, *, cores: bool) -> dict[str, ExactNode]:
    """Returns the words of each node; raises BerthError if a node has none."""
    from topology.writers.slurm import render  # noqa: PLC0415  only a plan needs it

    refused: dict[str, str] = {}
    machines = list(machines_of(names, folder, refused))
    lines = render(machines, layouts_of(None, machines) if cores else None, comments=False)
    refused |= lines.refused
    if refused:
        node, why = next(iter(refused.items()))
        more = f" (and {some(list(refused)[1:])})" if len(refused) > 1 else ""
        raise BerthError(f"{node}{more} cannot be laid out: {why}; or name the nodes that can")
    gres: dict[str, list[str]] = {name: [] for name in names}
    for line in lines.gres_conf:
        for name in expand(entries(line)[0].get("NodeName") or ""):
            gres[name].append(line)
    found = {}
    for line in lines.slurm_conf:
        entry = entries(line)[0]
        for name in expand(entry.get("NodeName") or ""):
            found[name] = ExactNode(entry.get("Gres") or "", entry.get("Feature") or "", tuple(gres[name]))
    return found
