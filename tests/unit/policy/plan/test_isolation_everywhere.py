# SPDX-License-Identifier: Apache-2.0
"""Throws from every function of the plan that any test of the plan reaches: all other jobs have their steps."""

import copy
import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator, ValuesView
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest

from policy.cluster.reserved import know_users_by
from policy.daemon.known.users import names_of
from policy.plan.ledger.changes import Change, Release
from policy.plan.ledger.isolation import Isolation
from policy.plan.queue.plan import Plan
from tests.examples import sample_or_all, sampled
from tests.unit.policy import plan as tests_of_the_plan

from .test_isolation import concerned, settrace_for, traced

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HERE = {__name__, f"{tests_of_the_plan.__name__}.test_isolation"}
LEAST = 450
"""Functions that were thrown from when this was written, rounded down: fewer mean that worlds are missing."""

Step = tuple[int, str]


@dataclass(frozen=True)
class Call:
    """One pass of a test, as it stood before it was made."""

    test: str
    name: str
    plan: Plan
    arguments: tuple[Any, ...]
    more: dict[str, Any]

    def again(self) -> tuple[Plan, Callable[[], list[Change] | None]]:
        """Returns a fresh copy of its plan, and the pass to make."""
        plan, arguments, more = copy.deepcopy((self.plan, self.arguments, self.more))
        return plan, lambda: ORIGINAL[self.name](plan, *arguments, **more)


@dataclass
class Log:
    """The steps about jobs that a pass has run, and those about many jobs."""

    jobs: set[Step] = field(default_factory=set)
    groups: list[str] = field(default_factory=list)


ORIGINAL: dict[str, Callable[..., Any]] = {"replan": Plan.replan, "freed": Plan.freed}
JOB, GROUP = Isolation.job, Isolation.group


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(tests_of_the_plan.__path__, f"{tests_of_the_plan.__name__}."):
        if found.name not in HERE:
            yield importlib.import_module(found.name)


def plain_tests() -> Iterator[tuple[str, Callable[[], None]]]:
    """Tests that need neither fixtures nor values."""
    for module in modules():
        for name, test in inspect.getmembers(module, inspect.isfunction):
            own = name.startswith("test_") and test.__module__ == module.__name__
            if own and not hasattr(test, "hypothesis") and not inspect.signature(test).parameters:
                yield f"{module.__name__}.{name}", test


def kept_results() -> "list[functools._lru_cache_wrapper[Any]]":
    """Returns the caches of all functions and methods of `policy`."""
    modules = [module for name, module in sys.modules.items() if name.startswith("policy.")]
    found = [one for module in modules for one in vars(module).values()]
    found += [one for group in found if inspect.isclass(group) for one in vars(group).values()]
    return [one for one in found if isinstance(one, functools._lru_cache_wrapper)]


def reached(make_pass: Callable[[], object]) -> dict[CodeType, int | None]:
    """Functions that a pass calls inside of a step, each with the job of its first call."""
    found: dict[CodeType, int | None] = {}

    def note(frame: FrameType) -> None:
        inside, job_id = concerned(frame.f_back)
        if inside:
            found.setdefault(frame.f_code, job_id)

    with traced(note):
        make_pass()
    return found


def calls_that_reach_more(monkeypatch: pytest.MonkeyPatch) -> dict[CodeType, tuple[Call, int | None]]:
    """Runs the tests of the plan; for each function, a pass that calls it."""
    know_users_by(names_of)
    found: dict[CodeType, tuple[Call, int | None]] = {}

    def recording(name: str, test: str) -> Callable[..., Any]:
        def wrapped(plan: Plan, *arguments: Any, **more: Any) -> Any:
            arguments = tuple(list(one) if isinstance(one, ValuesView) else one for one in arguments)
            call = Call(test, name, *copy.deepcopy((plan, arguments, more)))
            result = None

            def make_pass() -> None:
                nonlocal result
                result = ORIGINAL[name](plan, *arguments, **more)

            for code, job_id in reached(make_pass).items():
                found.setdefault(code, (call, job_id))
            return result

        return wrapped

    for title, test in plain_tests():
        with monkeypatch.context() as patch:
            for name in ORIGINAL:
                patch.setattr(Plan, name, recording(name, title))
            test()
    return found


@contextmanager
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    log = Log()

    def name_of(step: Callable[..., object]) -> str:
        return getattr(step, "__qualname__", type(step).__qualname__)

    def job(self: Isolation, one: Any, at: float, step: Callable[..., Any], *arguments: object) -> Any:
        log.jobs.add((one.id, name_of(step)))
        return JOB(self, one, at, step, *arguments)

    def group(self: Isolation, at: float, step: Callable[..., Any], *arguments: object) -> Any:
        log.groups.append(name_of(step))
        return GROUP(self, at, step, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Isolation, "job", job)
        patch.setattr(Isolation, "group", group)
        yield log


@sample_or_all(120)
def test_a_fault_in_any_function_of_the_plan_leaves_all_other_jobs_their_steps(
    monkeypatch: pytest.MonkeyPatch, count: int | None
) -> None:
    every = calls_that_reach_more(monkeypatch)
    assert len(every) >= LEAST
    caches = kept_results()

    for code, (call, job_id) in sampled(every.items(), count):
        where = f"{Path(code.co_filename).name}:{code.co_qualname} in {call.test}"
        told: list[str] = []

        def throw(frame: FrameType, job_id: int | None = job_id) -> None:
            if concerned(frame.f_back) == (True, job_id):
                raise RuntimeError("thrown")

        _, make_pass = call.again()
        with logged(monkeypatch) as without:
            make_pass()

        plan, make_pass = call.again()
        plan.isolation._tell = told.append
        before = plan.isolation.count
        for one in caches:
            one.cache_clear()  # a result that is kept calls nothing
        with logged(monkeypatch) as log, settrace_for(code, throw):
            changes = make_pass()

        assert plan.isolation.count > before, where
        assert told, where
        if job_id is None:
            # What begins the pass of the guests may cost all guests their seats, and no owner its place.
            assert {step for step in without.jobs if step[1] == "Walk.settle"} <= log.jobs, where
            continue
        assert len(told) == 1, where
        assert f"JobId={job_id} is left to Slurm" in told[0], where
        assert {type(change) for change in changes or () if change.job.id == job_id} <= {Release}, where
        assert {step for step in without.jobs if step[0] != job_id} == {
            step for step in log.jobs if step[0] != job_id
        }, where
        # An opinion that only this job called for is not asked.
        steps = iter(without.groups)
        assert all(step in steps for step in log.groups), where
