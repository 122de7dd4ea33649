# SPDX-License-Identifier: Apache-2.0
"""What a pin writes into a job fits into what Slurm takes, or Slurm places the job: plugin, berthd and node alike."""

import ctypes
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.formats import hostlist, segment
from policy.formats.errors import SlurmError, TooLong
from policy.formats.job_plan import JobPlan
from policy.formats.reply import MOST_BYTES
from policy.formats.reply import Reply as TypedReply
from policy.formats.slurm_facts import JobText
from policy.formats.slurm_syntax import pin_text
from policy.placement.berth import BerthPolicy
from policy.request.settings import Settings
from policy.slurm import changes
from policy.slurm.interface import Pin
from prolog_epilog.job import extra as on_the_node
from tests.unit.deciding import Decision, decide
from tests.unit.plugin_library import Reply, library, taken, text
from tests.unit.policy_world import NOW, book, node, reading, submit

LONG = [f"gpu-a100-node{number:03}" for number in range(1, 65)]
PLACE, LATER = 0, 1

names = st.lists(
    st.one_of(
        st.builds("{}{}".format, st.sampled_from(["n", "gpu-a100-node", "r1-n", ""]), st.integers(0, 1_200)),
        st.builds("n{:03}".format, st.integers(0, 1_200)),
        st.from_regex(r"[a-z][a-z0-9_.-]{0,14}", fullmatch=True),
    ),
    min_size=1,
    max_size=40,
    unique=True,
)


def folded_by_the_plugin(nodes: list[str]) -> str:
    out = text()
    library().hostlist_fold(",".join(nodes).encode(), ctypes.byref(out))
    return taken(out).decode()


def a_place(nodes: list[str], gpus: list[int], **more: object) -> Reply:
    reply = Reply(verb=PLACE, nodes=",".join(nodes).encode(), node_count=len(nodes), gpu_count=len(gpus), **more)
    reply.gpus[: len(gpus)] = gpus
    return reply


def extra_by_the_plugin(reply: Reply, own: str | None = None) -> str | None:
    out = text()
    ok = library().pin_extra(ctypes.byref(reply), None if own is None else own.encode(), ctypes.byref(out))
    written = taken(out).decode()
    return written if ok else None


def tres_by_the_plugin(reply: Reply, own: str | None = None, count: int = 1) -> str | None:
    out = text()
    ok = library().pin_tres(
        ctypes.byref(reply), None if own is None else own.encode(), ctypes.c_size_t(count), ctypes.byref(out)
    )
    written = taken(out).decode()
    return written if ok else None


@given(names)
def test_what_plugin_and_berthd_fold_alike_every_reader_opens_again(nodes: list[str]) -> None:
    folded = hostlist.fold(nodes)
    assert folded_by_the_plugin(nodes) == folded
    assert hostlist.expand(folded) == tuple(nodes)
    found = on_the_node.read(segment.put("", {"nodes": folded, "gpus": "0"}), nodes[0])
    assert found is not None
    assert found.nodes == tuple(nodes)


def test_many_long_names_are_folded_so_that_slurm_takes_the_extra() -> None:
    written = extra_by_the_plugin(a_place(LONG, [0, 1]))
    assert written == "[berth/1 nodes=gpu-a100-node%5B001-064%5D gpus=0,1]"
    assert pin_text.extra_text("", LONG, "0,1", {}) == written
    found = on_the_node.read(written, LONG[63])
    assert found is not None
    assert found.nodes == tuple(LONG)


def test_names_that_fit_stand_in_full_so_that_nodes_with_an_older_berth_read_them() -> None:
    written = extra_by_the_plugin(a_place(["n1", "n2"], [0, 3]), "mine")
    assert written == pin_text.extra_text("mine", ["n1", "n2"], "0,3", {}) == "mine[berth/1 nodes=n1,n2 gpus=0,3]"


@given(names, st.integers(0, 1_100), st.sampled_from([{}, {"share": 30, "gpu_mem": 2**24, "way": b"mps"}]))
def test_berthd_and_the_plugin_agree_on_what_fits(nodes: list[str], own: int, more: dict[str, int | bytes]) -> None:
    values = {} if not more else {"share": "30", "mem": str(2**24), "way": "mps"}
    try:
        expected: str | None = pin_text.extra_text("x" * own, nodes, "0,9", values)
    except TooLong:
        expected = None
    assert extra_by_the_plugin(a_place(nodes, [0, 9], **more), "x" * own) == expected
    assert expected is None or len(expected) <= MOST_BYTES


def test_a_users_long_extra_leaves_no_room_for_a_place() -> None:
    assert extra_by_the_plugin(a_place(["n1"], [0]), "x" * 999) is not None
    assert extra_by_the_plugin(a_place(["n1"], [0]), "x" * 1_000) is None


def test_gpus_that_cannot_all_be_named_are_no_place() -> None:
    assert tres_by_the_plugin(a_place(["n1"], list(range(64)))) is not None
    assert tres_by_the_plugin(a_place(["n1"], list(range(64)), seats=True)) is None
    assert tres_by_the_plugin(a_place(["n1"], [0]), f"gres/{'x' * 1_000}:1") is not None
    assert tres_by_the_plugin(a_place(["n1"], [0]), f"gres/{'x' * 1_010}:1") is None
    later = Reply(verb=LATER, node_count=1, gpu_count=64)
    assert tres_by_the_plugin(later, "gres/gpu:2,gres/nic:1") == "gres/gpu:64,gres/nic:1"


def job(**changed: str) -> JobText:
    facts = {"admin_comment": "", "extra": "", "required": "", "tres_per_node": "gres/gpu:1", "tres_per_job": ""}
    return JobText(7, "PENDING", 1000, **{**facts, **changed})


def test_a_later_pin_obeys_the_same_bounds() -> None:
    place = Pin(tuple(LONG), (0, 1), seats=True, plan=JobPlan({"state": "placed"}))
    assert changes.pin(job(), place)["extra"] == "[berth/1 nodes=gpu-a100-node%5B001-064%5D gpus=0,1]"
    with pytest.raises(TooLong, match="a shorter --extra would do"):
        changes.pin(job(extra="x" * 1_000), place)
    with pytest.raises(SlurmError, match="1024"):
        changes.pin(job(), Pin(("n1",), tuple(range(64)), seats=True, plan=JobPlan({"state": "placed"})))


def answer(**fields: str) -> Decision:
    there = book(reading([node("n1"), node("n2")]))
    return decide(
        submit(**{"tres_per_job": "gres/gpu:1", "gpus": "1", **fields}), there, BerthPolicy(), Settings(), NOW
    )


def test_a_long_extra_leads_to_a_pass_that_says_so() -> None:
    assert answer(extra_bytes="990").verb == "place"
    decision = answer(extra_bytes="1000", client="batch", tres_per_job="gres/gpu:4", gpus="4")
    assert decision.verb == "pass"
    assert decision.claim is None
    assert "Slurm takes 1024; a shorter --extra would do" in decision.fields["message"]
    values = segment.fields(f"[berth/1 {decision.fields['segment']}]")
    assert values is not None
    # With an id the planner leaves it alone too.
    assert (values["state"], "id" in values) == ("passed", True)


def test_an_extra_of_any_length_costs_no_memory() -> None:
    tracemalloc.start()
    try:
        decision = answer(extra_bytes=str(10**8))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decision.verb == "pass"
    assert "a shorter --extra would do" in decision.fields["message"]
    assert most < 10**7
    assert answer(extra_bytes="9" * 19).verb == "pass"


@given(
    names,
    st.lists(st.integers(0, 63), min_size=1, max_size=64, unique=True),
    st.integers(0, 1_100),
    st.fixed_dictionaries(
        {"seats": st.booleans()},
        optional={
            "share": st.sampled_from([1, 30, 100]),
            "gpu_mem": st.integers(0, 1 << 40),
            "way": st.sampled_from(["mps", "time"]),
            "guest": st.just(value=True),
        },
    ),
    st.booleans(),
)
def test_a_place_that_surely_fits_does_fit(
    nodes: list[str], gpus: list[int], own: int, more: dict[str, Any], batch: bool
) -> None:
    reply = TypedReply("place", "", nodes=tuple(nodes), gpus=tuple(gpus), **more)

    if reply.surely_fits(own):
        pin_text.check(reply, own, "", batch=batch)


def test_a_usual_place_surely_fits() -> None:
    assert TypedReply("place", "", nodes=("gpu-a100-node0001",), gpus=tuple(range(8))).surely_fits(100)
