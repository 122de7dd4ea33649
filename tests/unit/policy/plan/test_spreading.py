# SPDX-License-Identifier: Apache-2.0
"""A job of `--gpus=N` alone starts now on several nodes, in the form that its user gave it, where no place is free."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.cluster.fleet import Fleet
from policy.formats import segment, wire
from policy.formats.errors import FormatError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, JobText, NodeFacts
from policy.placement.registry import create
from policy.plan.ledger.changes import Change, Move, Release
from policy.plan.ledger.tracker import open_book
from policy.plan.opinions.reservations import AGAIN_AFTER, OPEN_FOR
from policy.plan.opinions.spreading import SOON_AGAIN, parts_now
from policy.plan.queue.plan import Plan
from policy.request import spread
from policy.request.locality import parse_rules
from policy.request.settings import Settings
from policy.slurm import changes
from policy.slurm.interface import Pin
from tests.examples import examples
from tests.unit.deciding import Decision, decide, only_watch, values
from tests.unit.guest_world import guest
from tests.unit.policy_world import NOW, book, fleet, node, reading, request_of, running, submit, waiting

POLICY = create("berth")
FIVE, SEVEN, FULL = 0b0001_1111, 0b0111_1111, 0xFF
ALONE = {"tres_per_job": "gres/gpu:4", "min_cpus": "1"}


def used(*masks: int) -> tuple[list[NodeFacts], list[JobFacts]]:
    """Nodes on which these GPUs are in use for 3,000 s."""
    nodes = [node(f"n{number}", used=mask) for number, mask in enumerate(masks, 1)]
    return nodes, [running(number, f"n{number}", mask, 3_000) for number, mask in enumerate(masks, 1) if mask]


def answer(*masks: int, settings: Settings | None = None, **fields: str) -> Decision:
    return decide(submit(**{**ALONE, **fields}), book(reading(*used(*masks))), POLICY, settings or Settings(), NOW)


def on_several(decision: Decision) -> bool:
    return decision.verb == "pass" and "on 2 nodes" in decision.fields["message"]


@pytest.mark.parametrize("masks", [(FIVE, SEVEN), (0b11_1111, 0b11_1111), (SEVEN, FIVE, FULL)])
def test_a_job_that_fits_on_no_node_now_keeps_its_request_and_may_start_on_two(masks: tuple[int, ...]) -> None:
    decision = answer(*masks)

    assert on_several(decision)
    found = values(decision)
    assert (found["state"], found["open"], found["spread"]) == ("later", "1", "1:100:0")
    assert (found["n"], found["k"]) == ("1", "4")


def test_what_it_will_have_is_no_place_for_the_next_job() -> None:
    view = book(reading(*used(FIVE, SEVEN)))
    first = decide(submit(**ALONE), view, POLICY, Settings(), NOW)
    assert first.claim is not None
    view.claim(first.claim)

    assert decide(submit(**ALONE), view, POLICY, Settings(), NOW).verb == "place"
    assert values(decide(submit(tres_per_job="gres/gpu:1"), view, POLICY, Settings(), NOW))["state"] == "waiting"


def test_a_node_that_is_free_is_better() -> None:
    assert answer(FIVE, SEVEN, 0b1111).fields["nodes"] == "n3"


def test_more_gpus_than_a_node_has_start_on_the_fewest_nodes_that_hold_them() -> None:
    decision = answer(0, FIVE, 0b1111, FIVE, tres_per_job="gres/gpu:16")

    assert "on 4 nodes" in answer(0b1, FIVE, 0b1111, FIVE, tres_per_job="gres/gpu:16").fields["message"]
    assert "on 4 nodes" in decision.fields["message"]
    assert "on 3 nodes" in answer(0, 0b111, FIVE, FIVE, tres_per_job="gres/gpu:16").fields["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"min_nodes": "1", "max_nodes": "1"},
        {"num_tasks": "1"},
        {"ntasks_per_node": "2"},
        {"tres_per_job": "", "tres_per_node": "gres/gpu:4"},
        {"flag.locality": "node"},
        {"flag.locality": "nvlink@30"},
        {"req_nodes": "n1"},
        {"mem_per_node": "0"},
        {"array": "1"},
        {"begin": str(int(NOW) + 600), "later": "1"},
    ],
)
def test_who_asks_for_more_than_gpus_waits_for_a_place(fields: dict[str, str]) -> None:
    wanted = {key: value for key, value in {**ALONE, **fields}.items() if value}
    decision = decide(submit(**wanted), book(reading(*used(FIVE, SEVEN))), POLICY, Settings(), NOW)

    assert not on_several(decision)


def test_a_job_for_which_the_site_wants_a_level_waits_for_it() -> None:
    rules = Settings(locality_rules=parse_rules("2:node@10", 600))

    assert not on_several(answer(FIVE, SEVEN, settings=rules))
    assert on_several(answer(FIVE, SEVEN, settings=Settings(locality_rules=parse_rules("8:node@10", 600))))


@pytest.mark.parametrize(
    "fields", [{"client": "srun"}, {"client": "salloc"}, {"cpus_per_tres": "gres/gpu:2", "min_cpus": "8"}]
)
def test_a_job_that_no_later_pin_would_fit_is_left_to_slurm(fields: dict[str, str]) -> None:
    decision = decide(submit(**{**ALONE, **fields}), book(reading(*used(FIVE, SEVEN))), POLICY, Settings(), NOW)

    assert on_several(decision)
    assert values(decision)["state"] == "passed"


def test_cpus_and_memory_are_needed_on_each_node() -> None:
    assert on_several(answer(FIVE, SEVEN, mem_per_node="40000"))
    assert not on_several(answer(FIVE, SEVEN, mem_per_node="63950"))
    assert on_several(answer(FIVE, SEVEN, mem_per_tres="gres/gpu:15000"))
    assert on_several(answer(FIVE, SEVEN, cpus_per_tres="gres/gpu:8"))


def test_where_slurm_may_preempt_it_keeps_its_request() -> None:
    decision = answer(FULL, FULL, settings=Settings(pin_ahead=False))

    assert (decision.verb, values(decision)["open"]) == ("pass", "1")


def test_a_site_that_only_watches_notes_it_alone() -> None:
    assert values(only_watch(answer(FIVE, SEVEN)))["state"] == "observed"


WAITS = {"k": "4", "gpus": "0,1,2,3", "asked": "tres_per_job:gres/gpu:4", "spread": "1:100:0"}


def replan(plan: Plan, masks: tuple[int, ...], job: JobFacts, at: float = NOW) -> list[Change]:
    nodes, jobs = used(*masks)
    look = reading(nodes, [*jobs, job], at=at)
    plan_fleet = FLEETS.setdefault(len(masks), fleet(look))
    return plan.replan(open_book(plan_fleet, look), look.jobs)


FLEETS: dict[int, Fleet] = {}


def pinned(job_id: int = 9, **changes: str) -> JobFacts:
    return waiting(job_id, "n1", 0b1111, segment={**WAITS, **changes})


def opened(**changed: str) -> JobFacts:
    told = {"state": "later", "nodes": "", "gpus": "", "open": "1"}
    return waiting(9, "", 0, required=(), segment={**WAITS, **told, **changed})


def test_a_waiting_job_starts_on_two_nodes_when_their_gpus_come_free() -> None:
    plan = Plan(POLICY, Settings())
    assert replan(plan, (FULL, FULL), pinned()) == []

    [change] = replan(plan, (FIVE, SEVEN), pinned())

    assert isinstance(change, Release)
    assert (change.for_now, change.reason) == (True, "it can start now on 2 nodes")


def test_while_it_insists_on_a_level_it_waits() -> None:
    assert replan(Plan(POLICY, Settings()), (FIVE, SEVEN), pinned(insists="node", wait="600")) == []


def test_a_job_with_its_users_request_is_left_so_while_there_is_room() -> None:
    plan = Plan(POLICY, Settings())

    assert replan(plan, (FIVE, SEVEN), opened()) == []
    assert replan(plan, (FIVE, SEVEN), opened(), NOW + OPEN_FOR) == []


def test_if_it_does_not_start_it_is_pinned_and_tries_again_much_later() -> None:
    plan = Plan(POLICY, Settings())
    assert replan(plan, (FIVE, SEVEN), opened()) == []

    [change] = replan(plan, (FIVE, SEVEN), opened(), NOW + OPEN_FOR + 1)
    assert isinstance(change, Move)
    assert change.start > 0

    assert replan(plan, (FIVE, SEVEN), pinned(), NOW + OPEN_FOR + 2) == []
    [again] = replan(plan, (FIVE, SEVEN), pinned(), NOW + OPEN_FOR + AGAIN_AFTER + 2)
    assert isinstance(again, Release)


def test_if_others_took_the_gpus_it_is_pinned_and_tries_again_soon() -> None:
    plan = Plan(POLICY, Settings())
    [change] = replan(plan, (FIVE, SEVEN), pinned())
    assert isinstance(change, Release)

    [change] = replan(plan, (FULL, FULL), opened(), NOW + 2)
    assert isinstance(change, Move)
    assert replan(plan, (FIVE, SEVEN), pinned(), NOW + 4) == []
    [change] = replan(plan, (FIVE, SEVEN), pinned(), NOW + SOON_AGAIN + 1)
    assert isinstance(change, Release)


def test_a_node_that_comes_free_for_it_alone_is_taken() -> None:
    [change] = replan(Plan(POLICY, Settings()), (FIVE, 0b1111), opened())

    assert isinstance(change, Move)
    assert change.berth.names == ("n2",)


def test_the_job_before_it_in_line_keeps_its_gpus() -> None:
    nodes, jobs = used(FIVE, SEVEN)
    first = waiting(8, "n2", 0b1000_0000, priority=5)
    look = reading(nodes, [*jobs, first, pinned()])

    assert Plan(POLICY, Settings()).replan(open_book(fleet(look), look), look.jobs) == []


def test_of_two_such_jobs_the_second_waits() -> None:
    nodes, jobs = used(FIVE, SEVEN)
    look = reading(nodes, [*jobs, pinned(9), pinned(10)])

    [change] = Plan(POLICY, Settings()).replan(open_book(fleet(look), look), look.jobs)
    assert change.job.id == 9


@pytest.mark.parametrize("n", [1, 2])
def test_given_back_it_asks_as_its_user_did(n: int) -> None:
    body = {**WAITS, "state": "waiting", "nodes": "n1", "n": str(n)}
    typed = ",".join(f"gres/gpu:g{place}:1" for place in range(4))
    job = JobText(9, "PENDING", 1000, f"site [berth/1 {wire.words(body)}]", "", "n1", typed, "")

    found = changes.release(job, "it can start now", for_now=True)

    assert found is not None
    asked = {key: found[key] for key in ("tres_per_job", "tres_per_node", "node_count", "min_cpus", "req_nodes")}
    assert asked == {
        "tres_per_job": f"gres/gpu:{4 * n}",
        "tres_per_node": "",
        "node_count": "any",
        "min_cpus": "1",
        "req_nodes": "",
    }
    told = segment.fields(found["admin_comment"]) or {}
    assert (told["state"], told["open"]) == ("later", "1")


def test_given_back_a_gang_asks_for_gpus_of_each_node() -> None:
    body = {"state": "waiting", "asked": "tres_per_node:gres/gpu:4", "n": "2", "k": "4", "nodes": "n1,n2"}
    body |= {"was": "min_nodes:2;max_nodes:2", "spread": "1:100:0:2:0:0:4:1:2", "gpus": "0,1,2,3"}
    typed = ",".join(f"gres/gpu:g{place}:1" for place in range(4))
    job = JobText(9, "PENDING", 1000, f"[berth/1 {wire.words(body)}]", "", "n[1-2]", typed, "")

    found = changes.release(job, "it can start now", for_now=True)

    assert found is not None
    asked = {key: found[key] for key in ("tres_per_job", "tres_per_node", "tres_per_task", "node_count")}
    assert asked == {"tres_per_job": "", "tres_per_node": "gres/gpu:4", "tres_per_task": "", "node_count": "2"}


@settings(max_examples=examples(200))
@given(
    st.lists(st.integers(0, FULL), min_size=1, max_size=6),
    st.integers(2, 24),
    st.integers(1, 20),
    st.sampled_from([0, 1, 3, 8]),
)
def test_parts_are_free_gpus_of_the_fewest_nodes(masks: list[int], gpus: int, cpus: int, by_gpu: int) -> None:
    view = book(reading(*used(*masks)))
    everywhere = np.ones(len(masks), np.bool_)
    needs = spread.SpreadNeeds(cpus, 100, 0, by_gpu, candidates=everywhere)

    parts = parts_now(view, needs, gpus, 60)

    free = {number: FULL & ~mask for number, mask in enumerate(masks)}
    left = {number: 32 - mask.bit_count() for number, mask in enumerate(masks)}
    room = {
        number: min(bits.bit_count(), left[number] // by_gpu if by_gpu else 8) if left[number] >= cpus else 0
        for number, bits in free.items()
    }
    most = sorted(room.values(), reverse=True)
    fits = sum(most) >= gpus > most[0]
    assert bool(parts) == fits
    if fits:
        assert sum(part.mask.bit_count() for part in parts) == gpus
        assert all(part.mask & ~free[part.node] == 0 for part in parts)
        assert all(0 < part.mask.bit_count() <= room[part.node] for part in parts)
        assert len({part.node for part in parts}) == len(parts)
        assert sum(most[: len(parts) - 1]) < gpus


def test_the_request_that_may_be_spread() -> None:
    assert spread.may_spread(request_of(submit(**ALONE)))
    assert not spread.may_spread(request_of(submit(**ALONE, num_tasks="1")))


def test_pinned_again_it_has_the_nodes_of_its_place_alone() -> None:
    body = {**WAITS, "state": "later", "open": "1"}
    job = JobText(9, "PENDING", 1000, f"[berth/1 {wire.words(body)}]", "", "", "", "gres/gpu:4")
    values = {**WAITS, "state": "waiting", "nodes": "n1", "cpus": "1"}

    found = changes.pin(job, Pin(("n1",), (0, 1, 2, 3), seats=False, plan=JobPlan(values)))

    assert (found["node_count"], found["min_cpus"], found["tres_per_job"], found["req_nodes"]) == ("1", "1", "", "n1")
    assert "open" not in (segment.fields(found["admin_comment"]) or {})


@pytest.mark.parametrize("text", ["1", "1:2", "1:2:x", "1:2:3:4"])
def test_a_value_that_berth_did_not_write_is_an_error(text: str) -> None:
    with pytest.raises(FormatError):
        spread.read(text)


def test_no_job_joins_a_guest_on_a_gpu_that_slurm_counts_as_free() -> None:
    """Slurm gives the GPU of a guest to an untyped request, which has no seat in it that would keep it off."""
    nodes, jobs = used(FIVE, SEVEN)
    lent = replace(nodes[1], seats_used=0b1000_0000)
    look = reading([nodes[0], lent], [*jobs, guest(5, "n2", 7)])

    assert not on_several(decide(submit(**ALONE), book(look), POLICY, Settings(), NOW))


def test_a_hundred_nodes_do_too() -> None:
    nodes, jobs = used(*[SEVEN] * 100)

    decision = decide(
        submit(**{**ALONE, "tres_per_job": "gres/gpu:80"}), book(reading(nodes, jobs)), POLICY, Settings(), NOW
    )
    assert "on 80 nodes" in decision.fields["message"]


def test_a_job_that_keeps_its_request_where_slurm_preempts_is_only_noted_by_a_site_that_watches() -> None:
    decision = answer(FULL, FULL, settings=Settings(pin_ahead=False))

    assert values(only_watch(decision))["state"] == "observed"


@pytest.mark.parametrize("masks", [(0x0F, 0xF0), (0x0F, 0x1E, 0xFF), (0x55, 0x33, 0x0F)])
def test_a_gang_whose_nodes_have_no_set_in_common_keeps_its_request_and_starts_on_sets_of_their_own(
    masks: tuple[int, ...],
) -> None:
    decision = decide(
        submit(tres_per_node="gres/gpu:4", min_nodes="2", max_nodes="2", gpus="8"),
        book(reading(*used(*masks))), POLICY, Settings(), NOW,
    )  # fmt: skip

    assert on_several(decision)
    found = values(decision)
    assert (found["n"], found["k"], found["open"]) == ("2", "4", "1")
    assert found["spread"] == "1:100:0:2:0:0:4:1:2"


@pytest.mark.parametrize(
    ("masks", "k"),
    [((0x0F, 0x0F), 4), ((0xFE, 0xFF), 4), ((0x00, 0x01), 8)],
    ids=["a set in common", "too few free", "whole nodes"],
)
def test_other_gangs_have_places_of_their_own(masks: tuple[int, ...], k: int) -> None:
    decision = decide(
        submit(tres_per_node=f"gres/gpu:{k}", min_nodes="2", max_nodes="2", gpus=str(2 * k)),
        book(reading(*used(*masks))), POLICY, Settings(), NOW,
    )  # fmt: skip

    assert decision.verb == "place"


def test_a_waiting_gang_gets_its_request_back_when_two_nodes_have_enough_of_their_own() -> None:
    of_gang = {"n": "2", "k": "4", "nodes": "n1,n2", "gpus": "0,1,2,3", "spread": "1:100:0:2:0:0:4:1:2"}
    gang = replace(pinned(9, **of_gang), nodes=(), required=("n1", "n2"), count=2)
    plan = Plan(POLICY, Settings())
    assert replan(plan, (FULL, FULL), gang) == []

    [change] = replan(plan, (0x0F, 0xF0), gang)

    assert isinstance(change, Release)
    assert change.for_now
    assert replan(Plan(POLICY, Settings()), (0xF0, 0xF0), gang) == [], "its place is free, a set that both have"
