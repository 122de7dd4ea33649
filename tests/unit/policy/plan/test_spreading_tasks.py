# SPDX-License-Identifier: Apache-2.0
"""Jobs of tasks, on a number of nodes, of arrays and of counted models start on several nodes as on plain Slurm."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.cluster.fleet import Fleet
from policy.formats import segment, wire
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, JobText, Reading
from policy.plan.ledger.changes import Change, Move, Release
from policy.plan.ledger.tracker import open_book
from policy.plan.opinions.reservations import AGAIN_AFTER, OPEN_FOR
from policy.plan.opinions.spreading import claims_on, parts_now
from policy.plan.queue.plan import Plan
from policy.request import spread
from policy.request.settings import Settings
from policy.slurm import changes
from policy.slurm.interface import Pin
from tests.examples import examples
from tests.unit.deciding import Decision, decide, only_watch, values
from tests.unit.policy.plan.test_spreading import FIVE, FULL, POLICY, SEVEN, on_several, used
from tests.unit.policy_world import NOW, book, fleet, reading, submit, waiting

SIX = 0b0011_1111


def answer(*masks: int, **fields: str) -> Decision:
    wanted = {key: value for key, value in {"tres_per_job": "gres/gpu:4", "min_cpus": "4", **fields}.items() if value}
    return decide(submit(**wanted), book(reading(*used(*masks))), POLICY, Settings(), NOW)


TASKS = {"num_tasks": "4"}
PER_TASK = {"tres_per_job": "", "tres_per_task": "gres/gpu=1", "num_tasks": "4"}


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        (TASKS, "1:100:0:4:1:100:0:0:0"),
        ({"num_tasks": "2", "min_cpus": "2"}, "1:100:0:2:1:100:0:0:0"),
        ({**TASKS, "cpus_per_task": "3", "min_cpus": "12"}, "3:300:0:4:3:300:0:0:0"),
        ({**TASKS, "mem_per_node": "500"}, "1:500:0:4:1:0:0:0:0"),
        ({**TASKS, "mem_per_tres": "gres/gpu:200"}, "1:200:200:4:1:0:0:0:0"),
        ({"min_nodes": "2", "max_nodes": "2", "min_cpus": "2"}, "1:100:0:0:0:0:0:0:2"),
        ({"req_nodes": "n1,n2", "min_cpus": "2"}, "1:100:0:0:0:0:0:0:2"),
        (PER_TASK, "1:100:0:4:1:100:1:0:0"),
        ({**PER_TASK, "tres_per_job": "gres/gpu:4"}, "1:100:0:4:1:100:1:0:0"),
    ],
)
def test_a_job_of_tasks_keeps_its_request_and_may_start_on_two_nodes(fields: dict[str, str], needs: str) -> None:
    decision = answer(FIVE, SEVEN, **fields)

    assert on_several(decision)
    assert (values(decision)["open"], values(decision)["spread"]) == ("1", needs)


@pytest.mark.parametrize(
    "fields",
    [
        {**PER_TASK, "client": "salloc"},
        {"ntasks_per_tres": "1", "num_tasks": "4"},
        {**TASKS, "cpus_per_tres": "gres/gpu:2", "min_cpus": "8"},
        {**TASKS, "client": "srun"},
        {**TASKS, "min_nodes": "2", "max_nodes": "2"},
        {"ntasks_per_node": "2", "min_nodes": "2", "max_nodes": "2"},
    ],
)
def test_to_which_no_later_pin_would_fit_is_left_to_slurm(fields: dict[str, str]) -> None:
    decision = answer(FIVE, SEVEN, **fields)

    if fields.get("min_nodes"):
        assert on_several(decision)
        assert "spread" not in values(decision)
    else:
        assert (on_several(decision), values(decision)["state"]) == (True, "passed")


@pytest.mark.parametrize(("cpus", "mem", "starts"), [(8, 800, True), (20, 800, False), (8, 40_000, False)])
def test_each_task_has_its_cpus_and_memory_on_one_node(cpus: int, mem: int, *, starts: bool) -> None:
    nodes, jobs = used(FIVE, SEVEN)
    look = reading([replace(one, cpus_used=cpus, mem_used=mem) for one in nodes], jobs)
    fields = {"tres_per_job": "gres/gpu:4", **TASKS, "cpus_per_task": "8", "min_cpus": "32", "mem_per_cpu": "1900"}

    assert on_several(decide(submit(**fields), book(look), POLICY, Settings(), NOW)) is starts


def test_there_are_no_more_nodes_than_tasks() -> None:
    assert not on_several(answer(SIX, SEVEN, SEVEN, num_tasks="2", min_cpus="2"))
    assert "on 3 nodes" in answer(SIX, SEVEN, SEVEN, num_tasks="3", min_cpus="3").fields["message"]


def test_the_gpus_of_a_task_are_on_its_node() -> None:
    two = {**PER_TASK, "tres_per_task": "gres/gpu=2", "num_tasks": "2", "min_cpus": "2"}

    assert not on_several(answer(FIVE, SEVEN, **two))
    assert on_several(answer(FIVE, SIX, **two))


def test_a_number_of_nodes_is_kept() -> None:
    two = {"min_nodes": "2", "max_nodes": "2", "min_cpus": "2"}

    assert not on_several(answer(SIX, SEVEN, SEVEN, **two))
    assert on_several(answer(FIVE, SEVEN, FULL, **two))
    assert answer(SIX, SIX, SEVEN, **two).verb == "place"


def test_the_tasks_of_one_node_are_as_many_as_the_user_says() -> None:
    two = {"num_tasks": "4", "ntasks_per_node": "2", "min_nodes": "2", "max_nodes": "2"}

    assert on_several(answer(FIVE, 0b1111_1100, **two))
    assert not on_several(answer(FIVE, 0b1111_1100, **{**two, "ntasks_per_node": "1"}))


def test_with_tasks_said_in_two_ways_each_node_must_have_as_many_gpus_free() -> None:
    """Slurm 24.11 starts it as 3 + 1 on 3 + 2 free GPUs, and not on 3 + 1."""
    two = {"num_tasks": "4", "ntasks_per_node": "2", "min_nodes": "2", "max_nodes": "2"}

    assert not on_several(answer(FIVE, SEVEN, **two))
    assert on_several(answer(FIVE, SEVEN, **{**two, "num_tasks": ""}))


@settings(max_examples=examples(200))
@given(
    st.lists(st.integers(0, FULL), min_size=2, max_size=6),
    st.integers(2, 12),
    st.integers(1, 12),
    st.integers(1, 16),
    st.sampled_from([0, 1, 2, 3]),
    st.sampled_from([0, 2, 3]),
)
def test_parts_hold_all_gpus_and_all_tasks(
    masks: list[int], gpus: int, tasks: int, cpus: int, of_task: int, nodes: int
) -> None:
    view, everywhere = book(reading(*used(*masks))), np.ones(len(masks), np.bool_)
    gpus = tasks * of_task or gpus
    needs = spread.SpreadNeeds(
        cpus, 100, tasks=tasks, task_cpus=cpus, task_gpus=of_task, nodes=nodes, candidates=everywhere
    )

    parts = parts_now(view, needs, gpus, 60)

    if not parts:
        return
    assert 1 < len(parts) <= min(gpus, tasks)
    assert nodes in {0, len(parts)}
    assert sum(part.mask.bit_count() for part in parts) == gpus
    for part, claim in zip(parts, claims_on(needs, parts, NOW, 60), strict=True):
        assert part.mask
        assert not part.mask & masks[part.node]
        assert part.mask.bit_count() % max(1, of_task) == 0
        assert part.tasks >= 1
        assert claim.cpus is not None
        assert cpus <= claim.cpus <= 32 - masks[part.node].bit_count()


def test_what_a_read_value_says_is_what_was_written() -> None:
    for value in ("1:100:0", "1:100:0:4:1:100:2:3:0", "1:100:0:0:0:0:0:0:2"):
        assert spread.write(spread.read(value)) == value


WAITS = {"k": "4", "gpus": "0,1,2,3", "asked": "tres_per_job:gres/gpu:4", "spread": "1:100:0:4:1:100:0:0:0"}
EACH = {**WAITS, "asked": "tres_per_task:cpu=2,gres/gpu=1", "spread": "2:200:0:4:2:200:1:0:0"}


def pinned(job_id: int = 9, told: dict[str, str] | None = None, **facts: object) -> JobFacts:
    return waiting(job_id, "n1", 0b1111, segment=WAITS if told is None else told, **facts)


def world(masks: tuple[int, ...], *jobs: JobFacts, at: float = NOW) -> Reading:
    nodes, running_ones = used(*masks)
    return reading(nodes, [*running_ones, *jobs], at=at)


def replan(plan: Plan, look: Reading) -> list[Change]:
    return plan.replan(open_book(FLEETS.setdefault(len(look.nodes), fleet(look)), look), look.jobs)


FLEETS: dict[int, Fleet] = {}


@pytest.mark.parametrize("told", [WAITS, EACH])
def test_a_waiting_job_of_tasks_starts_when_gpus_come_free(told: dict[str, str]) -> None:
    plan = Plan(POLICY, Settings())
    assert replan(plan, world((FULL, FULL), pinned(told=told))) == []

    [change] = replan(plan, world((FIVE, SEVEN), pinned(told=told)))

    assert isinstance(change, Release)
    assert (change.for_now, change.reason) == (True, "it can start now on 2 nodes")


def text_of(told: dict[str, str]) -> JobText:
    typed = ",".join(f"gres/gpu:g{place}:1" for place in range(4))
    body = wire.words({**told, "state": "waiting", "nodes": "n1", "n": "1"})
    return JobText(9, "PENDING", 1000, f"[berth/1 {body}]", "", "n1", typed, "")


def test_given_back_a_job_of_tasks_asks_as_its_user_did() -> None:
    found = changes.release(text_of(WAITS), "it can start now", for_now=True)

    assert found is not None
    asked = {key: value for key, value in found.items() if key not in {"admin_comment", "extra", "req_nodes"}}
    assert asked == {"tres_per_job": "gres/gpu:4", "tres_per_node": "", "node_count": "1-4"}
    assert (segment.fields(found["admin_comment"]) or {})["state"] == "later"


def test_given_back_a_job_of_gpus_for_each_task_asks_as_its_user_did() -> None:
    found = changes.release(text_of(EACH), "it can start now", for_now=True)

    assert found is not None
    asked = {key: value for key, value in found.items() if key not in {"admin_comment", "extra", "req_nodes"}}
    assert asked == {
        "tres_per_job": "",
        "tres_per_node": "",
        "tres_per_task": "cpu=2,gres/gpu=1",
        "node_count": "1-4",
    }
    assert (segment.fields(found["admin_comment"]) or {})["open"] == "1"


def test_given_back_a_job_on_some_nodes_has_as_many() -> None:
    told = {**WAITS, "spread": "2:100:0:0:0:0:0:0:2", "n": "2", "k": "2"}
    found = changes.release(text_of(told), "it can start now", for_now=True)

    assert found is not None
    assert (found["node_count"], found["min_cpus"]) == ("2", "4")


@pytest.mark.parametrize(("needs", "each"), [(WAITS, None), (EACH, "")])
def test_pinned_again_a_job_of_tasks_keeps_their_cpus(needs: dict[str, str], each: str | None) -> None:
    body = {**needs, "state": "later", "open": "1"}
    job = JobText(9, "PENDING", 1000, f"[berth/1 {wire.words(body)}]", "", "", "", "gres/gpu:4")
    told = {**needs, "state": "waiting", "nodes": "n1", "cpus": "4"}

    found = changes.pin(job, Pin(("n1",), (0, 1, 2, 3), seats=False, plan=JobPlan(told)))

    assert (found["node_count"], found["tres_per_job"], "min_cpus" in found) == ("1", "", False)
    assert found.get("tres_per_task") == each


def array(told: dict[str, str], tasks: str = "1-3", at_once: int | None = None) -> JobFacts:
    return pinned(told=told, state="ARRAY", array=9, tasks=tasks, at_once=at_once)


ALONE = {**WAITS, "spread": "1:100:0"}


def test_an_array_waits_with_one_place_when_it_comes() -> None:
    assert not on_several(answer(FIVE, SEVEN, array="1-3", min_cpus="1"))
    assert values(answer(FIVE, SEVEN, array="1-3", min_cpus="1"))["spread"] == "1:100:0"


@pytest.mark.parametrize("told", [ALONE, WAITS])
def test_each_task_of_an_array_that_has_room_starts_on_two_nodes(told: dict[str, str]) -> None:
    changed = replan(Plan(POLICY, Settings()), world((FIVE, SEVEN, SIX, SIX), array(told)))

    assert [(type(one), getattr(one, "task", None)) for one in changed] == [(Release, 1), (Release, 2)]
    assert all(isinstance(one, Release) and one.for_now for one in changed)


def test_a_task_is_let_go_once_and_keeps_its_gpus_until_slurm_shows_it() -> None:
    plan, job = Plan(POLICY, Settings()), array(ALONE)
    assert len(replan(plan, world((FIVE, SEVEN), job))) == 1

    later = pinned(10)
    assert replan(plan, world((FIVE, SEVEN), job, later, at=NOW + 1)) == []


def test_the_last_task_is_left_so_while_there_is_room() -> None:
    told = {**ALONE, "state": "later", "nodes": "", "gpus": "", "open": "1"}
    last = waiting(9, "", 0, required=(), segment=told, state="ARRAY", array=9, tasks="3")
    plan = Plan(POLICY, Settings())

    assert replan(plan, world((FIVE, SEVEN), last)) == []
    [change] = replan(plan, world((FIVE, SEVEN), last, at=NOW + OPEN_FOR + 1))
    assert isinstance(change, Move)


def test_tasks_that_may_not_run_at_the_same_time_wait() -> None:
    job = array(ALONE, at_once=1)

    assert len(replan(Plan(POLICY, Settings()), world((FIVE, SEVEN, SIX, SIX), job))) == 1


def test_what_keeps_one_task_keeps_the_others() -> None:
    plan, rest = Plan(POLICY, Settings()), array(ALONE, "2-3")
    told = {**ALONE, "state": "later", "nodes": "", "gpus": "", "open": "1"}
    task = waiting(11, "", 0, required=(), segment=told, array=9, task=1)
    assert replan(plan, world((FIVE, SEVEN), task, rest)) == []

    [change] = replan(plan, world((FIVE, SEVEN), task, rest, at=NOW + OPEN_FOR + 1))

    assert isinstance(change, Move)
    assert change.job.id == 11
    assert replan(plan, world((FIVE, SEVEN), rest, at=NOW + OPEN_FOR + AGAIN_AFTER)) == []
    assert len(replan(plan, world((FIVE, SEVEN), rest, at=NOW + OPEN_FOR + AGAIN_AFTER + 2))) == 1


COUNTED = frozenset({"h100", "v100"})


def counted(*features: str, **fields: str) -> Decision:
    nodes, jobs = used(FIVE, SEVEN, FULL)
    nodes = [replace(one, features=frozenset({feature})) for one, feature in zip(nodes, features, strict=True)]
    look = reading(nodes, jobs)
    site = replace(fleet(look), counted=COUNTED)
    wanted = {"tres_per_job": "gres/gpu:4", "min_cpus": "1", **fields}
    return decide(submit(**wanted), open_book(site, look), POLICY, Settings(), NOW)


def test_where_all_nodes_have_one_counted_model_its_licences_are_known() -> None:
    assert counted("h100", "h100", "h100").fields["licenses"] == "berth_h100:4"
    assert "licenses" not in counted("rack1", "rack1", "rack1").fields


@pytest.mark.parametrize("fields", [{}, {"client": "srun"}])
def test_a_site_that_watches_writes_no_licences(fields: dict[str, str]) -> None:
    decision = counted("h100", "h100", "h100", **fields)

    assert ("licenses" in decision.fields, "licenses" in only_watch(decision).fields) == (True, False)


def test_where_models_differ_a_job_that_names_its_model_starts_on_several_nodes() -> None:
    assert not on_several(counted("h100", "h100", "v100"))
    named = counted("h100", "h100", "v100", features="h100")
    assert (on_several(named), named.fields["licenses"]) == (True, "berth_h100:4")
    assert not on_several(counted("h100", "h100", "rack1"))


@pytest.mark.parametrize(
    ("models", "licenses", "starts"),
    [
        (("h100", "h100"), "berth_h100:4", 1),
        (("h100", "h100"), "solver:1,berth_h100:4", 1),
        (("h100", "v100"), "berth_h100:4", 0),
        # Its user has put it into another partition.
        (("h100", "h100"), "berth_v100:4", 0),
    ],
)
def test_a_waiting_job_whose_licences_might_be_wrong_waits(models: tuple[str, ...], licenses: str, starts: int) -> None:
    look = world((FIVE, SEVEN), pinned(told=ALONE, licenses=licenses))
    nodes = tuple(replace(one, features=frozenset({name})) for one, name in zip(look.nodes, models, strict=True))
    look = replace(look, nodes=nodes)
    site = replace(fleet(look), counted=COUNTED)

    assert len(Plan(POLICY, Settings()).replan(open_book(site, look), look.jobs)) == starts
