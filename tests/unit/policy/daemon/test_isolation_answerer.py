# SPDX-License-Identifier: Apache-2.0
"""Throws from every function that an answer, a picture or a reply made ahead reaches: others get their answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import pytest

from policy.daemon.answer.answerer import Answerer
from policy.formats import wire
from tests.examples import sample_or_all, sampled
from tests.unit.policy.plan.test_isolation import settrace_for, traced
from tests.unit.policy_world import NOW, submit

from .test_answerer import answerer, snapshot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WIRING = {"log.py"}
THE_CATCHERS = {"answer", "settle", "expects", "look_ahead", "take", "_fault", "_nothing_ahead"}
"""Methods of the answerer that catch what the others throw."""
KINDS: tuple[dict[str, str], ...] = (
    {"tres_per_job": "gres/gpu:2"},
    {"tres_per_job": "gres/gpu:2", "min_cpus": "1", "flag.locality": "leaf"},
    {"tres_per_node": "gres/gpu:8", "min_nodes": "2", "max_nodes": "2", "num_tasks": "2"},
    {"tres_per_job": "gres/gpu:1", "gpus": "1", "flag.gpu-share": "30"},
    {"tres_per_job": "gres/gpu:1", "flag.gpu-tier": "opportunistic"},
    {"tres_per_job": "gres/gpu:4", "features": "rack9"},
    {"tres_per_job": "gres/gpu:9"},
    {"tres_per_job": "gres/gpu:2", "array": "1-3", "test": "1"},
)


def ask(made: Answerer, number: int, now: float, **fields: str) -> str:
    """Sends one request; the verb of its reply, empty without one."""
    reply = made.answer(wire.encode("submit", submit(nonce=f"{number:016x}", **fields)), now)
    made.settle()
    return wire.decode(reply).verb if reply is not None else ""


def day(made: Answerer) -> list[str]:
    """Requests of all kinds, a new picture, the same requests again, one made ahead, and the status."""
    verbs = [ask(made, number, NOW, **kind) for number, kind in enumerate(KINDS)]
    made.take(snapshot(3, at=NOW + 1), NOW + 1)
    while made.catching_up:
        made.catch_up()
    verbs += [ask(made, 100 + number, NOW + 1, **kind) for number, kind in enumerate(KINDS)]
    verbs += [ask(made, 200 + number, NOW + 1, **KINDS[0]) for number in range(4)]
    assert made.expects(NOW + 1) in {True, False}
    made.look_ahead(NOW + 1)
    made.answer(wire.encode("status", {"nonce": "0" * 16}), NOW + 1)
    return verbs


def under_the_answerer(frame: FrameType | None) -> bool:
    """Tells whether a method that catches is among the callers."""
    while frame is not None and frame.f_code.co_filename != __file__:
        if frame.f_code.co_name in THE_CATCHERS and Path(frame.f_code.co_filename).name == "answerer.py":
            return True
        frame = frame.f_back
    return False


@contextmanager
def throwing(code: CodeType) -> Iterator[list[str]]:
    thrown: list[str] = []

    def throw(frame: FrameType) -> None:
        if not thrown and under_the_answerer(frame):
            thrown.append(code.co_qualname)
            raise RuntimeError("thrown")

    with settrace_for(code, throw):
        yield thrown


def functions() -> dict[CodeType, str]:
    found: dict[CodeType, str] = {}

    def note(frame: FrameType) -> None:
        path = Path(frame.f_code.co_filename)
        catches = path.name == "answerer.py" and frame.f_code.co_name in THE_CATCHERS
        if under_the_answerer(frame) and not (catches or path.name in WIRING):
            found.setdefault(frame.f_code, f"{path.name}:{frame.f_code.co_qualname}")

    made = answerer(3)
    with traced(note):
        day(made)
    return found


@sample_or_all(60)
def test_a_fault_in_any_function_costs_one_request_its_place_at_most(
    capsys: pytest.CaptureFixture[str], count: int | None
) -> None:
    every = functions()
    usual = day(answerer(3))
    assert len(every) > 150
    assert {"place", "later", "pass"} <= set(usual)
    capsys.readouterr()

    for code, name in sampled(every.items(), count):
        made = answerer(3)
        with throwing(code) as thrown:
            verbs = day(made)
        told = capsys.readouterr().err.count("a fault of berthd's own")
        assert told == len(thrown), name
        # A place that is not given leaves others better ones; that of a fault is Slurm's to find.
        hurt = [now for was, now in zip(usual, verbs, strict=True) if was != now and now in {"", "pass"}]
        assert len(hurt) <= len(thrown), f"{name}: {verbs}, not {usual}"
