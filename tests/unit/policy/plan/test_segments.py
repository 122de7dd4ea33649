# SPDX-License-Identifier: Apache-2.0
"""Groups of GPUs: the segments in which Slurm's topology/block gives a job its nodes."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from policy.placement.registry import create
from policy.plan.answer.case import Understanding
from policy.plan.ledger.book import Book
from policy.plan.ledger.tracker import open_book
from policy.request.settings import Settings
from tests.examples import SEED
from tests.unit.deciding import Decision, decide, decide_nodes, only_watch
from tests.unit.deciding import values as told
from tests.unit.policy_world import NOW, fleet, node, reading, submit
from topology.network.blocks import Blocks
from topology.network.fabric import Fabric

GANG = {"tres_per_node": "gres/gpu:8", "min_nodes": "8", "max_nodes": "8"}


def racks(block: int = 4, rack: int = 4, down: tuple[str, ...] = ()) -> Book:
    """Eight nodes of eight GPUs, in blocks of so many."""
    names = [f"n{number}" for number in range(1, 9)]
    look = reading([node(name, up=name not in down) for name in names])
    flat = Fabric.flat(tuple(one.name for one in look.nodes))
    made = fleet(look, None, replace(flat, blocks=Blocks((block,), np.arange(8) // rack)) if block else flat)
    return open_book(made, look)


def answer(group: str, book: Book | None = None, **fields: str) -> Decision:
    asked = submit(**{**GANG, **fields, "flag.group": group})
    return decide(asked, book or racks(), create("berth"), Settings(), NOW, Understanding())


@pytest.mark.parametrize(("group", "size"), [("1", "1"), ("8", "1"), ("16", "2"), ("32", "4")])
def test_each_group_lies_in_one_block(group: str, size: str) -> None:
    found = answer(group)

    assert (found.verb, found.fields["segment_size"]) == ("pass", size)
    assert (told(found)["state"], told(found)["f.group"]) == ("passed", group)
    assert "nodes" not in found.fields
    assert "in one NVLink domain" in found.fields["message"]


def four_racks(*taken: str) -> Book:
    """Thirty-two nodes of eight GPUs in four racks; those named are taken."""
    names = [f"n{number}" for number in range(1, 33)]
    look = reading([node(name, gpus_used=255 * (name in taken), cpus_used=8 * (name in taken)) for name in names])
    blocks = Blocks((8,), np.arange(32) // 8)
    return open_book(fleet(look, None, replace(Fabric.flat(tuple(names)), blocks=blocks)), look)


FREE, TORN = four_racks(), four_racks("n1", "n9", "n17", "n25")


def test_segments_stay_short_by_a_snapshot_that_is_old_and_before_a_reservation() -> None:
    def size(book: Book, stale: str = "") -> str:
        asked = submit(**GANG, **{"flag.group": "8"})
        return decide(asked, book, create("berth"), Settings(), NOW, Understanding(), stale=stale).fields[
            "segment_size"
        ]

    reserved = four_racks()
    reserved.cluster.reserved_from[:] = NOW + 60
    assert (size(FREE), size(FREE, "berthd last read Slurm 90 s ago"), size(reserved)) == ("8", "1", "1")


@pytest.mark.parametrize(
    ("book", "fields", "size"),
    [
        (FREE, {}, "8"),
        (TORN, {"min_nodes": "4", "max_nodes": "4"}, "4"),
        (TORN, {}, "1"),
        (FREE, {"min_nodes": "16", "max_nodes": "16"}, "1"),
        (FREE, {"held": "1"}, "1"),
        (FREE, {"array": "1"}, "1"),
    ],
    ids=["free", "half a rack", "torn", "no room four times over", "held", "array"],
)
def test_segments_are_as_long_as_there_is_plenty_of_room_for(book: Book, fields: dict[str, str], size: str) -> None:
    assert answer("8", book, **fields).fields["segment_size"] == size


def widest(layout: tuple[int, ...], nodes: int) -> int:
    """The most racks that a group of so many nodes lies in, with so many nodes in each rack, one rack after another."""
    racks = [rack for rack, count in enumerate(layout) for _ in range(count)]
    return max(len(set(racks[begin : begin + nodes])) for begin in range(0, len(racks), nodes))


def test_the_widest_group_is_as_wide_as_the_best_of_all_layouts_leaves_it() -> None:
    """Where some layout on the free nodes keeps each group in one rack, Slurm has room for the segments, and else not.

    The widest group of a job in segments lies in one rack, in whichever racks Slurm lays the segments.
    """
    draw, seen = random.Random(SEED), set[bool]()
    for _ in range(60):
        taken = draw.sample(range(1, 33), draw.randint(0, 26))
        count, group = draw.choice((2, 4, 6, 8, 12)), draw.choice((8, 16, 24, 32))
        free = [8 - sum((number - 1) // 8 == rack for number in taken) for rack in range(4)]
        if group * 2 > count * 8 or count * 8 % group:
            continue
        layouts = [one for one in product(*(range(most + 1) for most in free)) if sum(one) == count]
        best = min((widest(one, group // 8) for one in layouts), default=0)
        asked = {"min_nodes": str(count), "max_nodes": str(count)}
        size = int(answer(str(group), four_racks(*(f"n{number}" for number in taken)), **asked).fields["segment_size"])
        fits = [one for one in layouts if all(nodes % size == 0 for nodes in one)]
        assert bool(fits) is (best == 1), (taken, count, group, size)
        assert {widest(one, group // 8) for one in fits} <= {1}
        seen.add(bool(fits))
    assert seen == {True, False}


def test_segments_for_which_no_state_of_the_nodes_has_room_are_not_asked_for() -> None:
    """Plain Slurm runs the job on 25 nodes of four racks; segments of five nodes are in each of these once."""
    found = answer("40", FREE, min_nodes="25", max_nodes="25")

    assert (found.verb, "segment_size" in found.fields) == ("pass", False)
    assert (
        "--group=40: NVLink domains have room for 4 of its 5 segments of 5 nodes [BERTH-227]" in found.fields["message"]
    )
    assert "segment_size" in answer("40", FREE, min_nodes="20", max_nodes="20").fields


@pytest.mark.parametrize(
    ("group", "fields", "why"),
    [
        ("24", {}, "8 nodes with 8 GPUs are no whole number"),
        ("12", {"min_nodes": "7", "max_nodes": "7"}, "7 nodes with 8 GPUs are no whole number"),
        ("8", {"req_nodes": "n1,n2,n3,n4,n5,n6,n7,n8"}, "as -N says it"),
        ("8", {"tres_per_node": "", "tres_per_job": "gres/gpu:64", "min_nodes": "", "max_nodes": ""}, "as -N says it"),
    ],
)
def test_what_cannot_be_cut_is_left_to_slurm_and_told(group: str, fields: dict[str, str], why: str) -> None:
    asked = {key: value for key, value in {**GANG, **fields, "flag.group": group}.items() if value}
    found = decide(submit(**asked), racks(), create("berth"), Settings(), NOW, Understanding())

    assert found.verb == "pass"
    assert "segment_size" not in found.fields
    assert why in found.fields["message"]


def test_a_group_that_no_block_holds_is_told() -> None:
    found = answer("32", racks(2))

    assert "it needs 4 nodes of one NVLink domain, which has 2" in found.fields["message"]


def test_a_users_own_segment_is_kept() -> None:
    found = answer("16", slurms_own="--segment")

    assert "segment_size" not in found.fields
    assert "with --segment only Slurm can choose" in found.fields["message"]


@pytest.mark.parametrize(
    ("group", "book", "fields"),
    [
        ("64", racks(8, 8), {}),
        ("8", racks(0), {}),
        ("8", racks(), {"min_nodes": "4", "max_nodes": "4", "flag.locality": "any"} | {"flag.group": "32"}),
    ],
)
def test_a_job_of_one_group_or_without_blocks_gets_its_place_as_ever(
    group: str, book: Book, fields: dict[str, str]
) -> None:
    asked = submit(**{**GANG, "flag.group": group, **fields})
    assert decide(asked, book, create("berth"), Settings(), NOW, Understanding()).verb == "place"


def test_a_site_that_only_watches_gets_no_segments() -> None:
    asked = submit(**GANG, **{"flag.group": "16"})
    found = decide(asked, racks(), create("berth"), Settings(), NOW, Understanding())

    assert "segment_size" in found.fields
    assert "segment_size" not in only_watch(found).fields


def test_on_the_plain_layout_too() -> None:
    asked = submit(**GANG, **{"flag.group": "16"})
    found = decide_nodes(asked, racks(), create("berth"), Settings(), NOW, Understanding())

    assert (found.verb, found.fields["segment_size"]) == ("pass", "2")


@pytest.mark.parametrize(("nodes", "most"), [(4, 3), (7, 6)])
def test_a_rack_with_a_tray_down_is_smaller_and_its_user_is_told(nodes: int, most: int) -> None:
    asked = submit(tres_per_node="gres/gpu:8", min_nodes=str(nodes), max_nodes=str(nodes))
    found = decide(asked, racks(down=("n3", "n8")), create("berth"), Settings(), NOW, Understanding())

    assert (
        f"Slurm's blocks join at most {most} nodes for one job that are up, it needs {nodes}" in found.fields["message"]
    )
    assert "BERTH-306" in found.fields["message"]


def test_a_job_in_segments_is_told_that_too_few_nodes_are_up() -> None:
    whole, torn = (answer("16", racks(down=down)).fields for down in (("n3",), ("n3", "n7")))

    assert "nodes that are up have room for 3 of its 4 [BERTH-226]" in whole["message"]
    assert "nodes that are up have room for 2 of its 4 [BERTH-226]" in torn["message"]
    # Scripts look for these two words in what `sbatch --test-only` says.
    assert "on nodes" not in whole["message"] + torn["message"]
    assert whole["segment_size"] == torn["segment_size"] == "2"
    assert "are up" not in answer("16").fields["message"]


@pytest.mark.parametrize("block", [0, 4], ids=["no blocks", "blocks"])
def test_a_domain_with_a_tray_down_is_smaller_for_a_job_that_wants_one(block: int) -> None:
    book = racks(block, down=("n3", "n8"))
    book.fleet = replace(book.fleet, fabric=replace(book.fleet.fabric, domain=np.arange(8) // 4))
    asked = submit(tres_per_node="gres/gpu:8", min_nodes="4", max_nodes="4", **{"flag.locality": "nvlink"})
    found = decide(asked, book, create("berth"), Settings(), NOW, Understanding())

    assert "NVLink joins at most 3 nodes for one job that are up, it needs 4 [BERTH-306]" in found.fields["message"]


def test_a_rack_that_is_whole_takes_such_a_job() -> None:
    asked = submit(tres_per_node="gres/gpu:8", min_nodes="4", max_nodes="4")
    found = decide(asked, racks(down=("n8",)), create("berth"), Settings(), NOW, Understanding())

    assert (found.verb, found.fields["nodes"]) == ("place", "n1,n2,n3,n4")


@pytest.mark.parametrize(
    ("own", "nodes", "verb"), [("", 4, "place"), ("gb200", 4, "place"), ("cpu", 4, "pass"), ("cpu", 1, "place")]
)
def test_a_gang_in_a_partition_with_another_topology_is_slurms(own: str, nodes: int, verb: str) -> None:
    """Slurm would not start it on nodes that only the other topology gives to one job."""
    book = racks()
    partitions = {name: replace(one, topology=own) for name, one in book.fleet.partitions.items()}
    planned = replace(book.fleet, partitions=partitions, fabric=replace(book.fleet.fabric, topology="gb200"))
    book.fleet = planned
    asked = submit(tres_per_node="gres/gpu:8", min_nodes=str(nodes), max_nodes=str(nodes))

    found = decide(asked, book, create("berth"), Settings(), NOW, Understanding())

    assert found.verb == verb
    assert (verb == "pass") is ("has topology cpu, and nodes are planned by gb200" in found.fields["message"])


@pytest.mark.parametrize(("domains", "cut"), [([0, 0, 0, 0, 1, 1, 1, 1], True), ([0, 0, 2, 2, 1, 1, 1, 1], False)])
def test_a_domain_is_what_the_driver_says(domains: list[int], cut: bool) -> None:
    book = racks()
    book.fleet = replace(book.fleet, fabric=replace(book.fleet.fabric, domain=np.array(domains)))
    found = answer("16", book)

    assert ("segment_size" in found.fields) is cut
    assert cut or "a block of Slurm's has nodes of several NVLink domains" in found.fields["message"]
