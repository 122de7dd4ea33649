# SPDX-License-Identifier: Apache-2.0
"""Threads, events and queues of the guard, on the virtual clock."""

from __future__ import annotations

import queue
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.world.nodes.kernel import NodeKernel
from tests.world.nodes.tasks import NodeTask


class NodeEvent:
    """Stands in for threading.Event."""

    def __init__(self, kernel: NodeKernel, least: Callable[[], float]) -> None:
        self._kernel, self._is_set, self._least = kernel, False, least

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float | None = None) -> bool:
        if seconds is None:
            self._kernel.tasks.block(None, self.is_set)
        else:
            self._kernel.tasks.wait(seconds, self._least, self.is_set)
        return self._is_set


class NodeThread:
    """Stands in for threading.Thread."""

    def __init__(
        self, kernel: NodeKernel, *, target: Callable[..., object], name: str, args: tuple[Any, ...] = (), **_: Any
    ) -> None:
        self._kernel, self._name = kernel, name
        self._work = lambda: target(*args)
        self._task: NodeTask | None = None

    def start(self) -> None:
        process = self._kernel.process
        self._task = self._kernel.tasks.start(f"{process.program} {self._name}", process, self._work)
        self._task.on_end = process.tasks[0].on_end

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self, seconds: float | None = None) -> None:
        self._kernel.tasks.block(seconds, lambda: not self.is_alive())


def node_threading(kernel: NodeKernel, least: Callable[[], float]) -> SimpleNamespace:
    """Stands in for `threading`; a wait lasts `least` seconds, but what is waited for ends it at once."""
    return SimpleNamespace(Event=lambda: NodeEvent(kernel, least), Thread=lambda **words: NodeThread(kernel, **words))


def node_queue(kernel: NodeKernel) -> SimpleNamespace:
    """Stands in for `queue`."""

    class Waiting(queue.PriorityQueue):  # type: ignore[type-arg]
        """A queue whose reader waits on the virtual clock."""

        def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ARG002 - as queue has it
            kernel.tasks.block(timeout, lambda: not self.empty())
            return super().get(block=False)

    return SimpleNamespace(PriorityQueue=Waiting, Empty=queue.Empty, Full=queue.Full)
