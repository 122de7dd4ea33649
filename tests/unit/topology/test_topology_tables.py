# SPDX-License-Identifier: Apache-2.0
"""The tables of best sets: the order of their codes, and what they keep of machines."""

import pickle

import numpy as np
import pytest

from tests.unit.policy_world import machine
from topology.sets.tables import _UNKNOWN, SetTables, code
from topology.sets.wiring import positions

EVERY_GPU = 0xFF


def test_a_code_orders_by_cut_weakest_pair_and_mean_then_by_the_islands_cut_into() -> None:
    ascending = [
        (0.0, 0.0, 0.0, 0),
        (25.0, 1e9, 75.0, 0),
        (50.0, 25.0, 75.0, 200),
        (50.0, 25.0, 75.0, 2),
        (50.0, 25.0, 75.0, 0),
        (50.0, 25.0, 75.1, 200),
        (50.0, 25.0, 1e9, 0),
        (50.0, 25.1, 0.0, 200),
        (50.1, 0.0, 0.0, 0),
        (1e9, 1e9, 1e9, 0),
    ]
    codes = [code(*one) for one in ascending]

    assert codes == sorted(set(codes))
    assert all(0 <= one < 1 << 63 for one in codes)
    assert not any(one & 0xFF for one in codes), "the low byte is the node's"
    assert code(0.0, 0.0, 0.0, 64) == code(0.0, 0.0, 0.0, 63), "no more than 63 islands are told apart"


def test_nodes_of_no_known_kind_are_not_taken_for_each_other() -> None:
    tables = SetTables([])
    quick, slow = machine("n1", "h100"), machine("n2", "l40s")

    assert tables.offset(quick) == tables.offset(None) == 0
    assert tables.joined(quick, 0, 0b11) == (450.0, 450.0, 450.0)
    assert tables.joined(slow, 0, 0b11) == (0.0, 0.0, 31.508)


def test_gpus_of_a_known_kind_are_joined_alike_on_all_its_nodes() -> None:
    tables = SetTables([machine("n1", "v100"), machine("n2", "a6000")])
    offset = tables.offset(machine("n9", "v100"))

    assert offset == tables.offset(machine("n1", "v100")) != tables.offset(machine("n2", "a6000"))
    # GPUs 0, 1 and 3: one link, two links and one, so that each has two or more.
    assert tables.joined(machine("n1", "v100"), offset, 0b1011) == (25.0, 100.0, 50.0)
    assert tables.joined(machine("n9", "v100"), offset, 0b1011) is tables.joined(machine("n1", "v100"), offset, 0b1011)


@pytest.mark.parametrize(("kinds", "widest"), [(["a6000", "v100"], 56.2), (["v100"], 50.0)])
def test_the_widest_cut_of_a_fleet_is_that_of_its_best_linked_machine(kinds: list[str], widest: float) -> None:
    tables = SetTables([machine(f"n-{kind}", kind) for kind in kinds])

    assert tables.widest(2) == widest
    assert tables.widest(9) == 0.0


def test_all_gpus_of_a_machine_are_its_only_set_of_so_many() -> None:
    assert SetTables([machine("n1", "a6000", size=2)]).widest(2) == 56.2


def test_islands_that_a_set_leaves_whole_are_counted() -> None:
    """Pairs of linked GPUs; of the last pair only one is free, so that it is no island any more."""
    tables = SetTables([machine("n1", "a6000")])
    offset = tables.offset(machine("n1", "a6000"))

    assert tables.islands_kept(offset, 0b0111_1111, 0b0000_0101) == 1
    assert tables.islands_kept(offset, 0b0111_1111, 0b0100_0000) == 3


@pytest.mark.parametrize(("size", "is_warm"), [(8, True), (9, False)])
def test_machines_of_up_to_eight_gpus_are_warm_before_a_request_asks(size: int, is_warm: bool) -> None:
    tables = SetTables([machine("n1", "l40s", size=size)])

    tables.warm()

    entries = slice(tables.offset(machine("n1", "l40s", size=size)), None)
    assert [bool((tables.row(2, level).codes[entries] == _UNKNOWN).any()) for level in ("node", "nvlink")] == [
        not is_warm,
        not is_warm,
    ]


def test_tables_of_another_process_answer_as_those_that_they_were() -> None:
    tables = SetTables([machine("n1", "v100")])
    tables.warm()
    again: SetTables = pickle.loads(pickle.dumps(tables))  # noqa: S301 - our own
    offset = tables.offset(machine("n1", "v100"))

    assert not again._choosers, "they cost a request 100 ms"
    for k, level in ((2, "node"), (2, "nvlink"), (3, "nvlink"), (8, "node")):
        entries = offset + np.arange(1 << 8)
        assert again.look_up(k, level, entries).tolist() == tables.look_up(k, level, entries).tolist()
    full = int(again.look_up(8, "node", np.array([offset + EVERY_GPU]))[0])
    assert full > 0
    assert int(again.look_up(8, "nvlink", np.array([offset + EVERY_GPU]))[0]) == -1, "not all pairs are linked"
    assert positions(int(again.row(8, "node").picks[offset + EVERY_GPU])) == tuple(range(8))


def test_the_peak_of_a_node_is_that_of_its_best_linked_free_gpus() -> None:
    """A6000 pairs whose sockets are not told: two GPUs of different pairs meet over PCIe."""
    tables = SetTables([machine("n1", "a6000")])
    offset = tables.offset(machine("n1", "a6000"))

    assert tables.peaks(np.array([0, *(offset + np.array([0, 0b1, 0b101, 0b111, 0xFF]))])).tolist() == [
        *(0, 0, 0, 315, 562, 562)
    ]
