# SPDX-License-Identifier: Apache-2.0
"""Packed jobs at submission: what may be asked, where a share goes, and who is put together."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.cluster.fleet import build_fleet
from policy.cluster.shared.fragmentation import DEFAULT, UsualJob, learned, stranded
from policy.cluster.shared.tenants import MOST_TENANTS, PlannedTenant, Tenants, admits
from policy.formats import segment
from policy.formats.errors import NotNow
from policy.formats.slurm_facts import JobText, Memory, PartitionFacts
from policy.placement.berth import BerthPolicy
from policy.plan.answer.told import moved
from policy.plan.jobs.waiting_jobs import Reader
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Move
from policy.plan.ledger.share_packing import ALIKE, place
from policy.plan.ledger.tracker import open_book
from policy.request.demand import Demand
from policy.request.settings import Settings, Sharing
from policy.request.share import EVERYBODY, NOBODY, Share
from policy.slurm import changes
from policy.slurm.interface import Pin
from tests.unit.deciding import Decision, decide, values
from tests.unit.policy_world import NOW, machine, reading, running, submit, waiting
from tests.unit.share_world import GPU_MIB, book, node, packed, packed_waiting, with_memory

ONE = {"tres_per_job": "gres/gpu:1", "gpus": "1"}


def ask(opened: Book, percent: int = 30, /, **fields: str) -> Decision:
    flags = {"flag.gpu-share": str(percent)}
    return decide(submit(**{**ONE, **flags, **fields}), opened, BerthPolicy(), Settings(), NOW)


def where(decision: Decision) -> tuple[str, str]:
    assert decision.verb == "place", decision.fields
    return decision.fields["nodes"], decision.fields["gpus"]


# What may be asked


def test_a_share_is_placed_and_the_node_is_told_what_to_hold_it_to() -> None:
    decision = ask(book([node("n1")]), 30, **{"flag.gpu-mem": "12G"})

    told = {key: decision.fields[key] for key in ("nodes", "gpus", "seats", "share", "mem", "way")}
    assert told == {"nodes": "n1", "gpus": "0", "seats": "0", "share": "75", "mem": "12288", "way": "mps"}
    # In the segment `mem` is the memory of the node.
    assert {key: values(decision)[key] for key in ("share", "asked_share", "gpu_mem", "way", "mem")} == {
        "share": "75",
        "asked_share": "30",
        "gpu_mem": "12288",
        "way": "mps",
        "mem": "100",
    }
    assert decision.fields["message"].startswith("berth: 30 % of n1 GPU 0, with 12288 MiB, which counts as 75 %: ")
    assert "not acted on" not in decision.fields["message"]


USABLE = 16_384
"""MiB of each GPU for packed jobs."""


@pytest.mark.parametrize(
    ("percent", "mem", "counted"),
    [(1, 16_384, 100), (1, 16_383, 100), (1, 8_192, 50), (1, 8_193, 51), (50, 8_192, 50), (60, 8_192, 60), (1, 1, 1)],
)
def test_what_is_counted_is_the_greater_of_share_and_memory_rounded_up(percent: int, mem: int, counted: int) -> None:
    decision = ask(book([node("n1")]), percent, **{"flag.gpu-mem": f"{mem}M"})

    assert decision.fields["share"] == str(counted)
    assert values(decision).get("asked_share") == (str(percent) if counted > percent else None)
    assert decision.fields["mem"] == str(mem)
    assert (f"counts as {counted} %" in decision.fields["message"]) == (counted > percent)


@given(
    asked=st.lists(
        st.tuples(st.integers(1, 100), st.one_of(st.none(), st.integers(1, USABLE))), min_size=1, max_size=12
    ),
    array=st.booleans(),
)
def test_by_what_slurm_counts_alone_no_gpus_memory_is_given_twice(
    asked: list[tuple[int, int | None]], *, array: bool
) -> None:
    at_once = book([node("n1"), node("n2")])
    held: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for percent, mem in asked:
        more = {"array": "0-3"} if array else {}
        flags = {} if mem is None else {"flag.gpu-mem": f"{mem}M"}
        decision = ask(at_once, percent, **flags, **more)
        if "whole" in values(decision):
            continue
        share, granted = int(decision.fields["share"]), int(decision.fields["mem"])
        assert share == max(percent, -(-100 * (mem or 0) // USABLE))
        held.setdefault(where(decision), []).append((share, granted))
        # As many of them as Slurm starts on a GPU by percent alone have their memory.
        assert 100 // share * granted <= USABLE
        if decision.claim is not None:
            at_once.claim(decision.claim)
    for parts in held.values() if not array else ():
        assert sum(share for share, _ in parts) <= 100
        assert sum(granted for _, granted in parts) <= USABLE


def test_on_gpus_of_another_model_its_memory_counts_anew() -> None:
    segment_of_it = {"share": "75", "asked_share": "1", "gpu_mem": "12288"}
    job = packed_waiting(7, "n1", 0, 75, segment=segment_of_it)
    small = book([node("n1")])
    small.fleet.gpu_mem[:] = 1_024 + 4 * 12_288
    read = Reader(small.fleet).read(job, NOW)
    berth, _ = small.soonest(read.demand, BerthPolicy())

    after = moved(Move(job, berth, 0.0, "it can start there"), NOW)
    assert (berth.percent, after.texts["share"], after.texts["asked_share"], after.texts["granted"]) == (
        25,
        "25",
        "1",
        "12288",
    )
    pinned = changes.pin(
        JobText(7, "PENDING", 0, segment.put("", job.known.texts), "", "", "", ""),
        Pin(berth.names, berth.gpus, seats=False, plan=after, share=25),
    )
    assert pinned["tres_per_node"] == "gres/shard:g0:25"
    assert "share=25 asked_share=1 mem=12288 way=mps" in pinned["extra"]


def test_a_job_of_the_release_before_is_counted_anew_when_it_gets_a_place() -> None:
    old = packed_waiting(7, "n1", 0, 1, segment={"gpu_mem": "16384"})
    opened = book([node("n1")])
    demand = Reader(opened.fleet).read(old, NOW).demand
    berth, _ = opened.soonest(demand, BerthPolicy())
    after = moved(Move(old, berth, 0.0, "it can start there"), NOW)
    assert (after.texts["share"], after.texts["asked_share"]) == ("100", "1")


def test_without_a_word_about_memory_the_node_is_told_what_the_plan_counts() -> None:
    decision = ask(book([node("n1")]))

    granted = str((GPU_MIB - Sharing().gpu_mem_reserve) * 30 // 100)
    assert (decision.fields["mem"], values(decision)["granted"]) == (granted, granted)
    assert "gpu_mem" not in values(decision)


def test_who_asks_next_by_the_same_picture_comes_beside_it() -> None:
    at_once = book([node("n1")])
    first = ask(at_once)
    assert first.claim is not None
    at_once.claim(first.claim)

    assert ask(at_once).fields["gpus"] == first.fields["gpus"]


def test_whole_gpus_have_none_of_these_keys() -> None:
    decision = decide(submit(**ONE), book([node("n1")]), BerthPolicy(), Settings(), NOW)

    assert not {"share", "mem", "way"} & decision.fields.keys()
    assert not {"share", "gpu_mem", "way"} & values(decision).keys()


def test_memory_by_gpu_is_said_by_node_because_slurm_sees_no_gpu_any_more() -> None:
    assert ask(book([node("n1")]), mem_per_tres="gres/gpu:2000").fields["mem_per_node"] == "2000"
    assert "mem_per_node" not in ask(book([node("n1")]), mem_per_cpu="500").fields
    look = reading([node("n1")], memory=Memory(per_gpu=700))
    machines = {"n1": with_memory(machine("n1", "l40s"))}
    fleet = build_fleet(look.nodes, look.partitions, machines, look.memory, memory_counts=True)
    assert ask(open_book(fleet, look)).fields["mem_per_node"] == "700"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"exclusive": "1"}, "--exclusive whole nodes"),
        ({"flag.gpu-tier": "opportunistic"}, "--gpu-tier=opportunistic"),
        ({"flag.gpu-tier": "exclusive"}, "--gpu-tier=exclusive"),
        ({"flag.gpu-mem": "40G"}, "ask for 16384M"),
        ({"flag.gpu-share": "101"}, "1 to 100"),
        ({"partition": "whole"}, "hands out whole nodes"),
    ],
)
def test_what_contradicts_a_share_is_refused_with_a_sentence(fields: dict[str, str], says: str) -> None:
    look = reading(
        [node("n1", partitions=frozenset({"gpu", "whole"}))],
        partitions=(PartitionFacts("gpu", default=True), PartitionFacts("whole", whole_nodes=True)),
    )
    machines = {"n1": with_memory(machine("n1", "l40s"))}
    fleet = build_fleet(look.nodes, look.partitions, machines, look.memory, memory_counts=True)

    decision = ask(open_book(fleet, look), **fields)

    assert decision.verb == "refuse"
    assert says in decision.fields["message"]


def test_gpus_that_mig_has_cut_are_not_shared() -> None:
    look = reading([node("n1")])
    machines = {"n1": with_memory(machine("n1", "l40s"), mig=True)}
    fleet = build_fleet(look.nodes, look.partitions, machines, look.memory, memory_counts=True)

    decision = ask(open_book(fleet, look))

    assert (decision.verb, "MIG" in decision.fields["message"]) == ("refuse", True)


def test_gpus_that_slurm_does_not_count_in_percent_are_given_whole() -> None:
    decision = ask(book([replace(node("n1"), shards=0)]))

    assert decision.verb == "pass"
    assert "--gpu-share: not acted on" in decision.fields["message"]


def test_memory_that_no_file_tells_is_not_promised() -> None:
    look = reading([node("n1")])
    fleet = build_fleet(look.nodes, look.partitions, {"n1": machine("n1", "l40s")}, look.memory, memory_counts=True)

    assert where(ask(open_book(fleet, look))) == ("n1", "0")
    assert "is not known" in ask(open_book(fleet, look), **{"flag.gpu-mem": "1G"}).fields["message"]


def test_several_gpus_and_nodes_take_the_same_share_of_each() -> None:
    opened = book([node("n1", used=0b1), node("n2", used=0b10), node("n3")])

    several = ask(opened, tres_per_job="gres/gpu:2", gpus="2")
    assert len(several.fields["gpus"].split(",")) == 2
    nodes = ask(opened, tres_per_job="", tres_per_node="gres/gpu:1", gpus="3", min_nodes="3", max_nodes="3")
    assert where(nodes) == ("n1,n2,n3", "2")


@pytest.mark.parametrize("larger", ["n1", "n2"])
def test_on_several_nodes_a_share_is_that_of_the_smallest_gpu(larger: str) -> None:
    look = reading([node("n1"), node("n2")])
    sizes = {name: GPU_MIB * (3 if name == larger else 1) for name in ("n1", "n2")}
    machines = {name: with_memory(machine(name, "l40s"), mib) for name, mib in sizes.items()}
    fleet = build_fleet(look.nodes, look.partitions, machines, look.memory, memory_counts=True)

    several = {"tres_per_job": "", "tres_per_node": "gres/gpu:1", "gpus": "2", "min_nodes": "2", "max_nodes": "2"}
    both = ask(open_book(fleet, look), 50, **several)

    assert where(both) == ("n1,n2", "0")
    assert both.fields["mem"] == "8192", "half of the 16 GiB that one of them has for packed jobs"


@pytest.mark.parametrize("fields", [{"held": "1"}, {"dependency": "1"}, {"begin": str(int(NOW) + 600)}])
def test_one_that_may_not_start_at_once_asks_for_its_gpu_whole(fields: dict[str, str]) -> None:
    # Slurm would start it later by percent alone, whoever is there by then.
    decision = ask(book([node("n1")]), **fields)

    assert not {"share", "mem", "way"} & decision.fields.keys()
    assert (decision.fields["seats"], values(decision)["whole"], values(decision)["share"]) == ("1", "1", "30")


def test_one_that_waits_for_its_part_asks_for_its_gpu_whole() -> None:
    opened = book([node("n1", used=0xFE, shared=(80,))], [packed(1, "n1", 0, 80)])

    decision = ask(opened)

    assert (where(decision), "share" in decision.fields) == (("n1", "0"), False)
    assert decision.fields["message"].startswith("berth: waits for 30 % of n1 GPU 0, expected in")


def test_without_a_picture_it_is_placed_later() -> None:
    flags = {"flag.gpu-share": "30", "flag.gpu-mem": "4G"}
    opened = book([node("n1")])

    decision = decide(submit(**ONE, **flags), opened, BerthPolicy(), Settings(), NOW, stale="too old")

    assert decision.verb == "later"
    assert (decision.fields["share"], {"mem", "way"} & decision.fields.keys()) == ("30", set())
    assert (values(decision)["share"], values(decision)["gpu_mem"]) == ("30", "4096")


def test_the_tasks_of_an_array_fit_by_memory_wherever_they_fit_by_percent() -> None:
    # Slurm starts tasks on one GPU by percent alone: 8 of 16 GiB are half of it.
    assert ask(book([node("n1")]), 10, array="1-9", **{"flag.gpu-mem": "8G"}).fields["share"] == "50"
    assert ask(book([node("n1")]), 10, array="1-9").fields["share"] == "10"


# Where it goes


def test_a_share_joins_a_gpu_that_is_shared_already_however_many_are_free() -> None:
    opened = book([node("n1"), node("n2", shared=(0, 0, 0, 40))], [packed(1, "n2", 3, 40)])

    decision = ask(opened, 60)

    assert where(decision) == ("n2", "3")
    assert "beside 1 other packed job, 0 % stay free" in values(decision)["why"]


def test_a_share_that_does_not_fit_beside_others_opens_a_gpu() -> None:
    opened = book([node("n2", used=0b1111, shared=(0, 0, 0, 0, 50))], [packed(1, "n2", 4, 50)])

    assert where(ask(opened, 51))[1] == "5"


def test_of_two_shared_gpus_the_fuller_one_is_taken() -> None:
    jobs = [packed(1, "n1", 0, 40), packed(2, "n1", 1, 70)]

    assert where(ask(book([node("n1", shared=(40, 70))], jobs), 30)) == ("n1", "1")


def test_the_usual_requests_decide_which_room_is_worth_keeping() -> None:
    jobs = [packed(1, "n1", 0, 30), packed(2, "n1", 1, 50)]
    opened = book([node("n1", used=0xFC, shared=(30, 50))], jobs)
    # Who mostly sees jobs of 50 % keeps the half free, and cuts into the 70 %.
    opened.cluster = replace(opened.cluster, shapes=(UsualJob(1, 50, 1, 1.0),))
    assert where(ask(opened, 20)) == ("n1", "0")
    opened.cluster = replace(opened.cluster, shapes=(UsualJob(1, 70, 1, 1.0),))
    assert where(ask(opened, 20)) == ("n1", "1")


def test_no_island_is_broken_where_another_gpu_fits_as_well() -> None:
    # Pairs: the partner of 0 is busy; the node without NVLink would be as good for fragmentation.
    opened = book([node("n1", used=0b10)], kinds={"n1": "a6000"})
    assert where(ask(opened))[1] == "0"

    jobs = [packed(1, "n2", 0, 10)]
    shared = book([node("n1"), node("n2", used=0xFE, shared=(10,))], jobs, kinds={"n1": "a6000", "n2": "a6000"})
    assert where(ask(shared)) == ("n2", "0")


def test_a_partly_shared_gpu_is_never_free_for_a_whole_job_and_a_whole_one_never_shared() -> None:
    opened = book([node("n1", used=0xF0, shared=(10, 10, 10))], [packed(k + 1, "n1", k, 10) for k in range(3)])

    whole = decide(submit(**ONE), opened, BerthPolicy(), Settings(), NOW)
    assert where(whole) == ("n1", "3")
    opened.claim(whole.claim) if whole.claim else None
    assert where(ask(opened, 95))[1] in {"0", "1", "2"}
    assert values(ask(opened, 95))["state"] == "waiting"


def test_memory_of_the_gpu_counts_with_and_without_a_word_about_it() -> None:
    jobs = [packed(1, "n1", 0, 10, segment={"gpu_mem": "14000"})]
    opened = book([node("n1", used=0xFE, shared=(10,))], jobs)

    assert values(ask(opened, 10, **{"flag.gpu-mem": "2G"}))["state"] == "placed"
    assert values(ask(opened, 10, **{"flag.gpu-mem": "3G"}))["state"] == "waiting"
    # 16 % of 16 GiB are 2,621 MiB.
    assert values(ask(opened, 14))["state"] == "placed"
    assert values(ask(opened, 16))["state"] == "waiting"


@pytest.mark.parametrize(
    ("sharing", "together"),
    [(Sharing(), False), (Sharing(multi_user=True), True), (Sharing(way="time"), True)],
)
def test_users_are_put_together_only_where_the_site_or_the_way_allows_it(sharing: Sharing, together: bool) -> None:
    opened = book([node("n1", shared=(30,))], [packed(1, "n1", 0, 30)], sharing)

    assert (where(ask(opened, uid="2000")) == ("n1", "0")) is together
    assert where(ask(opened, uid="1000")) == ("n1", "0")
    assert ask(opened).fields["way"] == sharing.way


def test_jobs_with_other_sets_of_gpus_are_not_put_together() -> None:
    # One MPS daemon spans exactly the GPUs of its clients.
    jobs = [replace(packed(1, "n1", 0, 30), gpus=0b11)]
    opened = book([node("n1", used=0xF0, shared=(30, 30))], jobs)

    assert where(ask(opened))[1] in {"2", "3"}
    assert where(ask(opened, tres_per_job="gres/gpu:2", gpus="2")) == ("n1", "0,1")


def test_what_slurm_counts_but_no_known_job_holds_is_left_alone() -> None:
    assert where(ask(book([node("n1", shared=(30,))])))[1] != "0"


def test_cores_and_memory_of_the_node_count_too() -> None:
    jobs = [packed(1, "n1", 0, 30, mem=63_000)]
    opened = book([node("n1", shared=(30,), mem_used=63_000), node("n2")], jobs)

    assert where(ask(opened, mem_per_node="2000"))[0] == "n2"


# When


def test_a_share_waits_for_the_first_gpu_with_enough_of_it() -> None:
    jobs = [packed(1, "n1", 0, 50, 500), packed(2, "n1", 0, 50, 900), running(3, "n1", 0xFE, 700)]
    opened = book([node("n1", used=0xFE, shared=(100,))], jobs)

    assert (where(ask(opened, 50)), values(ask(opened, 50))["start"]) == (("n1", "0"), str(int(NOW) + 500))
    assert values(ask(opened, 60))["start"] == str(int(NOW) + 700)


def test_a_share_does_not_push_back_a_whole_job_that_is_planned() -> None:
    jobs = [packed(1, "n1", 0, 50, 500), running(3, "n1", 0xFE, 9_000)]
    opened = book([node("n1", used=0xFE, shared=(50,))], jobs)
    whole = decide(submit(**ONE, time_limit="10"), opened, BerthPolicy(), Settings(), NOW)
    assert values(whole)["start"] == str(int(NOW) + 500)
    assert whole.claim is not None
    opened.claim(whole.claim)

    assert values(ask(opened, 30, time_limit="8"))["state"] == "placed"
    assert values(ask(opened, 30, time_limit="9"))["start"] == str(int(NOW) + 1_100)


def test_places_that_were_given_count_until_slurm_shows_them() -> None:
    opened = book([node("n1", used=0xFE)])
    for _ in range(3):
        given = ask(opened)
        assert (where(given), values(given)["state"]) == (("n1", "0"), "placed")
        assert given.claim is not None
        opened.claim(given.claim)

    assert values(ask(opened))["state"] == "waiting"
    assert values(ask(opened, 10))["state"] == "placed"
    assert values(ask(opened, 10, uid="7"))["state"] == "waiting"


def test_a_copy_of_a_picture_keeps_its_own_tenants() -> None:
    opened = book([node("n1")])
    copy = Book(opened.cluster)
    claim = ask(opened).claim
    assert claim is not None
    copy.claim(claim)

    assert (list(copy.cluster.tenants), list(opened.cluster.tenants)) == ([0], [])


# The parts


def test_what_is_left_of_shared_gpus() -> None:
    tenants = Tenants(
        (
            PlannedTenant(0b11, 30, 0, 1, 0, 10),
            PlannedTenant(0b10, 20, 0, 1, 5, 10),
            PlannedTenant(4, 100, 0, NOBODY, 0, 10),
        )
    )

    assert tuple(map(tenants.left, (1, 5, 10))) == ({0: 70, 1: 70}, {0: 70, 1: 50}, {})


def test_one_gpu_takes_no_more_packed_jobs_than_mps_serves() -> None:
    there = tuple(PlannedTenant(1, 1, 0, EVERYBODY, 0.0, 10.0) for _ in range(MOST_TENANTS))

    assert admits(there[1:], 1, Share(1), 0, 1.0, 2.0)
    assert not admits(there, 1, Share(1), 0, 1.0, 2.0)


moments = st.integers(0, 6)
tenancies = st.lists(
    st.builds(
        lambda percent, mem, start, length: PlannedTenant(1, percent, mem, EVERYBODY, start, start + length),
        st.sampled_from([10, 30, 50]), st.integers(0, 40), moments, st.integers(1, 4),
    ),
    max_size=5,
)  # fmt: skip


@given(tenancies, st.integers(1, 100), st.integers(1, 40), moments, st.integers(1, 5))
def test_a_share_is_admitted_just_where_it_fits_at_each_moment(
    there: list[PlannedTenant], percent: int, mem: int, start: int, length: int
) -> None:
    fits = all(
        sum(one.percent for one in there if one.there(t)) + Share(percent, mem).counted(60) <= 100
        and sum(one.gpu_mem for one in there if one.there(t)) + mem <= 60
        for t in range(start, start + length)
    )

    assert admits(there, 1, Share(percent, mem), 60, start, start + length) is fits


def test_what_is_usual_is_learned_but_a_few_jobs_do_not_rule() -> None:
    few = learned([waiting(1, "n1", 0b11)])
    many = learned([packed_waiting(k, "n1", 0, 40, cpus=3) for k in range(200)])

    assert few[0][:3] == DEFAULT[0][:3]
    assert many[0][:3] == (1, 40, 3)
    assert sum(shape.weight for shape in many) == pytest.approx(1.0)


# A brute-force oracle for small nodes: every state before and after, counted GPU by GPU.


def fragmentation(left: list[int], cpus: int, shapes: tuple[UsualJob, ...]) -> float:
    """The definition, word by word: room that a drawn request cannot use."""
    lost = 0.0
    for gpus, percent, needed, weight in shapes:
        fitting = [room for room in left if room >= percent]
        usable = sum(fitting) if len(fitting) >= gpus and cpus >= needed else 0
        lost += weight * (sum(left) - usable)
    return lost


@given(st.lists(st.sampled_from([0, 10, 25, 40, 60, 75, 90, 100]), min_size=8, max_size=8), st.integers(0, 32))
def test_fragmentation_is_what_its_definition_says(left: list[int], cpus: int) -> None:
    free = np.array([left.count(100)])
    parts = np.array([[room for room in left if 0 < room < 100]], np.int64).reshape(1, -1)

    assert stranded(free, parts, np.array([cpus]), DEFAULT)[0] == pytest.approx(fragmentation(left, cpus, DEFAULT))


gpu_states = st.lists(st.sampled_from([0, 10, 30, 50, 70, 100]), min_size=8, max_size=8)


@given(st.lists(gpu_states, min_size=1, max_size=3), st.integers(1, 100), st.integers(1, 3))
def test_a_share_goes_where_no_other_place_adds_less(states: list[list[int]], percent: int, k: int) -> None:
    nodes, jobs = [], []
    for number, used in enumerate(states):
        name = f"n{number}"
        nodes.append(node(name, used=sum(1 << g for g, p in enumerate(used) if p == 100),
                          shared=tuple(p if p < 100 else 0 for p in used)))  # fmt: skip
        jobs += [packed(10 * number + g, name, g, p) for g, p in enumerate(used) if 0 < p < 100]
        # The CPUs do not matter here.
    opened = book([replace(one, cpus=900, cpus_used=0, mem_used=0) for one in nodes],
                  [replace(job, cpus=0) for job in jobs])  # fmt: skip
    cluster = opened.cluster
    demand = Demand(1, k, 1, 1, "node", 3_600, cluster.fleet.ready, share=Share(percent, 1, party=1_000))
    options = []
    for number, used in enumerate(states):
        left = [100 - p for p in used]
        for gpus in itertools.combinations(range(8), k):
            rooms_here = [left[g] for g in gpus]
            # All its GPUs are free, or it is the one GPU of others that have just this one.
            if all(room == 100 for room in rooms_here) or (k == 1 and 0 < used[gpus[0]] <= 100 - percent):
                after = [room - percent if g in gpus else room for g, room in enumerate(left)]
                options.append(
                    (
                        fragmentation(after, 899, DEFAULT) - fragmentation(left, 900, DEFAULT),
                        number,
                        sum(1 << g for g in gpus),
                    )
                )
    try:
        berth = place(demand, cluster.now(3_600), cluster.tenants, cluster.at, ())
    except NotNow:
        assert not options
        return

    cost = {(number, mask): cost for cost, number, mask in options}
    # Places that cost nearly the same are alike, and the first node among them takes the job.
    assert cost[berth.nodes[0], berth.mask] < min(options)[0] + ALIKE
