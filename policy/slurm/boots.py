"""Boot times of nodes, asked for of a few nodes and seldom: readings do not carry them."""

from collections.abc import Callable, Iterable

import msgspec

from policy.formats.errors import SlurmError
from policy.slurm.by_command.command import run_command
from policy.slurm.by_command.job_json import Number


class _Node(msgspec.Struct, frozen=True):
    name: str
    boot_time: Number = Number()


class _Answer(msgspec.Struct, frozen=True):
    nodes: list[_Node]


_DECODER = msgspec.json.Decoder(_Answer)


def boot_times(names: Iterable[str], run: Callable[..., bytes] = run_command) -> dict[str, int]:
    """Seconds since 1970 by node; a node that has not told yet is left out."""
    try:
        nodes = _DECODER.decode(run("scontrol", "show", "node", ",".join(names), "--json")).nodes
    except msgspec.MsgspecError as problem:
        raise SlurmError(f"Slurm's JSON of nodes has another form than Berth knows: {problem}") from None
    return {node.name: node.boot_time.number for node in nodes if node.boot_time.number > 0}
