"""Checks that the cache of allowed nodes changes no reply and stays small."""

from hypothesis import given, settings
from hypothesis import strategies as st

from policy.cluster.allowed import MOST_KEPT, MOST_MASKS, AllowedNodes, allowed_nodes
from policy.cluster.partitions import pools
from policy.formats.slurm_facts import PartitionFacts
from policy.placement.berth import BerthPolicy
from policy.plan.answer.decide import decide
from policy.plan.answer.known_requests import Understanding
from policy.plan.book import Book
from policy.plan.tracker import open_book
from policy.request.settings import Settings
from tests.examples import examples
from tests.unit.policy_world import NOW, fleet, node, reading, submit

PARTITIONS = (PartitionFacts("gpu", default=True), PartitionFacts("fast"))
FEATURES = ("a100", "new", "old", "nowhere")


def a_book(features: list[str], used: int) -> Book:
    nodes = [
        node(f"n{place}", used=used >> place & 0xF, features=frozenset(set(text.split(","))),
             partitions=frozenset({"gpu", "fast"} if place % 2 else {"gpu"}))
        for place, text in enumerate(features)
    ]  # fmt: skip
    look = reading(nodes, partitions=PARTITIONS)
    return open_book(fleet(look), look)


request = st.fixed_dictionaries(
    {"tres_per_job": st.sampled_from(["gres/gpu:1", "gres/gpu:2", "gres/gpu:9", "gres/gpu:16"])},
    optional={
        "partition": st.sampled_from(["gpu", "fast", "fast,gpu", "none"]),
        "features": st.sampled_from([*FEATURES, "a100&new", "new&old"]),
        "pn_min_memory": st.sampled_from(["100", "900", "99999999"]),
        "req_nodes": st.sampled_from(["n0", "n1", "n[0-1]", "n7"]),
        "exc_nodes": st.sampled_from(["n0", "n2"]),
        "account": st.sampled_from(["a", "b"]),
        "time_limit": st.sampled_from(["10", "60"]),
        "f.locality": st.sampled_from(["nvlink", "node"]),
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
    usual = [allowed.of(["gpu"], ("a100",), (), ()) for _ in range(2)][1]

    for number in range(5 * MOST_KEPT):
        allowed.of(["gpu"], (f"made-up-{number}",), (), ())
        allowed.same(book.fleet.ready & (book.fleet.size > number))

    assert allowed.of(["gpu"], ("a100",), (), ()) is usual
    assert len(allowed) <= 2 * MOST_KEPT + MOST_MASKS


def test_long_lists_of_nodes_are_not_kept() -> None:
    book = a_book(["a100", "new"], 0)
    allowed, names = AllowedNodes(book.fleet), [f"n{number}" for number in range(100)]

    found = allowed.of(["gpu"], (), names, ())

    assert len(allowed) == 0
    assert (found.nodes == allowed_nodes(book.fleet, pools(book.fleet, ["gpu"], 1), (), names, ())).all()


def test_equal_nodes_are_one_array() -> None:
    allowed = AllowedNodes(a_book(["a100", "new"], 0).fleet)

    first = allowed.same(allowed.fleet.ready.copy())

    assert allowed.same(allowed.fleet.ready.copy()) is first
