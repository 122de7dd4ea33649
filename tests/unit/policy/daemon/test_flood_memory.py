# SPDX-License-Identifier: Apache-2.0
"""The memory of berthd's answering process while many requests come that are all different."""

import gc
import tracemalloc
from dataclasses import replace

import pytest

from policy.daemon.answer import memory, turns
from policy.daemon.answer.answerer import Answerer
from policy.daemon.passes.handover import Snapshot
from policy.formats import wire
from policy.plan.answer import case
from policy.plan.ledger.tracker import open_book
from policy.request.submission import read
from policy.site.config import Config
from tests.unit.policy_world import NOW, fleet, node, reading, submit

EACH = 100
"""Requests between two looks, 10 s."""


def test_a_flood_of_requests_of_ever_new_kinds_and_users_leaves_memory_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case, "_MOST_BYTES", 128 << 10)
    for module, bound in ((memory, "_MOST_USERS"), (memory, "_MOST_REFUSED"), (turns, "_MOST")):
        monkeypatch.setattr(module, bound, 64)
    look = reading([node("n1")])
    known, held = fleet(look), []
    made, order = Answerer(Config(), "0", 1), turns.Turns()
    tracemalloc.start()
    for number in range(8 * EACH):
        now = NOW + number / 10
        if number % 50 == 0:
            cluster = open_book(known, replace(look, at=now)).cluster
            made.take(Snapshot(cluster, frozenset(), "24.11.5", "recorded", ""), now)
        more = ({"flag.locality": f"nvlink@{number}"}, {"features": f"f{number}"}, {"partition": f"p{number}"})[
            number % 3
        ]
        more |= {"exc_nodes": f"x[{number}-{number + 90}]", "uid": str(number), "name": f"n{number}"}
        fields = submit(nonce=f"{number:016x}", tres_per_job="gres/gpu:8", **more)
        assert made.answer(wire.encode("submit", fields), now)
        made.settle()
        order.took(number, 1.0, now)
        if number % EACH == EACH - 1:
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()

    assert max(held[4:]) < max(held[:4]) + (64 << 10), held


def test_requests_that_are_all_different_leave_a_number_each_and_no_more_than_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(case, "_MOST_BYTES", 1 << 40)
    monkeypatch.setattr(case, "_MOST_ONCE", 64)
    understanding, one = case.Understanding(), fleet(reading([node("n1")]))
    held = []
    tracemalloc.start()
    for number in range(600):
        understanding.of(read(submit(tres_per_job="gres/gpu:4", exc_nodes=f"x[{number}-{number + 90}]")), one)
        if number % 100 == 99:
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()

    assert max(held[2:]) < held[1] + (8 << 10), held
