# SPDX-License-Identifier: Apache-2.0
import doctest
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import policy.placement.base
from policy.cluster.fleet import build_fleet
from policy.formats.messages import MOST_BYTES
from policy.formats.slurm_facts import JobFacts, NodeFacts, PartitionFacts, Reservation
from policy.placement.berth import BerthPolicy
from policy.placement.registry import create
from policy.plan.ledger.tracker import open_book
from policy.request.settings import Settings
from tests.unit.deciding import Decision, decide, only_watch
from tests.unit.policy_world import NOW, book, fleet, node, reading, running, submit
from topology.machines import machine as named
from topology.network.fabric import NOBODY, Fabric

KINDS = {"n1": "v100", "n2": "h100", "n3": "a6000", "n4": "l40s"}
POLICY = BerthPolicy()


def ask(
    nodes: list[NodeFacts],
    kinds: dict[str, str] | None = None,
    jobs: list[JobFacts] | None = None,
    /,
    **fields: str,
) -> Decision:
    return decide(submit(**fields), book(reading(nodes, jobs), kinds), POLICY, Settings(), NOW)


def place(decision: Decision) -> tuple[str, str]:
    assert decision.verb == "place", decision.fields
    return decision.fields["nodes"], decision.fields["gpus"]


def test_the_example_of_the_base_class_works() -> None:
    globs = {**vars(policy.placement.base)}

    assert doctest.testmod(policy.placement.base, globs=globs, raise_on_error=True).attempted > 1


def test_the_widest_narrowest_cut_wins() -> None:
    decision = ask([node(name) for name in KINDS], KINDS, tres_per_job="gres/gpu:4")

    assert place(decision) == ("n2", "0,1,2,3")
    assert (
        decision.fields["message"]
        == "berth: n2 GPUs 0-3: NVLink 450 GB/s between every pair, all-reduce about 342 GB/s [BERTH-101]"
    )


def test_inside_a_node_the_best_linked_pair_that_leaves_a_quad_whole_is_taken_not_the_lowest() -> None:
    decision = ask([node("n1")], {"n1": "v100"}, tres_per_job="gres/gpu:2")

    assert place(decision) == ("n1", "0,3")


def test_of_gpus_without_nvlink_two_of_one_socket_are_taken() -> None:
    """On n1, which is fuller, the two that are free are of different sockets."""
    nodes = [node("n1", gpus=4, used=0b0110), node("n2", gpus=4, used=0b1000)]
    machines = {name: named("l40s", name) for name in ("n1", "n2")}
    look = reading(nodes)
    opened = open_book(build_fleet(look.nodes, look.partitions, machines, look.memory, memory_counts=True), look)

    decision = decide(submit(tres_per_job="gres/gpu:2"), opened, POLICY, Settings(), NOW)

    assert place(decision) == ("n2", "0,1")
    assert decision.fields["message"].endswith("no NVLink between them, all-reduce about 24 GB/s [BERTH-101]")


@pytest.mark.parametrize(
    "asked", [{"tres_per_job": "gres/gpu:2"}, {"tres_per_node": "gres/gpu:4", "min_nodes": "2", "max_nodes": "2"}]
)
def test_a_process_that_gets_the_fleet_of_another_answers_without_the_graph_library(
    asked: dict[str, str], tmp_path: Path
) -> None:
    """berthd's first answer has a deadline, and loading that library alone takes longer."""
    names = {f"{name}{number}": kind for name, kind in KINDS.items() for number in (1, 2)}
    opened = book(reading([node(name) for name in names]), names)
    opened.fleet.tables.warm()
    (tmp_path / "book").write_bytes(pickle.dumps((submit(**asked), opened)))
    code = (
        "import pickle, sys; from pathlib import Path; from tests.unit.deciding import decide; "
        "from policy.placement.berth import BerthPolicy; from policy.request.settings import Settings; "
        f"asked, opened = pickle.loads(Path({str(tmp_path / 'book')!r}).read_bytes()); "
        f"print(decide(asked, opened, BerthPolicy(), Settings(), {NOW}).verb, 'networkx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.split() == ["place", "False"]


def test_one_gpu_breaks_no_pair_when_a_widow_is_free() -> None:
    decision = ask([node("n3", used=0b0000_1000)], {"n3": "a6000"}, tres_per_job="gres/gpu:1")

    assert place(decision) == ("n3", "2")


def test_of_equal_nodes_the_fullest_is_filled_first() -> None:
    nodes = [node("n1"), node("n2", used=0b0011_1111), node("n3", used=0b0000_1111)]

    assert place(ask(nodes, tres_per_job="gres/gpu:2")) == ("n2", "6,7")


@pytest.mark.parametrize(("used", "gpu"), [(0, "0"), (0b1111, "4")])
def test_of_two_kinds_of_nodes_the_one_with_more_free_gives_the_gpu_though_its_node_is_emptier(
    used: int, gpu: str
) -> None:
    nodes = [node("n1", used=0b11_1111), node("n2", cpus=64, used=used)]

    assert place(ask(nodes, {"n1": "l40s", "n2": "l40s"}, tres_per_job="gres/gpu:1")) == ("n2", gpu)


def test_a_node_in_its_epilog_comes_last_among_equals() -> None:
    nodes = [node("n1", completing=True), node("n2")]

    assert place(ask(nodes, tres_per_job="gres/gpu:2"))[0] == "n2"


@pytest.mark.parametrize(
    "changes",
    [
        {"up": False},
        {"partitions": frozenset({"other"})},
        {"cpus_used": 31},
        {"mem_used": 63_950},
        {"seats_used": 0xFF},
    ],
)
def test_what_cannot_take_the_job_now_is_passed_over(changes: dict[str, object]) -> None:
    nodes = [node("n1", **changes), node("n2")]

    assert place(ask(nodes, tres_per_job="gres/gpu:2", cpus_per_task="2"))[0] == "n2"


def test_nodes_are_restricted_as_the_user_said() -> None:
    nodes = [node("n1"), node("n2"), node("n3", features=frozenset({"rack1", "big"}))]

    assert place(ask(nodes, tres_per_job="gres/gpu:1", req_nodes="n2"))[0] == "n2"
    assert place(ask(nodes, tres_per_job="gres/gpu:1", exc_nodes="n[1-2]"))[0] == "n3"
    assert place(ask(nodes, tres_per_job="gres/gpu:1", features="rack1&big"))[0] == "n3"


def test_an_exclusive_job_takes_only_an_empty_node() -> None:
    nodes = [node("n1", used=1), node("n2")]

    assert place(ask(nodes, tres_per_job="gres/gpu:1", exclusive="1"))[0] == "n2"


def test_a_reservation_that_begins_before_the_job_ends_closes_a_node() -> None:
    soon = Reservation(int(NOW) + 600, int(NOW) + 6_000, ("n1",))
    look = reading([node("n1"), node("n2")], reservations=(soon,))

    decision = decide(submit(tres_per_job="gres/gpu:1"), book(look), POLICY, Settings(), NOW)
    short = decide(submit(tres_per_job="gres/gpu:1", time_limit="5"), book(look), POLICY, Settings(), NOW)

    assert place(decision)[0] == "n2"
    assert place(short)[0] == "n1"


def test_several_nodes_take_one_common_set() -> None:
    nodes = [node("n1", used=0b0000_0001), node("n2", used=0b0000_0010), node("n3", used=0b1111_1111)]

    decision = ask(nodes, tres_per_node="gres/gpu:6", min_nodes="2", max_nodes="2", gpus="12")

    assert place(decision) == ("n1,n2", "2,3,4,5,6,7")


def test_several_nodes_of_one_kind_are_preferred_and_others_still_serve() -> None:
    nodes = [node(name) for name in ("n1", "n2", "n3", "n4", "n5")]
    kinds = {**KINDS, "n5": "a6000"}

    assert place(ask(nodes, kinds, tres_per_node="gres/gpu:2", min_nodes="2", max_nodes="2"))[0] == "n3,n5"
    assert place(ask(nodes, kinds, tres_per_node="gres/gpu:8", min_nodes="5", max_nodes="5"))[0] == "n1,n2,n3,n4,n5"


def test_a_busy_cluster_gives_the_place_that_comes_free_soonest() -> None:
    nodes = [node("n1", used=0xFF), node("n2", used=0xFF)]
    jobs = [running(1, "n1", 0xFF, 7_200), running(2, "n2", 0x0F, 720), running(3, "n2", 0xF0, 3_600)]

    decision = ask(nodes, None, jobs, tres_per_job="gres/gpu:2")

    assert place(decision) == ("n2", "0,1")
    assert decision.fields["message"] == "berth: waits for n2 GPUs 0,1, expected in 12 min [BERTH-102]"
    assert f"start={int(NOW) + 720}" in decision.fields["segment"]
    assert "state=waiting" in decision.fields["segment"]


def test_cpus_that_other_jobs_hold_make_a_job_wait_too() -> None:
    nodes = [node("n1", cpus_used=32)]
    jobs = [running(1, "n1", 0, 600, cpus=32)]

    assert "expected in 10 min" in ask(nodes, None, jobs, tres_per_job="gres/gpu:2").fields["message"]


def test_where_nothing_ever_ends_the_job_is_pinned_all_the_same() -> None:
    decision = ask([node("n1", used=0xFF)], None, [running(1, "n1", 0xFF, 0, end=None)], tres_per_job="gres/gpu:2")

    assert place(decision) == ("n1", "0,1")
    assert decision.claim is None
    assert "no end" in decision.fields["message"]
    assert "state=waiting" in decision.fields["segment"]


def test_where_all_is_down_the_job_is_pinned_to_what_may_come_back() -> None:
    decision = ask([node("n1", up=False)], tres_per_job="gres/gpu:2")

    assert place(decision) == ("n1", "0,1")
    assert "down, drained or reserved" in decision.fields["message"]


def test_nvlink_takes_only_sets_in_which_every_pair_is_linked() -> None:
    nodes = [node("n1", used=0b1110_1110), node("n4")]

    decision = ask(nodes, KINDS, tres_per_job="gres/gpu:2", **{"flag.locality": "nvlink"})

    assert place(decision) == ("n1", "0,4")


def test_nvlink_waits_for_a_linked_set_rather_than_taking_any() -> None:
    nodes = [node("n3", used=0b1010_1010)]
    jobs = [running(1, "n3", 0b1010_1010, 720)]

    waits = ask(nodes, KINDS, jobs, tres_per_job="gres/gpu:2", **{"flag.locality": "nvlink"})
    at_once = ask(nodes, KINDS, jobs, tres_per_job="gres/gpu:2", **{"flag.locality": "nvlink@0"})

    assert waits.fields["message"] == (
        "berth: waits for n3 GPUs 0,1, expected in 12 min; waits up to 10 min for NVLink between all pairs [BERTH-102]"
    )
    assert place(at_once) == ("n3", "0,2")


@pytest.mark.parametrize(
    ("kind", "fields", "what"),
    [
        ("a6000", {"tres_per_job": "gres/gpu:4"}, "at most 2: ask for 2 or fewer, or ask for --locality=node"),
        ("l40s", {"tres_per_job": "gres/gpu:2"}, "none has NVLink"),
        ("h100", {"tres_per_node": "gres/gpu:8", "min_nodes": "2", "max_nodes": "2"}, "no NVLink domain joins 2 nodes"),
    ],
)
def test_a_level_that_no_machine_can_give_is_refused_with_what_would_work(
    kind: str, fields: dict[str, str], what: str
) -> None:
    nodes = [node("n1"), node("n2", used=0xFF)]

    decision = ask(nodes, {"n1": kind, "n2": kind}, **fields, **{"flag.locality": "nvlink"})

    assert decision.verb == "refuse"
    assert what in decision.fields["message"]


def test_another_policy_can_be_asked() -> None:
    look = reading([node("n1", used=0b1), node("n2", used=0b111)])

    decision = decide(submit(tres_per_job="gres/gpu:4"), book(look), create("packed"), Settings(), NOW)

    assert place(decision) == ("n2", "3,4,5,6")


def test_what_slurm_cannot_pin_starts_on_gpus_that_slurm_chooses() -> None:
    look = reading([node("n1", used=0b1), node("n2", used=0b1000_0000)])
    fields = {"tres_per_node": "gres/gpu:4", "min_nodes": "2", "max_nodes": "2"}

    decision = decide(submit(**fields), book(look), create("slurm"), Settings(), NOW)

    assert decision.verb == "pass"
    assert "on 2 nodes, where Slurm chooses its GPUs" in decision.fields["message"]


def joined(level: str, *groups: int) -> Fabric:
    """Three nodes n1 to n3 in these groups of a level."""
    names, unknown = ("n1", "n2", "n3"), np.full(3, NOBODY)
    of = {"domain": unknown, "leaf": unknown, "pod": unknown} | {level: np.array(groups)}
    return Fabric(names, **of)


def ask_joined(fabric: Fabric, **fields: str) -> Decision:
    look = reading([node(name) for name in fabric.names])
    known = replace(fleet(look), fabric=fabric)
    return decide(submit(**fields), open_book(known, look), POLICY, Settings(), NOW)


TWO_NODES = {"tres_per_node": "gres/gpu:8", "min_nodes": "2", "max_nodes": "2"}


def test_nodes_of_one_nvlink_domain_are_one_nvlink_node_set() -> None:
    decision = ask_joined(joined("domain", 0, 1, 1), **TWO_NODES, **{"flag.locality": "nvlink"})

    assert place(decision) == ("n2,n3", "0,1,2,3,4,5,6,7")
    assert decision.fields["message"].endswith("on each node, all in one NVLink domain [BERTH-101]")


def test_a_gang_is_placed_in_one_leaf_without_being_asked() -> None:
    decision = ask_joined(joined("leaf", 0, 1, 1), **TWO_NODES)

    assert place(decision)[0] == "n2,n3"
    assert "all in one leaf" in decision.fields["message"]


def test_switches_are_a_wait_for_one_leaf() -> None:
    decision = ask_joined(joined("leaf", 0, 1, 1), **TWO_NODES, switches="1", switch_wait="90")

    assert "insists=leaf wait=90" in decision.fields["segment"]
    assert "insists" not in ask_joined(joined("leaf", 0, 1, 1), **TWO_NODES, switches="2").fields["segment"]
    assert "insists" not in ask_joined(Fabric.flat(("n1", "n2")), **TWO_NODES, switches="1").fields["segment"]


def test_what_users_say_in_berths_words_counts_before_switches() -> None:
    decision = ask_joined(joined("leaf", 0, 1, 1), **TWO_NODES, switches="1", **{"flag.locality": "pod@5"})

    assert "insists=pod wait=300" in decision.fields["segment"]


def test_more_than_one_switch_is_left_to_slurm() -> None:
    three = {"tres_per_node": "gres/gpu:8", "min_nodes": "3", "max_nodes": "3"}

    decision = ask_joined(joined("leaf", 0, 1, 1), **three, switches="2")

    assert decision.verb == "pass"
    assert "--switches=2" in decision.fields["message"]


def test_a_level_that_is_only_busy_is_never_refused() -> None:
    nodes = [node("n1", used=0xFF, up=False)]

    assert ask(nodes, tres_per_job="gres/gpu:8", **{"flag.locality": "nvlink"}).verb == "place"


def test_a_flag_that_cannot_be_read_is_refused() -> None:
    decision = ask([node("n1")], tres_per_job="gres/gpu:1", **{"flag.gpu_share": "200"})

    assert decision.verb == "refuse"
    assert "--gpu-share" in decision.fields["message"]


def test_every_flag_is_answered_and_kept() -> None:
    flags = {"flag.locality": "leaf", "flag.movable": "", "flag.app-class": "compute"}

    decision = ask([node("n1")], tres_per_job="gres/gpu:1", **flags)

    assert decision.fields["message"].endswith("; --movable: accepted, this site moves no jobs [BERTH-101]")
    assert "f.movable= f.app-class=compute" in decision.fields["segment"]


def test_a_message_is_one_printable_line_of_at_most_512_bytes() -> None:
    decision = ask([node("n1")], tres_per_job="gres/gpu:1", features="ä" * 600 + "\n")

    message = decision.fields["message"]
    assert len(message) <= MOST_BYTES
    assert message.isascii()
    assert message.isprintable()


def test_what_no_node_has_is_left_to_slurm_and_named_at_all_events() -> None:
    decision = ask([node("n1", features=frozenset({"h100"}))], tres_per_job="gres/gpu:2", features="h200")

    assert decision.verb == "pass"
    assert decision.fields["urgent"] == "1"
    assert (
        decision.fields["message"]
        == "berth: no node has the GPU model or feature h200; GPU models here: h100 [BERTH-221]"
    )
    assert not {"urgent", "message"} & set(only_watch(decision).fields)
    assert "urgent" not in ask([node("n1")], tres_per_job="gres/gpu:1", prefer="rack1").fields


def test_a_count_that_the_plugin_sees_otherwise_is_left_to_slurm() -> None:
    assert ask([node("n1")], tres_per_node="gres/gpu:2", gpus="3").verb == "pass"


def test_a_partition_of_whole_nodes_takes_only_empty_ones() -> None:
    whole = PartitionFacts("gpu", default=True, whole_nodes=True)
    look = reading([node("n1", used=1), node("n2")], partitions=(whole,))

    assert place(decide(submit(tres_per_job="gres/gpu:1"), book(look), POLICY, Settings(), NOW))[0] == "n2"


@given(
    st.lists(
        st.tuples(st.integers(0, 255), st.sampled_from(["v100", "h100", "a6000", "l40s"])), min_size=1, max_size=6
    ),
    st.integers(1, 8),
    st.integers(1, 3),
)
def test_a_place_is_always_free_complete_and_of_the_right_size(machines: list[tuple[int, str]], k: int, n: int) -> None:
    nodes = [node(f"n{i}", used=used, up=i % 5 != 4) for i, (used, _) in enumerate(machines)]
    kinds = {f"n{i}": kind for i, (_, kind) in enumerate(machines)}

    decision = ask(nodes, kinds, tres_per_node=f"gres/gpu:{k}", min_nodes=str(n), max_nodes=str(n))

    able = [used for i, (used, _) in enumerate(machines) if i % 5 != 4 and 8 - used.bit_count() >= k]
    common = [m for m in range(256) if m.bit_count() == k and sum(1 for u in able if not u & m) >= n]
    if decision.claim is None:
        assert not common
        assert n == 1 or len(able) < n, "each of several nodes has enough GPUs of its own"
        return
    claims = [decision.claim, *decision.claim.others]
    if decision.verb == "pass":
        assert not common
    else:
        names, gpus = place(decision)
        assert ",".join(f"n{one}" for one in decision.claim.nodes) == names
        assert sum(1 << int(gpu) for gpu in gpus.split(",")) == decision.claim.mask
    taken = [one for claim in claims for one in claim.nodes]
    assert len(taken) == len(set(taken)) == n
    for claim in claims:
        assert claim.mask.bit_count() == k
        for one in claim.nodes:
            assert nodes[one].up
            assert not machines[one][0] & claim.mask
