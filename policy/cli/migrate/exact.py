"""Makes the words of the exact layout from the topology files, as `berth topo export --slurm` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from policy.cli.migrate.conf_text import entries
from policy.cli.migrate.node_lines import ExactNode
from policy.cli.output import some
from policy.cli.topo.export import layouts_of
from policy.formats.errors import BerthError
from policy.formats.hostlist import expand
from topology import files
from topology.errors import TopologyFileError

__all__ = ["exact_words"]


def exact_words(names: Sequence[str], folder: Path, *, cores: bool) -> dict[str, ExactNode]:
    """Returns the words of each node; raises BerthError if those of one cannot be made."""
    from topology.writers.slurm import render  # noqa: PLC0415  only a plan needs it

    machines = []
    refused: dict[str, str] = {}
    for name in names:
        try:
            machines.append(files.load(folder / f"{name}.json"))
        except TopologyFileError as problem:
            refused[name] = f"{problem}; run berth topo discover there"
    lines = render(machines, layouts_of(None, machines) if cores else None)
    refused |= lines.refused
    if refused:
        node, why = next(iter(refused.items()))
        more = f" (and {some(list(refused)[1:])})" if len(refused) > 1 else ""
        raise BerthError(f"{node}{more} cannot be laid out: {why}; or name the nodes that can")
    gres: dict[str, list[str]] = {name: [] for name in names}
    waiting: list[str] = []
    for line in lines.gres_conf:
        whose = entries(line)[0].get("NodeName")
        waiting.append(line)
        for name in expand(whose) if whose else ():
            gres[name] += waiting
        if whose:
            waiting = []
    found = {}
    for line in lines.slurm_conf:
        entry = entries(line)[0]
        for name in expand(entry.get("NodeName") or "") if entry.key == "nodename" else ():
            words = entry.get("Gres") or "", entry.get("Feature") or ""
            found[name] = ExactNode(*words, tuple(gres[name]))
    return found
