# SPDX-License-Identifier: Apache-2.0
"""Nodes that nobody looks at for a moment: what they have in use follows from the jobs."""

import doctest
import json
import re
from pathlib import Path
from typing import Any

import pytest

from policy.formats.errors import SlurmError
from policy.formats.slurm_facts import NodeFacts
from policy.slurm.by_library import between_looks
from policy.slurm.by_library.libslurm import LibslurmGateway
from tests.unit.policy.slurm.stand_in import StandIn

DATA = Path(__file__).parents[2] / "data" / "slurm-26.05" / "berth-slurm-read"
BEHIND, ABREAST = '["nodes",1]', '["nodes",0]'


@pytest.fixture
def recorded() -> str:
    return DATA.read_text().rpartition('["ok"]')[0].partition("\n")[2]


def job_on(recorded: str, node: str) -> list[Any]:
    """A running job of the recorded answer."""
    records = [json.loads(line) for line in recorded.splitlines()]
    return next(record for record in records if record[0] == "job" and record[14] == node)


def starts(recorded: str, number: int, node: str, gres: list[str], *, cpus: int = 2, mem: int = 500) -> str:
    record = job_on(recorded, "n1")
    record[1], record[12], record[14], record[23], record[24] = number, cpus, node, f"cpu={cpus},mem={mem}M", gres
    return json.dumps(record)


def looks(gateway: LibslurmGateway) -> dict[str, NodeFacts]:
    return {node.name: node for node in gateway.read(ended=False).nodes}


def use(node: NodeFacts) -> tuple[int, int, tuple[int, ...], int, int]:
    return node.gpus_used, node.seats_used, node.shared, node.cpus_used, node.mem_used


def test_a_job_that_started_holds_its_gpus_though_nobody_looked_at_its_node(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    whole = starts(recorded, 900, "n3", ["gpu:g1:1(IDX:1),gpu:g2:1(IDX:2),seat:g1:1(IDX:1)"])
    shares = starts(recorded, 901, "n3", ["shard:g4:30(30/100)"], cpus=1, mem=100)
    stand_in.answers("read", recorded, f"{whole}\n{shares}\n{BEHIND}")

    before, after = looks(gateway), looks(gateway)

    assert use(before["n3"]) == (0, 0, (), 0, 0)
    assert use(after["n3"]) == (0b10110, 0b10, (0, 0, 0, 0, 30), 3, 600)
    assert all(after[name] is before[name] for name in ("n1", "n2", "n4"))


def test_what_a_job_leaves_is_free_and_shares_of_others_stay(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    both = [starts(recorded, number, "n3", ["shard:g4:30(30/100)"], cpus=1, mem=100) for number in (900, 901)]
    gone = '["gone","job",{}]'
    runs = job_on(recorded, "n1")
    stand_in.answers(
        "read",
        recorded,
        "\n".join([*both, BEHIND]),
        f"{gone.format(900)}\n{gone.format(runs[1])}\n{BEHIND}",
        f"{gone.format(901)}\n{BEHIND}",
    )

    seen = [looks(gateway) for _ in range(4)]

    assert [use(one["n3"])[:3] for one in seen] == [
        (0, 0, ()),
        (0b10000, 0, (0, 0, 0, 0, 60)),
        (0b10000, 0, (0, 0, 0, 0, 30)),
        (0, 0, ()),
    ]
    assert (use(seen[1]["n1"])[0], use(seen[2]["n1"])) == (0b101, (0, 0, (), 0, 0))


def test_a_look_at_the_nodes_replaces_what_was_worked_out(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    n3 = next(json.loads(line) for line in recorded.splitlines() if line.startswith('["node",2,'))
    n3[4], n3[6] = 7, 700
    started = [starts(recorded, 900, node, ["gpu:g1:1(IDX:1)"]) for node in ("n3", "n2")]
    stand_in.answers(
        "read",
        recorded,
        f"{started[0]}\n{BEHIND}",
        f"{started[1]}\n{BEHIND}",
        # n2 is as it was at the last look, so the program does not tell it again.
        f"{ABREAST}\n{json.dumps(n3)}",
        "",
    )

    first, *_, last, after = [looks(gateway) for _ in range(5)]

    assert last["n2"] is first["n2"]
    assert use(last["n3"])[3:] == (7, 700)
    assert after == last


def test_a_reading_tells_how_late_its_nodes_may_be(gateway: LibslurmGateway, stand_in: StandIn, recorded: str) -> None:
    node = next(line for line in recorded.splitlines() if line.startswith('["node",0,'))
    more = "\n".join(node.replace('["node",0,"n1"', f'["node",{number},"n{number}"') for number in range(5, 1_005))
    stand_in.answers("read", recorded, more)

    late = [gateway.read(ended=False).nodes_late for _ in range(2)]

    assert late == [1.0, pytest.approx(1_004 * 58e-6 * 50)]
    assert not doctest.testmod(between_looks).failed


def test_of_jobs_that_come_and_go_alike_the_node_stays_the_same_object(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    runs = job_on(recorded, "n1")
    other = json.dumps([runs[0], 900, *runs[2:]])
    stand_in.answers("read", recorded, f'{other}\n["gone","job",{runs[1]}]\n{BEHIND}')

    before, after = looks(gateway), looks(gateway)

    assert after["n1"] is before["n1"]


@pytest.mark.parametrize(
    ("field", "value", "left"),
    # An ending job still holds what it has; a suspended one gives its CPUs; one on many nodes takes from each.
    [(2, "COMPLETING", (0b101, 1, 300)), (2, "SUSPENDED", (0b101, 0, 300)), (14, "", (0, 0, 0)), (3, 1, (0, 0, 0))],
)
def test_what_a_job_holds_follows_its_state(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str, field: int, value: object, left: tuple[int, ...]
) -> None:
    changed = job_on(recorded, "n1")
    changed[field] = value
    stand_in.answers("read", recorded, f"{json.dumps(changed)}\n{BEHIND}")
    looks(gateway)

    gpus, _, _, cpus, mem = use(looks(gateway)["n1"])

    assert (gpus, cpus, mem) == left


def test_a_job_on_nodes_that_slurm_no_longer_has_is_no_trouble(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    stand_in.answers("read", recorded, starts(recorded, 900, "n[3,9]", ["gpu:g0:1(IDX:0)"] * 2, cpus=3) + "\n" + BEHIND)
    looks(gateway)

    assert use(looks(gateway)["n3"])[0::3] == (1, 2)


def test_after_the_programs_end_nothing_worked_out_is_left(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    started = starts(recorded, 900, "n3", ["gpu:g1:1(IDX:1)"])
    stand_in.answers(
        "read", recorded, f"{started}\n{BEHIND}", '["error","Unable to contact slurm controller"]', recorded
    )
    first = looks(gateway)
    looks(gateway)
    with pytest.raises(SlurmError, match="Unable to contact"):
        looks(gateway)

    assert looks(gateway)["n3"] == first["n3"]


def test_the_program_and_this_side_have_one_rule_of_how_late_nodes_may_be() -> None:
    source = (Path(__file__).parents[4] / "slurm_plugins/berth_slurm/gateway_read.c").read_text()
    defined = {name: int(value) for name, value in re.findall(r"#define (\w+) (\d+)$", source, re.MULTILINE)}

    assert (defined["LEAVE_ALONE"], defined["NODE_US"]) == (between_looks.LEAVE_ALONE, between_looks.NODE_US)
    assert defined["SELDOM_MS"] == 1_000 * between_looks.LEAST_LATE
    assert defined["LEAVE_ALONE_AT_MOST_MS"] == 1_000 * between_looks.MOST_LATE
