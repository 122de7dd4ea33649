# SPDX-License-Identifier: Apache-2.0
"""Tasks: programs of a node, of which one runs at a time, and that stop wherever the world wants them to.

Each is a thread. It runs until it sleeps, waits, or has done as many operations as it was given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.world.clock import VirtualTime

if TYPE_CHECKING:
    from tests.world.nodes.machine import ModelProcess

FOR_EVER = float("inf")
ALL = 1 << 60
_MOST_TURNS = 60_000
_LEAST = 1e-6
"""Seconds that pass in any wait: the clock of a machine goes on too."""


class EndedError(BaseException):
    """The process that runs this was killed: nothing that it still does has an effect."""


class SpinsError(AssertionError):
    """A program goes round without end."""


class NodeTask:
    """A thread of a process."""

    def __init__(self, name: str, process: ModelProcess, work: Callable[[], object]) -> None:
        self.name, self.process, self._work = name, process, work
        self.until = 0.0
        """When it goes on by itself."""
        self.ready: Callable[[], bool] | None = None
        """Tells whether what it waits for has come."""
        self.budget = 0
        self.done = False
        self.result: object = None
        self.failure: BaseException | None = None
        self.turn = threading.Lock()
        self.turn.acquire()
        self.thread = threading.Thread(target=self._run, name=f"world-{name}", daemon=True)
        self.on_end: Callable[[NodeTask], None] | None = None
        self.back: threading.Lock
        self.thread_started = False

    def _run(self) -> None:
        self.turn.acquire()
        try:
            if not self.process.dead:
                self.result = self._work()
        except EndedError:
            pass
        except BaseException as problem:  # noqa: BLE001 - the world tells of it
            self.failure = problem
        self.done = True
        self.back.release()


class NodeTasks:
    """All of them, and the one that runs now."""

    def __init__(self, clock: VirtualTime) -> None:
        self.clock = clock
        self.living: list[NodeTask] = []
        self.current: NodeTask | None = None
        self.operations = 0
        self._back = threading.Lock()
        self._back.acquire()

    def start(self, name: str, process: ModelProcess, work: Callable[[], object]) -> NodeTask:
        """A new task; it does nothing before it is run."""
        task = NodeTask(name, process, work)
        task.back = self._back
        task.until = self.clock.passed
        self.living.append(task)
        process.tasks.append(task)
        process.main = process.main or task
        return task

    def run(self, task: NodeTask, budget: int = ALL) -> None:
        """Let it do so many operations, or all until it sleeps."""
        before, self.current = self.current, task
        task.budget = budget
        if not task.thread_started:
            task.thread_started = True
            task.thread.start()
        task.turn.release()
        self._back.acquire()
        self.current = before
        if task.done:
            self.living.remove(task)
            task.process.tasks.remove(task)
            if task is task.process.main:
                task.process.end()
            if task.on_end is not None:
                task.on_end(task)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What the model does meanwhile is no operation of the task that runs."""
        before, self.current = self.current, None
        try:
            yield
        finally:
            self.current = before

    def operation(self) -> None:
        """One operation of the task that runs: the world may stop it before that."""
        task = self.current
        if task is None:
            return
        if task.process.dead:
            raise EndedError
        self.operations += 1
        task.budget -= 1
        if task.budget < 0:
            task.until, task.ready = self.clock.passed, None
            self._pause(task)

    def _pause(self, task: NodeTask) -> None:
        self._back.release()
        task.turn.acquire()
        if task.process.dead:
            raise EndedError

    def block(self, seconds: float | None, ready: Callable[[], bool] | None = None) -> bool:
        """Sleep, or until something is there; True if it is."""
        task = self.current
        assert task is not None, "only a task sleeps"
        if task.process.dead:
            raise EndedError
        if ready is not None and ready():
            return True
        until = FOR_EVER if seconds is None else self.clock.passed + max(_LEAST, seconds)
        while True:
            task.until, task.ready = until, ready
            self._pause(task)
            if ready is not None and ready():
                break
            if self.clock.passed >= until:
                break
        task.ready = None
        return ready is not None and ready()

    def wait(self, seconds: float, least: Callable[[], float], ready: Callable[[], bool]) -> bool:
        """Wait for something, but no longer than so many seconds, or the least ones; True if it is there.

        The least may become less meanwhile: whoever waited through a quiet time goes on when it is over.
        """
        began = self.clock.passed

        def over() -> bool:
            return ready() or self.clock.passed >= began + max(_LEAST, seconds, least())

        self.block(max(seconds, least()), over)
        return ready()

    def due(self, task: NodeTask) -> float:
        """When it can go on."""
        if task.process.stalled:
            return FOR_EVER
        if task.ready is not None and task.ready():
            return self.clock.passed
        return max(task.until, self.clock.passed)

    def can_run(self, task: NodeTask) -> bool:
        return self.due(task) <= self.clock.passed

    def advance(self, seconds: float, after_each: Callable[[], None]) -> None:
        """Let time pass: whoever is due runs, in the order of the times."""
        end, turns = self.clock.passed + seconds, 0
        while self.living:
            due, task = min(((self.due(one), number) for number, one in enumerate(self.living)))
            if due > end:
                break
            self.clock.passed = max(self.clock.passed, due)
            living = len(self.living)
            self.run(self.living[task])
            if len(self.living) != living:
                after_each()
            turns += 1
            if turns > _MOST_TURNS:
                raise SpinsError(f"the programs of a node go round: {[one.name for one in self.living]}")
        self.clock.passed = max(self.clock.passed, end)
