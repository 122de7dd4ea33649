# SPDX-License-Identifier: Apache-2.0
"""The order in which jobs are tried: by submission, by service, by size, or by Slurm's priority/multifactor."""

from bisect import insort
from collections.abc import Iterator

from policy.simulate.slurm.queue.jobs import Task

AGE_WEIGHT, MAX_AGE = 1000.0, 7 * 86_400
"""Slurm's default weight of a job's age, and the age in seconds from which on it grows no more."""


class Queue:
    """The waiting jobs in the order in which they are tried."""

    def __init__(self, order: str) -> None:
        self._order = order
        self._tasks: list[tuple[tuple[float, float, int], Task]] = []
        self._shapes: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return (task for _, task in self._tasks)

    @property
    def shapes(self) -> dict[tuple[int, int], int]:
        """The number of waiting jobs by nodes and GPUs on each."""
        return self._shapes

    def add(self, task: Task, now: float) -> None:
        """Adds a job that starts to wait, at its present level."""
        task.key = (self._rank(task, now), task.job.submit, task.index)
        insort(self._tasks, (task.key, task))
        self._count(task)

    def remove(self, task: Task) -> None:
        """Removes a job that starts."""
        low, high = 0, len(self._tasks)
        while low < high:
            middle = (low + high) // 2
            if self._tasks[middle][0] < task.key:
                low = middle + 1
            else:
                high = middle
        del self._tasks[low]
        self._forget(task)

    def relax(self, task: Task) -> None:
        """Moves a job on to its next level."""
        task.step += 1
        self.reshape(task)

    def reshape(self, task: Task) -> None:
        """Notes that a job wants other nodes than before."""
        self._forget(task)
        self._count(task)

    def reorder(self, now: float) -> None:
        """Computes all priorities again."""
        for _, task in self._tasks:
            task.key = (self._rank(task, now), *task.key[1:])
            task.facts = None
        self._tasks = sorted((task.key, task) for _, task in self._tasks)

    def _count(self, task: Task) -> None:
        task.counted = task.shapes
        for shape in task.counted:
            self._shapes[shape] = self._shapes.get(shape, 0) + 1

    def _forget(self, task: Task) -> None:
        for shape in task.counted:
            self._shapes[shape] -= 1
            if not self._shapes[shape]:
                del self._shapes[shape]

    def _rank(self, task: Task, now: float) -> float:
        """Returns the sort key of a job; smaller comes first."""
        if self._order == "slurm":
            return -(AGE_WEIGHT * min((now - task.job.submit) / MAX_AGE, 1.0) + task.job.priority)
        service = {"fifo": 0.0, "las": task.served, "srtf": task.median, "srsf": task.median * task.job.gpus}
        return service[self._order] - task.job.priority
