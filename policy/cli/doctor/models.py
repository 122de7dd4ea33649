# SPDX-License-Identifier: Apache-2.0
"""Checks limits and weights by GPU model for berth doctor, and the licences that replace them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from policy.cli.doctor.model_limits import BY_MODEL, limits
from policy.formats.errors import SlurmError
from policy.formats.slurm_facts import NodeFacts
from policy.request.counted import PREFIX, ours

Printed = Callable[..., bytes]
"""Runs one of Slurm's commands, given word by word, and returns its output."""


def nothing(*_: str) -> bytes:
    """Returns an empty output, for tests, and if only slurm.conf is checked."""
    return b""


def by_model(config: Mapping[str, str], nodes: Sequence[NodeFacts], printed: Printed) -> str:
    """Returns one sentence on what is wrong; empty if all is well."""
    try:
        dead = sorted(set(_dead(config, printed)))
    except SlurmError as problem:
        return f"limits by model are not known: {problem}"
    if dead:
        places, models = zip(*dead, strict=True)
        named = ", ".join(sorted({f"gres/gpu:{model} by license/{PREFIX}{model}" for model in models}))
        return (
            f"{', '.join(dict.fromkeys(places))}: by model, and with Berth no job holds GPUs by model; "
            f"replace {named}, see docs/admin/slurm.md"
        )
    return "; ".join(_licences(config, nodes))


def _dead(config: Mapping[str, str], printed: Printed) -> Iterator[tuple[str, str]]:
    """Yields the place and the model of each limit or weight that has no effect."""
    for key in ("AccountingStorageTRES", "PriorityWeightTRES"):
        yield from ((key, model) for model in BY_MODEL.findall(config.get(key, "")))
    for line in _lines(printed, "scontrol", "show", "partition", "-o", "-a"):
        name = re.search(r"PartitionName=(\S+)", line)
        yield from ((f"partition {name[1] if name else '?'}", model) for model in BY_MODEL.findall(line))
    if "slurmdbd" not in config.get("AccountingStorageType", ""):
        return
    for limit in limits(lambda *words: "\n".join(_lines(printed, *words)), config.get("ClusterName", "")):
        yield limit.whose, limit.model


def _licences(config: Mapping[str, str], nodes: Sequence[NodeFacts]) -> Iterator[str]:
    tracked = config.get("AccountingStorageTRES", "").lower().split(",")
    for name, count in sorted(ours(config.get("Licenses", "")).items()):
        gpus = sum(node.gpus + node.loose for node in nodes if name.removeprefix(PREFIX) in node.features)
        if not gpus:
            yield f"Licenses has {name}, and no GPU node has the feature {name.removeprefix(PREFIX)}"
        elif count < gpus:
            yield f"Licenses has {count} of {name} for {gpus} GPUs: jobs would wait for licences; write {name}:{gpus}"
        elif f"license/{name}".lower() not in tracked:
            yield f"add license/{name} to AccountingStorageTRES, or no limit can name it"


def _lines(printed: Printed, *command: str) -> list[str]:
    return printed(*command).decode("utf-8", "replace").splitlines()
