# SPDX-License-Identifier: Apache-2.0
"""A place that was found before is the one that a search would find."""

import random
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from policy.formats.errors import LeftToSlurm, NotNow
from policy.placement.base import Berth, Policy
from policy.placement.berth import BerthPolicy
from policy.plan.answer.case import Understanding
from policy.plan.ledger import places
from policy.plan.ledger.book import Book
from policy.plan.ledger.claims import claim_on
from policy.plan.ledger.places import FreePlaces
from policy.plan.ledger.tracker import open_book
from policy.request.demand import Demand
from policy.request.submission import read
from tests.examples import examples
from tests.unit.policy_world import NOW, fleet, node, reading, running, submit, waiting
from topology.network.fabric import Fabric

NAMES = [f"n{number}" for number in range(1, 9)]


def a_book(chance: random.Random) -> Book:
    """Nodes of several sizes in leaves of two; some are in use, some are planned for jobs that wait, or reserved."""
    nodes, jobs = [], []
    for number, name in enumerate(NAMES, 1):
        used = chance.choice([0, 0, 0b11, 0b1111, 0xFF])
        mem = 64_000 + chance.choice([0, 3, 1_000])
        nodes.append(node(name, used=used, mem=mem, mem_used=chance.choice([0, 500, 2_000])))
        if used:
            jobs.append(running(10 * number, name, used, chance.randint(60, 3_000)))
        if chance.random() < 0.3:
            jobs.append(waiting(10 * number + 1, name, 0xFF))
    look = reading(nodes, jobs)
    known = fleet(look)
    if chance.random() < 0.5:
        fabric = replace(Fabric.flat(known.names), leaf=np.arange(len(NAMES)) // 2, pod=np.zeros(len(NAMES), np.int64))
        known = replace(known, fabric=fabric)
    if chance.random() < 0.5:
        table = np.array([[chance.choice([1.0, 1.005, 1.3]) for _ in range(8)] for _ in NAMES])
        known = replace(known, scores={"compute": table})
    book = open_book(known, look)
    if chance.random() < 0.5:
        book.cluster.reserved_from[chance.randrange(len(NAMES))] = NOW + chance.randint(100, 2_000)
    return book


def a_request(chance: random.Random) -> dict[str, str]:
    asked = {
        "tres_per_job": f"gres/gpu:{chance.choice([1, 2, 4, 8])}",
        "mem_per_node": str(chance.choice([100, 60_000, 62_000, 62_001, 63_500, 64_000, 64_003, 64_500])),
        "time_limit": str(chance.choice([1, 5, 10, 30, 60])),
        "min_cpus": str(chance.choice([1, 1, 8])),
    }
    more: list[dict[str, str]] = [
        {},
        {},
        {"flag.locality": "nvlink"},
        {"flag.gpu_tier": "guaranteed"},
        {"flag.app_class": "memory"},
        {"exc_nodes": "n1"},
        {"tres_per_node": asked["tres_per_job"], "min_nodes": "2", "max_nodes": "2", "tres_per_job": ""},
    ]
    asked |= chance.choice(more)
    return {key: value for key, value in submit(**asked).items() if value}


def place(book: Book, demand: Demand) -> Berth | str:
    try:
        return book.soonest(demand, POLICY)[0]
    except NotNow as nothing:
        return str(nothing)


POLICY = BerthPolicy()


@pytest.mark.parametrize("seed", range(examples(60)))
def test_what_was_found_before_is_what_is_found_anew_also_after_claims(seed: int) -> None:
    chance = random.Random(seed)
    known, book = Understanding(), a_book(chance)
    book.places = FreePlaces()
    kinds = [a_request(chance) for _ in range(3)]
    for _ in range(60):
        asked = {**chance.choice(kinds), **{key: a_request(chance)[key] for key in ("mem_per_node", "time_limit")}}
        try:
            demand = known.of(read(asked), book.fleet).demand
        except LeftToSlurm:
            continue  # more memory than a node has

        found = place(book, demand)

        assert found == place(Book(book.cluster), demand), asked
        if isinstance(found, Berth) and chance.random() < 0.3:
            book.claim(claim_on(book.fleet, demand, found.nodes, found.mask, book.at))


def test_a_request_of_another_amount_needs_no_search_until_a_place_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[Demand] = []
    search = Book.now_together

    def noted(book: Book, demand: Demand, policy: Policy) -> Berth:
        searches.append(demand)
        return search(book, demand, policy)

    monkeypatch.setattr(Book, "now_together", noted)
    look = reading([node("n1"), node("n2")])
    book, known = open_book(fleet(look), look), Understanding()
    book.places = FreePlaces()

    def ask(mem: int, limit: int = 60) -> Demand:
        asked = submit(tres_per_job="gres/gpu:2", mem_per_node=str(mem), time_limit=str(limit))
        demand = known.of(read(asked), book.fleet).demand
        with suppress(NotNow):
            book.soonest(demand, POLICY)
        return demand

    first = ask(100)
    for number in range(1, 20):
        ask(100 + number, 60 + number)
    assert len(searches) == 1

    book.claim(claim_on(book.fleet, first, (0,), 0b11, book.at))
    ask(100)
    assert len(searches) == 2


def test_few_places_are_kept() -> None:
    look = reading([node("n1")])
    book, known = open_book(fleet(look), look), Understanding()
    book.places = FreePlaces()

    for cpus in range(1, 30):
        asked = submit(tres_per_job="gres/gpu:2", min_cpus=str(cpus))
        book.soonest(known.of(read(asked), book.fleet).demand, POLICY)

    assert len(book.places) <= places.MOST
