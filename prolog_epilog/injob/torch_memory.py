# SPDX-License-Identifier: Apache-2.0
"""Memory scaling in PyTorch, at step boundaries: allocator limit, cache, optimizer state and saved activations."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from prolog_epilog.injob.scaling import HeldMemory, Spill, decide

LEAST_SPILLED = 1 << 20
"""Tensors with fewer bytes are not worth moving to the host."""
RECENT_STEPS = 32
"""The cap leaves room for the highest peak of so many steps: batches differ in size."""


def size_of(tensor: Any) -> int:
    """Returns the bytes of a tensor's elements."""
    return int(tensor.numel() * tensor.element_size())


class HostPool:
    """Pinned host memory that is reused, because pinning is slow; never more than its bound."""

    def __init__(self, torch: Any, *, pinned: bool) -> None:
        self._torch = torch
        self._pinned = pinned
        self._free: dict[tuple[Any, tuple[int, ...]], list[tuple[Any, Any]]] = defaultdict(list)
        self.bound = self.held = 0

    def take(self, like: Any) -> Any:
        """Returns a host tensor of the same shape, whose earlier use is over."""
        waiting = self._free[like.dtype, tuple(like.shape)]
        for place, (tensor, done) in enumerate(waiting):
            if done is None or done.query():
                del waiting[place]
                return tensor
        if self.held + size_of(like) > self.bound:
            self.clear()  # Shapes have changed: drop what was kept for others.
        self.held += size_of(like)
        return self._torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=self._pinned)

    def give(self, tensor: Any, done: Any) -> None:
        """Gives a tensor back for reuse, once the event has passed."""
        self._free[tensor.dtype, tuple(tensor.shape)].append((tensor, done))

    def clear(self) -> None:
        """Drops everything that is not in use; PyTorch itself waits until the GPU has finished with it."""
        self.held -= sum(size_of(tensor) for waiting in self._free.values() for tensor, _ in waiting)
        self._free.clear()


class _OnHost:
    """A saved activation on the host; its buffer returns to the pool when autograd lets it go."""

    __slots__ = ("_event", "_owner", "host", "size")

    def __init__(self, owner: Activations, tensor: Any, size: int) -> None:
        self._owner = owner
        self._event = None
        self.size = size
        self.host = owner.pool.take(tensor)
        self.host.copy_(tensor, non_blocking=True)

    def back(self) -> Any:
        tensor = self.host.to(self._owner.device, non_blocking=True)
        self._event = self._owner.event()
        return tensor

    def __del__(self) -> None:
        self._owner.on_host -= self.size
        self._owner.pool.give(self.host, self._event)


class Activations:
    """Saved-tensor hooks that move large activations to the host within a budget."""

    def __init__(self, torch: Any, device: Any, pool: HostPool) -> None:
        self._torch = torch
        self.device = device
        self.pool = pool
        self.budget = 0
        self.on_host = self.most_on_host = 0
        self._hooks: Any = None

    def allow(self, budget: int) -> None:
        """Moves up to so many bytes from now on. Once entered, the hooks stay: leaving could cross a user's own."""
        self.budget = budget
        if budget and self._hooks is None:
            self._hooks = self._torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
            self._hooks.__enter__()

    def event(self) -> Any:
        """Returns an event that marks the end of what is queued now."""
        if self.device.type != "cuda":
            return None
        event = self._torch.cuda.Event()
        event.record()
        return event

    def _pack(self, tensor: Any) -> Any:
        size = size_of(tensor)
        if (
            size < LEAST_SPILLED
            or self.on_host + size > self.budget
            or type(tensor) is not self._torch.Tensor
            or tensor.device != self.device
            or tensor.layout != self._torch.strided
            or (tensor.is_leaf and tensor.requires_grad)
            or self._is_parameter(tensor)
        ):
            return tensor
        self.on_host += size
        self.most_on_host = max(self.most_on_host, self.on_host)
        return _OnHost(self, tensor, size)

    def _is_parameter(self, tensor: Any) -> bool:
        # The tensor is a view of a weight, as a linear layer saves: copying it frees nothing.
        base = getattr(tensor, "_base", None)
        return base is not None and base.is_leaf and base.requires_grad

    def _unpack(self, saved: Any) -> Any:
        return saved.back() if isinstance(saved, _OnHost) else saved


class OptimizerState:
    """Keeps optimizers' state on the host between their steps."""

    def __init__(self, torch: Any, device: Any, pool: HostPool) -> None:
        self._torch = torch
        self._device = device
        self._pool = pool
        self.on_host = 0

    def _large(self, optimizer: Any) -> list[tuple[dict[str, Any], str, Any]]:
        if any(group.get("capturable") for group in optimizer.param_groups):
            return []  # A CUDA graph holds the addresses of these tensors.
        return [
            (state, name, tensor)
            for state in optimizer.state.values()
            if type(state) is dict
            for name, tensor in state.items()
            if type(tensor) is self._torch.Tensor and size_of(tensor) >= LEAST_SPILLED
        ]

    def size(self, optimizer: Any) -> int:
        """Returns the bytes that could be moved."""
        return sum(size_of(tensor) for _, _, tensor in self._large(optimizer))

    def away(self, optimizer: Any) -> None:
        """Moves the state to the host."""
        for state, name, tensor in self._large(optimizer):
            if tensor.device == self._device:
                host = self._pool.take(tensor)
                host.copy_(tensor, non_blocking=True)
                state[name] = host
                self.on_host += size_of(host)

    def back(self, optimizer: Any) -> None:
        """Moves the state to the GPU."""
        for state, name, tensor in self._large(optimizer):
            if tensor.device.type == "cpu" and self._device.type != "cpu":
                state[name] = self._to_gpu(tensor)
                self.on_host -= size_of(tensor)
                event = self._torch.cuda.Event()
                event.record()
                self._pool.give(tensor, event)

    def _to_gpu(self, tensor: Any) -> Any:
        try:
            return tensor.to(self._device, non_blocking=True)
        except self._torch.cuda.OutOfMemoryError:
            # The optimizer needs this tensor: exceeding the target is better than failing.
            self._torch.cuda.set_per_process_memory_fraction(1.0, self._device)
            self._torch.cuda.empty_cache()
            return tensor.to(self._device, non_blocking=True)


class Scaler:
    """Follows the memory target of one GPU, with one decision at each step's end."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self.pool = HostPool(torch, pinned=device.type == "cuda")
        self.activations = Activations(torch, device, self.pool)
        self.state = OptimizerState(torch, device, self.pool)
        self._spill = Spill()
        self._target = self._cap = 0
        self._peaks: deque[int] = deque(maxlen=RECENT_STEPS)
        self.graphs = False
        """True if a CUDA graph was recorded: its addresses must stay, so nothing moves any more."""

    @property
    def spilled(self) -> int:
        """Returns the bytes on the host now."""
        return self.state.on_host + self.activations.on_host

    def before_optimizer(self, optimizer: Any) -> None:
        """Brings back the state that this optimizer is about to use."""
        if self.state.on_host:
            self.state.back(optimizer)

    def after_optimizer(self, optimizer: Any) -> None:
        """Moves the optimizer's state away again, if that is decided."""
        if self._spill.state and not self.graphs:
            self.state.away(optimizer)

    def end_step(self, target: int, host_bound: int, optimizer: Any) -> None:
        """Decides and acts; costs nothing while there is no target."""
        if not target and not self._target:
            return
        cuda = self._torch.cuda
        peak = cuda.max_memory_allocated(self._device)
        cuda.reset_peak_memory_stats(self._device)
        self._peaks.append(peak)
        held = HeldMemory(peak, self.state.size(optimizer), self.activations.most_on_host, max(self._peaks))
        self.activations.most_on_host = self.activations.on_host
        bound = 0 if self.graphs else host_bound
        self.pool.bound = bound
        step = decide(target, bound, held, self._spill)
        if self._spill.state and not step.spill.state:
            self.state.back(optimizer)
        self._spill = step.spill
        self.after_optimizer(optimizer)
        self.activations.allow(step.spill.activations)
        if not self.spilled and step.spill == Spill():
            self.pool.clear()
        self._limit(step.cap)
        self._target = target

    def _limit(self, cap: int) -> None:
        cuda = self._torch.cuda
        if cap and cuda.memory_reserved(self._device) > cap:
            cuda.empty_cache()
        if cap != self._cap:
            total = cuda.get_device_properties(self._device).total_memory
            cuda.set_per_process_memory_fraction(min(cap / total, 1.0) if cap else 1.0, self._device)
            self._cap = cap
