# SPDX-License-Identifier: Apache-2.0
"""Checks that the cache of allowed nodes changes no reply and stays small."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from policy.cluster.allowed import (
    MOST_AMOUNTS,
    MOST_KEPT,
    MOST_MASKS,
    Allowed,
    AllowedNodes,
    Where,
    candidates,
    elsewhere,
)
from policy.formats.slurm_facts import Memory, PartitionFacts
from policy.placement.berth import BerthPolicy
from policy.plan.answer.case import Understanding
from policy.plan.ledger.book import Book
from policy.plan.ledger.tracker import open_book
from policy.request.settings import Settings
from tests.examples import examples
from tests.unit.deciding import decide
from tests.unit.policy_world import NOW, fleet, node, reading, submit

PARTITIONS = (PartitionFacts("gpu", default=True), PartitionFacts("fast"))
FEATURES = ("a100", "new", "old", "nowhere")


def of_gpu(known: AllowedNodes, features: tuple[str, ...] = (), only: tuple[str, ...] = ()) -> Allowed:
    return known.of(("gpu",), Where(known, "gpu", None, features, only))


def a_book(features: list[str], used: int) -> Book:
    """A cluster whose nodes differ in features, CPUs, threads and memory."""
    nodes = [
        node(f"n{place}", used=used >> place & 0xF, features=frozenset(set(text.split(","))),
             partitions=frozenset({"gpu", "fast"} if place % 2 else {"gpu"}),
             cpus=32 << (used >> place & 1), threads=1 << (used >> place & 1), mem=64_000 + 500 * (used >> place & 3))
        for place, text in enumerate(features)
    ]  # fmt: skip
    first = replace(PARTITIONS[0], whole_nodes=used > 200, memory=Memory(per_cpu=100 + used % 2))
    look = reading(nodes, partitions=(first, *PARTITIONS[1:]))
    return open_book(fleet(look), look)


request = st.fixed_dictionaries(
    {"tres_per_job": st.sampled_from(["gres/gpu:1", "gres/gpu:2", "gres/gpu:9", "gres/gpu:16"])},
    optional={
        "partition": st.sampled_from(["gpu", "fast", "fast,gpu", "none"]),
        "features": st.sampled_from([*FEATURES, "a100&new", "new&old"]),
        "mem_per_node": st.sampled_from(["100", "900", "64000", "64100", "64500", "65001", "99999999"]),
        "min_cpus": st.sampled_from(["1", "31", "33", "64", "65"]),
        "exclusive": st.just("1"),
        "client": st.just("srun"),
        "req_nodes": st.sampled_from(["n0", "n1", "n[0-1]", "n7"]),
        "exc_nodes": st.sampled_from(["n0", "n2"]),
        "account": st.sampled_from(["a", "b"]),
        "time_limit": st.sampled_from(["10", "60"]),
        "flag.locality": st.sampled_from(["nvlink", "node"]),
    },
)
world = st.tuples(st.lists(st.sampled_from(["a100", "a100,new", "old", "new"]), min_size=2, max_size=4),
                  st.integers(0, 255))  # fmt: skip


@settings(max_examples=examples(60))
@given(st.lists(world, min_size=1, max_size=3), st.lists(request, min_size=1, max_size=12))
def test_a_reply_with_the_cache_is_the_reply_without(
    worlds: list[tuple[list[str], int]], requests: list[dict[str, str]]
) -> None:
    policy, known = BerthPolicy(), Understanding()
    for features, used in worlds:
        book = a_book(features, used)
        for fields in [*requests, *requests]:
            asked = submit(**fields)
            assert decide(asked, book, policy, Settings(), NOW, known) == decide(asked, book, policy, Settings(), NOW)


def test_a_user_who_varies_features_neither_grows_the_cache_nor_evicts_what_others_ask_for() -> None:
    book = a_book(["a100", "new"], 0)
    allowed = AllowedNodes(book.fleet)
    usual = [of_gpu(allowed, ("a100",)) for _ in range(2)][1]

    for number in range(5 * MOST_KEPT):
        of_gpu(allowed, (f"made-up-{number}",))
        allowed.same(book.fleet.ready & (book.fleet.size > number))

    assert of_gpu(allowed, ("a100",)) is usual
    assert len(allowed) <= 2 * MOST_KEPT + MOST_MASKS


def test_terms_are_kept_of_single_partitions_alone() -> None:
    allowed = AllowedNodes(a_book(["a100", "new"], 0).fleet)

    for number in range(20):
        allowed.terms(",".join(["gpu", *["fast"] * number]))

    assert allowed.terms("gpu") is allowed.terms("gpu")
    assert allowed.terms("gpu,fast") is not allowed.terms("gpu,fast")


def test_long_lists_of_nodes_are_not_kept() -> None:
    book = a_book(["a100", "new"], 0)
    allowed = AllowedNodes(book.fleet)

    found = of_gpu(allowed, only=tuple(f"n{number}" for number in range(1, 100)))

    assert len(allowed) == 0
    assert found.nodes.tolist() == [False, True]


def test_equal_nodes_are_one_array() -> None:
    allowed = AllowedNodes(a_book(["a100", "new"], 0).fleet)

    first = allowed.same(allowed.fleet.ready.copy())

    assert allowed.same(allowed.fleet.ready.copy()) is first


class TestAmounts:
    """Requests between two amounts that nodes have fit on the same nodes."""

    NODES = (
        node("n0", mem=64_000, cpus=32),
        node("n1", mem=64_003, cpus=32),
        node("n2", mem=128_000, cpus=64),
        node("n3", gpus=0, loose=8, seats=0, mem=256_000, cpus=64),
    )

    def allowed(self) -> AllowedNodes:
        return AllowedNodes(fleet(reading(list(self.NODES))))

    @given(
        st.integers(0, 9),
        st.none() | st.sampled_from([0, 1, 31, 32, 33, 63, 64, 65]),
        st.none() | st.sampled_from([0, 1, 63_999, 64_000, 64_001, 64_003, 64_004, 128_000, 128_001, 256_001]),
    )
    def test_the_kept_nodes_are_those_that_are_big_enough(self, k: int, cpus: int | None, mem: int | None) -> None:
        known = self.allowed()
        here = of_gpu(known)
        for more in (0, 1, 1):
            asked = k, cpus, None if mem is None else mem + more

            found = known.big_enough(here, *asked)

            nodes = candidates(known.fleet, here.nodes, *asked)
            assert found.nodes.tolist() == nodes.tolist(), asked
            assert (found.total, found.elsewhere) == (nodes.sum(), elsewhere(known.fleet, here.nodes, *asked))

    def test_a_new_amount_that_fits_on_the_same_nodes_has_the_same_array(self) -> None:
        known = self.allowed()
        here = of_gpu(known)

        found = {id(known.big_enough(here, 2, cpus, 100 + cpus).nodes) for cpus in range(1, 33)}

        assert len(found) == 1

    def test_few_amounts_are_kept(self) -> None:
        known = self.allowed()
        here = of_gpu(known)

        for k in range(1, 5 * MOST_AMOUNTS):
            known.big_enough(here, k, 1, 1)

        assert len(here.big_enough) <= MOST_AMOUNTS
