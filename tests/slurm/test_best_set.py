# SPDX-License-Identifier: Apache-2.0
"""A job opens exactly the best GPUs of its node: checked by device files against brute force over all subsets."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from topology.model import Machine
from topology.sets.wiring import wiring

from .harness import Seen, Slurm, everywhere, seen

NODES = ("n1", "n2", "n3", "n4")
FORMS = tuple(form.format(k) for k in (2, 4) for form in ("--gpus={}", "--gres=gpu:{}", "--gpus-per-node={}"))
BUSY: tuple[tuple[int, ...], ...] = ((), (0, 5), (0, 2, 5, 7))
FULL = os.environ.get("BERTH_FULL_MATRIX") == "1"
"""Every form at every occupancy; else each of both sizes in one of the forms, in turn."""

BUILD = Path(__file__).resolve().parents[2] / "build"

# Submits each form in turn and waits for it: the occupancy of the node is the same for each.
DRIVER = """
cd {shared}
for form in {forms}; do for partition in plain gpu; do
    job=$(sbatch --parsable -p $partition -C {feature} -N1 -t 5 --mem=100 $form -o {shared}/%j.out probe.sh 2>/dev/null)
    for i in $(seq 300); do grep -q PROBE {shared}/$job.out 2>/dev/null && break; sleep 0.05; done
    echo "FORM $form $partition"; cat {shared}/$job.out
    while [ -n "$(squeue -h -j $job 2>/dev/null)" ]; do sleep 0.05; done
    [ $partition = gpu ] || sleep 0.7  # two ticks: berthd must have seen the GPUs come back
done; done
"""


# GB/s across the narrowest cut, of the weakest pair and of all pairs together.
Merit = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Row:
    """One submission, made twice: the GPUs that plain Slurm gave, and those that Berth gave."""

    node: str
    form: str
    busy: tuple[int, ...]
    plain: tuple[int, ...]
    plain_merit: Merit
    berth: tuple[int, ...]
    berth_merit: Merit
    best_merit: Merit


def merit(machine: Machine, gpus: Iterable[int]) -> Merit:
    """Returns the merit of a set of GPUs, computed in the slow and obvious way."""
    first, *others = sorted(gpus)
    paths = wiring(machine).gbps
    pairs = [paths[a][b] for a, b in itertools.combinations((first, *others), 2)]
    cuts = [
        max(sum(machine.gbps[a][b] for a, b in across), *(paths[a][b] for a, b in across))
        for count in range(len(others))
        for some in itertools.combinations(others, count)
        if (across := list(itertools.product({first, *some}, set(others) - set(some))))
    ]
    return round(min(cuts), 3), round(min(pairs), 3), round(sum(pairs), 3)


def forms_of(node: str, busy: tuple[int, ...]) -> tuple[str, ...]:
    """Returns the requests for a node with these GPUs in use."""
    return FORMS if FULL else FORMS[(NODES.index(node) + BUSY.index(busy)) % 3 :: 3]


def submissions(slurm: Slurm, busy: tuple[int, ...]) -> dict[tuple[str, str, str], Seen]:
    """Runs every form on every node, the four nodes side by side."""
    holders = [slurm.hold_gpus(node, busy) for node in NODES] if busy else []
    running = {
        node: slurm.target.popen(
            DRIVER.format(shared=slurm.shared, forms=" ".join(forms_of(node, busy)), feature=slurm.machines[node].model)
        )
        for node in NODES
    }
    found: dict[tuple[str, str, str], Seen] = {}
    for node, process in running.items():
        output, _ = process.communicate(timeout=240)
        for part in output.split("FORM ")[1:]:
            form, partition = part.splitlines()[0].split()
            probes = seen(part)
            assert len(probes) == 1, f"{node} {form} {partition}: {part}"
            assert probes[0].node == node
            found[node, form, partition] = probes[0]
    if holders:
        slurm.target.run(["scancel", *map(str, holders)], user="root")
    return found


@pytest.fixture(scope="session")
def tables(clusters: dict[str, Slurm]) -> dict[str, list[Row]]:
    return everywhere(clusters, table_of)


@pytest.fixture
def rows(slurm: Slurm, tables: dict[str, list[Row]]) -> list[Row]:
    return tables[slurm.name]


def table_of(slurm: Slurm) -> list[Row]:
    """Every form on every node at every occupancy; kept under build/ too."""
    slurm.clear()
    table = []
    for busy in BUSY:
        found = submissions(slurm, busy)
        for node, form in ((name, form) for name in NODES for form in forms_of(name, busy)):
            machine = slurm.machines[node]
            free = set(range(machine.size)) - set(busy)
            plain, berth = found[node, form, "plain"].gpus, found[node, form, "gpu"].gpus
            best = max(merit(machine, s) for s in itertools.combinations(sorted(free), len(berth)))
            table.append(
                Row(
                    node,
                    form,
                    busy,
                    plain,
                    merit(machine, plain),
                    berth,
                    merit(machine, berth),
                    best,
                )
            )
    BUILD.mkdir(exist_ok=True)
    version = ".".join(f"{part:02}" for part in slurm.version)
    record = json.dumps([asdict(row) for row in table], indent=1)
    (BUILD / f"placements-{version}.json").write_text(record, encoding="utf-8")
    return table


def test_every_form_on_every_machine_opens_the_best_set(rows: list[Row]) -> None:
    assert len(rows) == len(NODES) * len(BUSY) * (len(FORMS) if FULL else 2)
    assert {row.form for row in rows} == set(FORMS)

    for row in rows:
        assert len(row.berth) == int(row.form[-1])
        assert not set(row.berth) & set(row.busy)
        assert row.berth_merit == row.best_merit, row


def test_never_less_bandwidth_than_slurm_alone_gives(rows: list[Row]) -> None:
    worse = [row for row in rows if row.berth_merit < row.plain_merit]

    assert not worse


def test_slurm_alone_misses_linked_gpus(rows: list[Row]) -> None:
    """The reason why Berth exists; should a Slurm release mend this, we want to know."""
    missed = [row for row in rows if row.plain_merit[:2] < row.best_merit[:2]]

    assert any(row.node == "n1" for row in missed)
    assert any(row.node == "n3" for row in missed)
