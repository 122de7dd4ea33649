# SPDX-License-Identifier: Apache-2.0
"""A job's application class decides by which scores it is placed: at submission, and while it waits."""

from dataclasses import replace

import numpy as np
import pytest

from policy.daemon.known.profiles import load_fit
from policy.formats.slurm_facts import JobFacts
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Move
from policy.plan.ledger.tracker import open_book
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from policy.sharing.classes import Classes, shown_by
from policy.sharing.companions import Companions
from policy.sharing.profiles import Measured, ProfileKey, Store
from tests.unit.deciding import decide
from tests.unit.policy_world import NOW, fleet, node, reading, running, submit, waiting

SCORES = {
    # The chips of n1 are slow, and the memory of n2 is.
    "compute": np.array([[1.2] * 8, [1.0] * 8, [1.0] * 8]),
    "memory": np.array([[1.0] * 8, [1.2] * 8, [1.0] * 8]),
}
BEST = {"": "n2", "compute": "n2", "memory": "n1", "mixed": None}
"""Of a class without scores all GPUs count as equally fast."""


def opened(*jobs: JobFacts) -> tuple[Book, list[JobFacts]]:
    """Two nodes are free, the third is not."""
    look = reading([node("n1"), node("n2"), node("n3", used=0xFF)], [running(1, "n3", 0xFF, 3_000), *jobs])
    return open_book(replace(fleet(look), scores=SCORES), look), list(look.jobs)


@pytest.mark.parametrize("app_class", BEST)
def test_a_submitted_job_goes_where_its_class_is_fast(app_class: str) -> None:
    there, _ = opened()
    flag = {"flag.app_class": app_class} if app_class else {}
    answer = decide(submit(tres_per_job="gres/gpu:8", **flag), there, BerthPolicy(), Settings(), NOW)

    assert answer.fields["nodes"] == (BEST[app_class] or "n1")
    assert ("f.app-class" in answer.fields["segment"]) == bool(app_class)


@pytest.mark.parametrize("app_class", BEST)
def test_a_waiting_job_moves_where_its_class_is_fast(app_class: str) -> None:
    flag = {"f.app-class": app_class} if app_class else {}
    there, jobs = opened(waiting(5, "n3", 0xFF, segment=flag))
    [move] = Plan(BerthPolicy(), Settings()).replan(there, jobs)

    assert isinstance(move, Move)
    assert move.berth.names == ((BEST[app_class] or "n1"),)
    if BEST[app_class]:
        assert move.berth.cost == pytest.approx(1.0)


# A copy loop: warps on nearly all SMs, and little for the pipes to do.
WAITS_FOR_MEMORY = Measured(at=NOW, runs=4.0, busy=0.99, sms=0.95, bandwidth=0.9, pipes=0.07, dram=0.8)


def history(measured: Measured) -> Classes:
    """Ann's job `train` was measured."""
    store = Store({ProfileKey("ann", "lab", "train"): measured})
    return Classes(Companions(store, load_fit(), {1_000: "ann", 1_001: "bob"}.__getitem__))


@pytest.mark.parametrize(
    ("user", "name", "flag", "best"),
    [
        (1_000, "train", {}, "n1"),
        (1_000, "train", {"f.app-class": "compute"}, "n2"),  # the user knows better
        (1_000, "other", {}, "n2"),
        (1_001, "train", {}, "n2"),  # another user's job may be anything
    ],
)
def test_without_a_flag_a_waiting_job_is_placed_as_its_history_shows(
    user: int, name: str, flag: dict[str, str], best: str
) -> None:
    job = waiting(5, "n3", 0xFF, user=user, account="lab", segment=flag)
    there, jobs = opened(replace(job, name=name))
    [move] = Plan(BerthPolicy(), Settings(), classes=history(WAITS_FOR_MEMORY)).replan(there, jobs)

    assert isinstance(move, Move)
    assert move.berth.names == (best,)


@pytest.mark.parametrize(
    ("measured", "app_class"),
    [
        (WAITS_FOR_MEMORY, "memory"),
        (replace(WAITS_FOR_MEMORY, pipes=0.7, dram=0.3), "compute"),
        (replace(WAITS_FOR_MEMORY, pipes=0.5, dram=0.5), "mixed"),
        (replace(WAITS_FOR_MEMORY, runs=0.5), ""),
        (replace(WAITS_FOR_MEMORY, pipes=None), ""),
        (None, ""),
    ],
)
def test_a_profile_shows_a_class_where_enough_was_measured(measured: Measured | None, app_class: str) -> None:
    assert shown_by(measured) == app_class
