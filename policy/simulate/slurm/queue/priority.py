"""The order in which jobs are tried: by submission, by service, by size, or by Slurm's priority/multifactor."""

from bisect import insort
from collections.abc import Iterator
from math import exp, log

from policy.simulate.slurm.queue.jobs import Task
from policy.simulate.slurm.settings import Multifactor, SlurmSettings


class Usage:
    """GPU-seconds of each account, halved after each half-life, as Slurm's fair-share counts."""

    def __init__(self, half_life_s: float) -> None:
        self._forget = log(2) / half_life_s
        self._running: dict[str, int] = {}
        self._used: dict[str, float] = {}
        self._at: dict[str, float] = {}

    def change(self, account: str, gpus: int, now: float) -> None:
        """Notes that an account holds more or fewer GPUs from now on."""
        self._used[account] = self.of(account, now)
        self._at[account] = now
        self._running[account] = self._running.get(account, 0) + gpus

    def of(self, account: str, now: float) -> float:
        """Returns the usage of an account."""
        kept = exp(-self._forget * (now - self._at.get(account, now)))
        # The usage of GPUs held since then has decayed in that time too.
        gained = self._running.get(account, 0) * (1 - kept) / self._forget
        return self._used.get(account, 0.0) * kept + gained

    def all(self, now: float) -> dict[str, float]:
        """Returns the usage of each account."""
        return {account: self.of(account, now) for account in self._used}


class Queue:
    """The waiting jobs in the order in which they are tried."""

    def __init__(self, settings: SlurmSettings, gpus: int) -> None:
        self._settings = settings
        self._gpus = gpus
        self._tasks: list[tuple[tuple[float, float, int], Task]] = []
        self._shapes: dict[tuple[int, int], int] = {}
        self.usage = Usage(settings.multifactor.half_life_s)
        self._fair: dict[str, float] = {}

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
        self._fair = self._fair_shares(now)
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
        order = self._settings.order
        if order == "slurm":
            return -self._priority(task, now, self._settings.multifactor)
        service = {"fifo": 0.0, "las": task.served, "srtf": task.median, "srsf": task.median * task.job.gpus}
        return service[order] - task.job.priority

    def _priority(self, task: Task, now: float, weights: Multifactor) -> float:
        age = min((now - task.job.submit) / weights.max_age_s, 1.0)
        # The fair-share factor is 0.5 for an account that used exactly its share, and 1 for one without usage.
        fair = self._fair.get(task.sharing, 1.0)
        return (
            weights.age * age
            + weights.size * task.job.gpus / self._gpus
            + weights.fair_share * fair
            + weights.qos * task.job.priority
        )

    def _fair_shares(self, now: float) -> dict[str, float]:
        """Returns Slurm's classic fair-share factor 2^(-usage/shares), both as parts of the whole."""
        weights = self._settings.multifactor
        if not weights.fair_share:
            return {}
        used = self.usage.all(now)
        shares = {account: weights.shares.get(account, 1.0) for account in {*used, *weights.shares}}
        all_used, all_shares = sum(used.values()) or 1.0, sum(shares.values()) or 1.0
        return {
            account: 2.0 ** -((used.get(account, 0.0) / all_used) / (share / all_shares)) if share else 0.0
            for account, share in shares.items()
        }
