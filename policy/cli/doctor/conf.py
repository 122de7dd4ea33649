# SPDX-License-Identifier: Apache-2.0
"""Checks the tables of berth.conf that nodes read, and names in it that Slurm lacks, for doctor and berthd."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from policy.cli.doctor.models import Printed, nothing
from policy.formats.errors import BerthError, SlurmError, nearest
from policy.site import page_options
from policy.site.config import Config, load
from policy.slurm.by_command.command import CommandGateway, run_command


def wrong_tables(path: Path) -> str:
    """Returns the first mistake in the tables of the nodes, or in the options of the page; empty if there is none."""
    from prolog_epilog.errors import NodeError  # noqa: PLC0415
    from prolog_epilog.guard import options  # noqa: PLC0415
    from prolog_epilog.settings import config  # noqa: PLC0415

    try:
        config.load(str(path))
        options.load(str(path))
        page_options.read(load(path).web_options or "")
    except (BerthError, NodeError) as problem:
        return str(problem)
    return ""


def unknown_names(config: Config, partitions: Iterable[str], printed: Printed = nothing) -> Iterator[str]:
    """Yields a sentence for each partition and QOS that berth.conf names and Slurm does not have."""
    sharing = config.settings.sharing
    rules = [*sharing.tier_default, *sharing.tier_allowed]
    named = [("[hook] skip_partitions", "partition", name) for name in sorted(config.skip_partitions)]
    named += [("[berthd] end_idle", "partition", name) for name in config.end_idle]
    named += [("[preflight] partition", "partition", name) for name in config.preflight_partitions]
    named += [("[sharing] tier_default or tier_allowed", one.kind, one.name) for one in rules]
    known = {"partition": set(partitions), "qos": set[str]()}
    if any(kind == "qos" for _, kind, _ in named):
        # Without an answer about QOS, their names cannot be checked.
        with suppress(SlurmError):
            known["qos"] = set(printed("sacctmgr", "-nP", "show", "qos", "format=name").decode().split())
    for key, kind, name in named:
        if known.get(kind) and name not in known[kind]:
            yield f"{key} names the {kind} {name}, which Slurm does not have{nearest(name, known[kind])}"


def main() -> int:
    """Prints what is wrong with a berth.conf; if Slurm does not answer, names are not checked."""
    path = Path(sys.argv[1])
    found = [wrong_tables(path)]
    try:
        partitions = [one.name for one in CommandGateway().read(ended=False).partitions]
        found += unknown_names(load(path), partitions, run_command)
    except BerthError:
        pass
    found = [one for one in found if one]
    sys.stderr.write("".join(f"{one}\n" for one in found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
