# SPDX-License-Identifier: Apache-2.0
"""Times what a rank's GPU takes by itself in data-parallel training, without waiting for other ranks.

The wait for the others is at the end of the backward pass: gradients are exchanged during the pass, and only then
waited for. The first layer's gradient is the last one of the pass. So from the end of one step until that gradient is
there, a GPU does only its own work. That holds for DistributedDataParallel with whole parameters and no layer that
talks to other ranks; for all other programs nothing is reported.
"""

import functools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

MOST_PENDING = 8
"""The most steps whose end the GPU has not reached yet; beyond that the oldest are not timed."""


class Replicas:
    """The data-parallel modules of this process, noted as they are made."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        made = torch.nn.parallel.DistributedDataParallel.__init__
        seen = self._seen

        @functools.wraps(made)
        def watched(module: Any, *args: Any, **kwargs: Any) -> None:
            made(module, *args, **kwargs)
            seen.add(module)

        torch.nn.parallel.DistributedDataParallel.__init__ = watched

    def first_parameter(self, optimizer: Any) -> Any:
        """Returns the parameter whose gradient comes last, or None.

        There is one if all of a step but its end is the rank's own work.
        """
        plain = self._torch.Tensor
        talks = self._torch.nn.SyncBatchNorm
        mine = {id(one) for group in optimizer.param_groups for one in group["params"]}
        for module in self._seen:
            parameters = [one for one in module.parameters() if one.requires_grad]
            whole = all(type(one.data) is plain for one in parameters)
            if not parameters or not whole or any(isinstance(layer, talks) for layer in module.modules()):
                return None
            if id(parameters[0]) in mine:
                return parameters[0]
        return None


class OwnClock:
    """Times from the end of a step to the last gradient of the next, by events on the GPU or the host's clock.

    A failure stops only this clock: it runs within the program's own backward pass.
    """

    def __init__(self, parameter: Any, mark: Callable[[], Any], between: Callable[[Any, Any], float | None]) -> None:
        """`mark` returns a mark of this moment, or None; `between` returns the seconds between two marks.

        `between` returns None as long as the GPU has not reached them.
        """
        self._mark, self._between = mark, between
        self._broken = False
        self._began: Any = None
        self._last: Any = None
        self._pending: deque[tuple[Any, Any]] = deque(maxlen=MOST_PENDING)
        parameter.register_hook(self._gradient)

    def _gradient(self, _gradient: Any) -> None:
        if self._broken:
            return
        try:
            # With several passes a step the last one counts.
            self._last = self._mark()
        except Exception:  # noqa: BLE001 - the program must go on, whatever this torch is
            self._broken = True

    def end_step(self) -> list[float]:
        """Marks the end of a step; returns the times, in seconds, of those that are known by now."""
        if self._broken:
            return []
        if self._began is not None and self._last is not None:
            self._pending.append((self._began, self._last))
        self._began, self._last = self._mark(), None
        known = []
        while self._pending and (seconds := self._between(*self._pending[0])) is not None:
            self._pending.popleft()
            known.append(seconds)
        return known


def clock_of(torch: Any, parameter: Any, *, on_gpu: bool) -> OwnClock:
    """Returns the clock of a program whose first parameter this is."""
    if not on_gpu:
        import time  # noqa: PLC0415 - only where there is no GPU

        return OwnClock(parameter, time.perf_counter, lambda began, ended: float(ended - began))

    def mark() -> Any:
        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(began: Any, ended: Any) -> float | None:
        return began.elapsed_time(ended) / 1000 if ended.query() else None

    return OwnClock(parameter, mark, between)
