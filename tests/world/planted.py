# SPDX-License-Identifier: Apache-2.0
"""Known faults, planted one by one: does the world find each within a minute? `python -m tests.world.planted`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from policy.daemon.answer import answerer, memory
from policy.daemon.hear import notices
from policy.daemon.passes import listeners, looks
from policy.daemon.write import degraded, evictions, pins
from policy.formats import hostlist, segment
from policy.formats.job_plan import JobPlan
from policy.formats.plan_fields import OTHERS
from policy.formats.slurm_syntax import excluded_nodes
from policy.plan.answer import decide
from policy.plan.ledger import isolation, tracker
from policy.plan.opinions import opinion
from policy.plan.queue import closers
from policy.plan.queue import walk as queue_walk
from policy.slurm import changes, fields
from policy.slurm.by_command import command, text
from tests.world.checks import ViolationError
from tests.world.clock import Replaced
from tests.world.kinds import CLUSTER, WorldKind
from tests.world.world import say

SECONDS = 60.0


@dataclass(frozen=True)
class PlantedFault:
    """A fault of the product, and how it is planted."""

    name: str
    plant: Callable[[Replaced], None]
    events: int = 300


def _an_index_error_about_a_gang(put: Replaced) -> None:
    settle = queue_walk.Walk.settle

    def broken(walk: Any, entry: Any) -> None:
        if entry.demand.n > 1:
            raise IndexError("index 7 is out of bounds for axis 0 with size 7")
        settle(walk, entry)

    put.set(queue_walk.Walk, "settle", broken)


def _one_job_ends_the_pass(put: Replaced) -> None:
    _an_index_error_about_a_gang(put)

    def bare(_: Any, __: Any, ___: float, step: Callable[..., object], *arguments: object) -> object:
        return step(*arguments)

    put.set(isolation.Isolation, "job", bare)


def _expediting_is_no_waiting_state(put: Replaced) -> None:
    put.set(fields, "EXPEDITING", "EXPEDITED")
    put.set(text, "_job", lru_cache(maxsize=1_000)(text._job.__wrapped__))


def _a_dead_node_looks_alive(put: Replaced) -> None:
    put.set(fields, "takes_jobs", lambda _: True)


def _a_node_that_powers_down_takes_jobs(put: Replaced) -> None:
    put.set(fields, "_CLOSED", fields._CLOSED - {"POWERING_DOWN"})
    put.set(fields, "takes_jobs", lru_cache(maxsize=1_000)(fields.takes_jobs.__wrapped__))


def _a_dead_node_looks_alive_and_nobody_wonders(put: Replaced) -> None:
    _a_dead_node_looks_alive(put)
    put.set(opinion, "may_be_its_place", lambda _: False)


def _no_limits_by_model(put: Replaced) -> None:
    put.set(pins.Pins, "_licenses", lambda *_: None)


def _no_limits_by_model_at_submission(put: Replaced) -> None:
    put.set(decide, "counted", SimpleNamespace(text=lambda _: ""))


def _an_eviction_forgets_the_request(put: Replaced) -> None:
    evicted = evictions.evicted

    def broken(*arguments: Any) -> dict[str, str]:
        return {key: value for key, value in evicted(*arguments).texts.items() if key not in {"n", "k", "asked"}}

    put.set(evictions, "evicted", broken)


def _who_cannot_be_requeued_stays(put: Replaced) -> None:
    put.set(evictions, "ENDED_AFTER", float("inf"))


def _a_requeued_job_loses_its_extra(put: Replaced) -> None:
    pin = changes.pin

    def broken(job: Any, place: Any) -> dict[str, str]:
        changed = pin(job, place)
        if "evicted" in job.admin_comment or "again" in job.admin_comment or "pins=2" in changed["admin_comment"]:
            changed["extra"] = segment.remove(job.extra)
        return changed

    put.set(changes, "pin", broken)


def _a_notice_that_comes_twice_frees_twice(put: Replaced) -> None:
    end = tracker.Tracker.end
    freed: dict[tuple[int, str], int] = {}

    def broken(picture: Any, job_id: int, name: str) -> Any:
        place = picture.fleet.index.get(name)
        before = 0 if place is None else int(picture._gpus[place, 0])
        found = end(picture, job_id, name)
        if place is not None:
            if (job_id, name) in freed:
                picture._gpus[place, 0] |= freed[job_id, name]
            freed[job_id, name] = int(picture._gpus[place, 0]) & ~before
        return found

    put.set(tracker.Tracker, "end", broken)


def _a_tasks_pin_is_written_into_its_siblings(put: Replaced) -> None:
    pin = command.CommandGateway.pin

    def broken(gateway: Any, job_id: int | str, place: Any, *, hurry: bool = False) -> None:
        pin(gateway, job_id, place, hurry=hurry)
        if isinstance(job_id, str) and "[" not in job_id:
            array = int(job_id.partition("_")[0])
            gateway.annotate(array, place.values)

    put.set(command.CommandGateway, "pin", broken)


def _a_pin_is_written_in_two_updates(put: Replaced) -> None:
    update = command.CommandGateway._update

    def broken(gateway: Any, job_id: Any, job: Any, values: dict[str, str], *rest: Any, **more: Any) -> None:
        first = {key: value for key, value in values.items() if key in {"admin_comment", "extra"}}
        update(gateway, job_id, job, first, *rest, **more)
        if rest_of_it := {key: value for key, value in values.items() if key not in first}:
            update(gateway, job_id, job, rest_of_it, *rest, **more)

    put.set(command.CommandGateway, "_update", broken)


def _some_epilogs_wait_for_nobody(put: Replaced) -> None:
    answer = notices.Notice.answer

    def broken(notice: Any, *, done: bool = True) -> None:
        if not notice.degraded:
            answer(notice, done=done)

    put.set(notices.Notice, "answer", broken)


def _given_places_are_forgotten_with_each_snapshot(put: Replaced) -> None:
    take = answerer.Answerer.take

    def broken(one: Any, snapshot: Any, now: float) -> bool:
        one._memory = memory.RequestMemory()
        return take(one, snapshot, now)

    put.set(answerer.Answerer, "take", broken)


def _whoever_ended_well_is_run_again(put: Replaced) -> None:
    put.set(degraded, "_FAILED", degraded._FAILED | {"COMPLETED", "CANCELLED", "TIMEOUT"})


def _release_leaves_the_extra(put: Replaced) -> None:
    release = changes.release

    def broken(*arguments: Any, **more: Any) -> dict[str, str] | None:
        changed = release(*arguments, **more)
        return changed and {key: value for key, value in changed.items() if key != "extra"}

    put.set(changes, "release", broken)


def _release_misses_who_ends_to_wait_again(put: Replaced) -> None:
    may_hold_pin = changes.may_hold_pin
    put.set(changes, "may_hold_pin", lambda job: job.state != "COMPLETING" and may_hold_pin(job))


def _an_answer_that_is_cut_off_ends_the_planner(put: Replaced) -> None:
    def broken(one: Any, *, ended: bool) -> Any:
        one.reading = one._gateway.read(ended=ended)
        one.took.append(0.0)
        return one.reading

    put.set(looks.SlurmLooks, "look", broken)


def _a_share_is_told_to_its_node_in_full(put: Replaced) -> None:
    put.set(changes, "_share", lambda place: {"share": "100", "way": "mps"} if place.share else {})


def _a_guest_is_parked_for_ever(put: Replaced) -> None:
    put.set(pins, "PARKED_FOR", 10 * 365 * 86_400)


def _old_jobs_are_remembered_for_ever(put: Replaced) -> None:
    send = degraded.Degraded.send_elsewhere

    def broken(one: Any, at: float) -> int:
        met = dict(one._met)
        found = send(one, at)
        one._kept = [*getattr(one, "_kept", []), *met]
        return found

    put.set(degraded.Degraded, "send_elsewhere", broken)


def _owners_are_evicted_like_guests(put: Replaced) -> None:
    put.set(listeners.Listeners, "_send_away", lambda one, word: bool(_evict_its_host(one, word)))


def _evict_its_host(one: Any, word: Any) -> bool:
    for job in one._looks.jobs().values():
        if job.state == "RUNNING" and word.node in job.nodes and not job.guest and word.sends_away:
            one._evictions.begin(replace(job, guest=True), "its guard says so", one._looks.reading.at)
            return True
    return False


def _no_partition_is_opened(put: Replaced) -> None:
    put.set(closers, "in_the_way", lambda *_: [])


def _a_list_lacks_a_node(put: Replaced) -> None:
    pin_again = pins.Pins.pin_again

    def broken(one: Any, job: Any, alone: str = "") -> None:
        pin_again(one, job, hostlist.fold(hostlist.expand(alone)[1:]))

    put.set(pins.Pins, "pin_again", broken)


def _shares_close_too(put: Replaced) -> None:
    chosen = closers.closers

    def broken(queue: Any, fleet: Any) -> Any:
        for entry in queue:
            entry.plain = bool(entry.nodes and entry.job.may_start)
        return chosen(queue, fleet)

    put.set(closers, "closers", broken)


def _nobody_looks_whose_list_it_is(put: Replaced) -> None:
    closes = excluded_nodes.closes

    def broken(required: str, excluded: str, plan: JobPlan | None) -> str | None:
        return plan[OTHERS] if plan is not None and closes(required, excluded, plan) is not None else None

    put.set(excluded_nodes, "closes", broken)
    put.set(text, "_job", lru_cache(maxsize=1_000)(text._job.__wrapped__))


PLANTED = (
    PlantedFault("an IndexError about one gang", _an_index_error_about_a_gang),
    PlantedFault("an IndexError about one gang ends the pass", _one_job_ends_the_pass),
    PlantedFault("EXPEDITING is not taken for waiting", _expediting_is_no_waiting_state),
    PlantedFault("a dead node looks alive", _a_dead_node_looks_alive),
    PlantedFault("a node that powers down takes jobs", _a_node_that_powers_down_takes_jobs),
    PlantedFault("a required dead node is kept", _a_dead_node_looks_alive_and_nobody_wonders),
    PlantedFault("a new place has no limits by model", _no_limits_by_model),
    PlantedFault("a submitted job has no limits by model", _no_limits_by_model_at_submission),
    PlantedFault("an eviction forgets what the guest asked for", _an_eviction_forgets_the_request),
    PlantedFault("a job that moves or comes back loses its Extra", _a_requeued_job_loses_its_extra),
    PlantedFault("a notice that comes twice frees twice", _a_notice_that_comes_twice_frees_twice),
    PlantedFault("a task's pin is written into its siblings", _a_tasks_pin_is_written_into_its_siblings),
    PlantedFault("a pin is written in two updates", _a_pin_is_written_in_two_updates),
    PlantedFault("an Epilog of a job without its share gets no answer", _some_epilogs_wait_for_nobody),
    PlantedFault("given places are forgotten with each snapshot", _given_places_are_forgotten_with_each_snapshot),
    PlantedFault("a job that ended is run again", _whoever_ended_well_is_run_again),
    PlantedFault("release leaves the Extra", _release_leaves_the_extra),
    PlantedFault("release misses who ends to wait again", _release_misses_who_ends_to_wait_again),
    PlantedFault("an answer that is cut off ends the planner", _an_answer_that_is_cut_off_ends_the_planner),
    PlantedFault("a node is told of a larger share", _a_share_is_told_to_its_node_in_full),
    PlantedFault("a guest is parked for ever", _a_guest_is_parked_for_ever),
    PlantedFault("old jobs are remembered for ever", _old_jobs_are_remembered_for_ever),
    PlantedFault("a guest that Slurm does not requeue stays", _who_cannot_be_requeued_stays),
    PlantedFault("an owner is sent away in place of its guest", _owners_are_evicted_like_guests),
    PlantedFault("a closed partition is not opened", _no_partition_is_opened),
    PlantedFault("a list without required nodes lacks a node", _a_list_lacks_a_node),
    PlantedFault("a job that is not plain closes its partition", _shares_close_too),
    PlantedFault("a changed list of excluded nodes is not looked at", _nobody_looks_whose_list_it_is),
)


def found(fault: PlantedFault, seconds: float = SECONDS, kind: WorldKind = CLUSTER) -> tuple[int, float, str]:
    """Returns the seeds, the seconds of a processor, and the words that told of a fault; no words: it was not found."""
    began, seed, put = time.process_time(), 0, Replaced()
    fault.plant(put)
    try:
        while time.process_time() - began < seconds:
            with kind.made() as world:
                try:
                    world.play(kind.drawn(seed, fault.events))
                except ViolationError as problem:
                    return seed + 1, time.process_time() - began, str(problem)
            seed += 1
    finally:
        put.undo()
    return seed, seconds, ""


def main(faults: Iterable[PlantedFault] = PLANTED, kind: WorldKind = CLUSTER) -> int:
    """Plants all faults, or those whose names have one of the words; exit status 1 where one was not found."""
    missed, words_of_names = 0, sys.argv[1:]
    for fault in faults:
        if words_of_names and not any(word in fault.name for word in words_of_names):
            continue
        seeds, took, words = found(fault, kind=kind)
        missed += not words
        say(
            f"{fault.name}: {f'{took:.1f} s, {seeds} seeds: {words[:110]}' if words else f'NOT FOUND in {seeds} seeds'}"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
