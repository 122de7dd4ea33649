# SPDX-License-Identifier: Apache-2.0
"""PyTorch without a change to the program: heartbeat at optimizer steps, gate at step and module boundaries, memory.

Nothing here adds a synchronisation to an ungated program: step times are read from device events once they have passed.
A nap first lets the GPU finish what was queued, so that it is the GPU that idles. While the gate is open no module hook
is installed at all. Nothing here may ever break the program: a failure switches the hooks off, and `why()` reports it.
"""

import functools
import importlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from prolog_epilog import injob
from prolog_epilog.injob.job import Job
from prolog_epilog.injob.torch_memory import Scaler
from prolog_epilog.injob.torch_own import OwnClock, Replicas, clock_of
from prolog_epilog.injob.word import AT, MOVED, OPEN

LOOK_S = 0.05
"""Seconds between two checks of the watching thread whether the gate has closed or opened."""
MOST_PENDING = 8
"""The most steps whose end the GPU has not reached yet; beyond that the oldest are not timed."""
LATE_S = 10.0
"""Seconds after a step from which on the watching thread notes whether the program moves."""
ATTENDED = frozenset({"debugpy", "pydevd", "ipdb"})
"""Modules of debuggers: a program that they hold does not hang."""
STRAY_STEPS = 3
"""After this many steps of another optimizer without one of the leading one, the other leads."""


class StepClock:
    """Times steps by events on the GPU, without waiting for it; by the host's clock if there is no GPU."""

    def __init__(self, torch: Any, *, on_gpu: bool) -> None:
        self._torch = torch
        self._on_gpu = on_gpu
        self._last: Any = None
        self._pending: deque[tuple[Any, Any]] = deque()

    def tick(self) -> list[float]:
        """Marks the end of a step; returns the times, in seconds, of those that are known by now."""
        if not self._on_gpu:
            before, self._last = self._last, time.perf_counter()
            return [] if before is None else [self._last - before]
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        if self._last is not None:
            self._pending.append((self._last, event))
        self._last = event
        if len(self._pending) > MOST_PENDING:
            self._pending.popleft()
        known = []
        while self._pending and self._pending[0][1].query():
            began, ended = self._pending.popleft()
            known.append(began.elapsed_time(ended) / 1000)
        return known


class Hooks:
    """The hooks of one process. They do little, and no failure in them reaches the program."""

    def __init__(self, torch: Any, optimizer: Any) -> None:
        self._torch = torch
        self._optimizer = optimizer
        self._adopted: Job | None = None
        self._clock: StepClock | None = None
        self._own: OwnClock | None = None
        self._replicas = Replicas(torch)
        self._scaler: Scaler | None = None
        self._leader: Any = None
        self._strays = 0
        self._recorded = False
        self._module_hook: Any = None
        self._place: tuple[int, int] | None = None
        self._is_compiling = self._find_is_compiling()

    @property
    def _job(self) -> Job:
        """Returns the job of this process; after a fork it is another one, which is taken over at its first step."""
        job = injob.job()
        if job is not self._adopted:
            self._take_over(job)
        return job

    def _take_over(self, job: Job) -> None:
        self._adopted, self._clock, self._own, self._leader = job, None, None, None
        job.drain = self._drain
        job.pause_allowed = self._not_recording
        job.appear()
        threading.Thread(target=self._watch, args=(job,), name="berth-gate", daemon=True).start()

    def _find_is_compiling(self) -> Callable[[], bool]:
        compiler = getattr(self._torch, "compiler", None)
        found: Callable[[], bool] = getattr(compiler, "is_compiling", lambda: False)
        return found

    def install(self) -> None:
        """Registers with PyTorch, and watches the gate of the current job of this process."""
        self._optimizer.register_optimizer_step_pre_hook(self._before_step)
        self._optimizer.register_optimizer_step_post_hook(self.safely(self._after_step))
        self._take_over(injob.job())

    def safely(self, hook: Callable[..., None]) -> Callable[..., None]:
        """Returns the hook, wrapped so that a failure in it stops the hooks and not the program."""

        @functools.wraps(hook)
        def tried(*args: Any, **kwargs: Any) -> None:
            if not self._job.why:
                try:
                    hook(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - the program must go on, whatever this torch is
                    self._job.why = f"the PyTorch hooks stopped: {error!r}"

        return tried

    def _on_gpu(self) -> bool:
        cuda = self._torch.cuda
        return bool(cuda.is_available() and cuda.is_initialized())

    def _world(self) -> int:
        """Returns how many ranks wait for each other; the program may have started them without a launcher."""
        distributed = getattr(self._torch, "distributed", None)
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return 1
        return int(distributed.get_world_size())

    def _recording_now(self) -> bool:
        return self._on_gpu() and bool(self._torch.cuda.is_current_stream_capturing())

    def _not_recording(self) -> bool:
        return not self._recording_now()

    def _drain(self) -> None:
        if self._on_gpu() and not self._recording_now():
            # This kind of event yields the processor while it waits.
            event = self._torch.cuda.Event(blocking=True)
            event.record()
            event.synchronize()

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        # Do this also after a failure of ours: the optimizer needs back what was moved away.
        if self._scaler is not None:
            self._scaler.before_optimizer(optimizer)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self._recording_now():
            self._follow_graphs()
            return
        if not self._leads(optimizer):
            if self._scaler is not None:
                self._scaler.after_optimizer(optimizer)
            return
        self._end_step(optimizer)

    def _leads(self, optimizer: Any) -> bool:
        """Tells whether this optimizer marks the steps; with several optimizers only one does."""
        if self._leader is optimizer or self._leader is None or self._strays >= STRAY_STEPS:
            self._leader, self._strays = optimizer, 0
            return True
        self._strays += 1
        return False

    def _end_step(self, optimizer: Any) -> None:
        job = self._job
        on_gpu = self._on_gpu()
        if self._clock is None:
            self._clock = StepClock(self._torch, on_gpu=on_gpu)
            if on_gpu:
                number = self._torch.cuda.current_device()
                properties = self._torch.cuda.get_device_properties(number)
                job.sit(number, f"GPU-{getattr(properties, 'uuid', '')}")
            job.together(self._world())
            job.ready()
            first = None if optimizer is None or self._world() == 1 else self._replicas.first_parameter(optimizer)
            if first is not None:
                self._own = clock_of(self._torch, first, on_gpu=on_gpu)
        for seconds in self._clock.tick():
            job.beat(seconds)
        for seconds in self._own.end_step() if self._own is not None else ():
            job.beat_own(seconds)
        if on_gpu and optimizer is not None:
            self._scale(optimizer)
        job.end_step()

    def _scale(self, optimizer: Any) -> None:
        cuda = self._torch.cuda
        device = self._torch.device("cuda", cuda.current_device())
        if self._scaler is None:
            self._scaler = Scaler(self._torch, device)
            self._scaler.graphs = self._recorded
        order = self._job.order()
        self._scaler.end_step(order.memory, order.host_bound, optimizer)
        self._job.report_memory(cuda.memory_reserved(device), cuda.max_memory_reserved(device), self._scaler.spilled)

    def _follow_graphs(self) -> None:
        """Notes that the step is being recorded into a CUDA graph: from now on the graph's replays are the steps."""
        if self._scaler is not None:
            self._scaler.graphs = True
        if self._recorded:
            return
        self._recorded = True
        graph = self._torch.cuda.CUDAGraph
        replay = graph.replay
        ended = self.safely(self._end_step)

        @functools.wraps(replay)
        def replayed(one: Any) -> None:
            replay(one)
            ended(None)

        graph.replay = replayed

    def _watch(self, job: Job) -> None:
        """Installs the module hook while the gate is not open, so that an open gate costs nothing."""
        register = self._torch.nn.modules.module.register_module_forward_pre_hook
        gate, note_moves = self.safely(self._at_module), self.safely(self._note_moves)
        while not job.why:
            closed = job.duty() != OPEN
            if closed and self._module_hook is None:
                self._module_hook = register(gate)
            elif not closed and self._module_hook is not None:
                self._module_hook.remove()
                self._module_hook = None
            note_moves(job)
            time.sleep(LOOK_S)

    def _note_moves(self, job: Job) -> None:
        """Counts in the beat how often the main thread was seen elsewhere; only when the next step is late."""
        slot = job.place
        if slot is None or time.monotonic_ns() - slot.numbers[AT] < LATE_S * 1e9:
            return
        frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - as py-spy and faulthandler
        place = (id(frame), frame.f_lasti if frame else 0)
        if place != self._place or not slot.numbers[MOVED] or not ATTENDED.isdisjoint(sys.modules):
            self._place = place
            slot.numbers[MOVED] += 1

    def _at_module(self, *_: Any) -> None:
        if not self._is_compiling():
            self._job.gate()


@functools.cache
def install() -> str:
    """Hooks into PyTorch, which must be imported, once; returns the reason if that is of no use, or an empty text."""
    torch: Any = sys.modules.get("torch")
    job = injob.job()
    if torch is None:
        return "torch is not imported"
    if job.why:
        return job.why
    try:
        optimizer = importlib.import_module("torch.optim.optimizer")
        if not hasattr(optimizer, "register_optimizer_step_post_hook"):
            job.why = f"torch {torch.__version__} has no hooks for optimizer steps: 2.0 is the oldest that has"
            return job.why
        Hooks(torch, optimizer).install()
    except Exception as error:  # noqa: BLE001 - the program must go on, whatever this torch is
        job.why = f"the PyTorch hooks do not fit torch {torch.__version__}: {error!r}"
    return job.why
