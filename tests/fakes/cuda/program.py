# SPDX-License-Identifier: Apache-2.0
"""What a CUDA program does, by ctypes: every way to launch and to take memory, found in every way."""

from __future__ import annotations

import ctypes as c
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = [
    "ALLOCATIONS", "GRAPH_MEMORY", "LAUNCHES", "MIB", "OUT_OF_MEMORY", "Capture", "Context", "Prop", "c", "call",
    "cuda", "get_proc", "kernel", "os", "signal", "sys", "threading", "time", "use_get_proc",
]  # fmt: skip

MIB = 1 << 20
OUT_OF_MEMORY = 2
cuda = c.CDLL("libcuda.so.1")
cuda.fakeCudaBusyNs.restype = cuda.fakeCudaLaunches.restype = cuda.fakeCudaUsed.restype = c.c_uint64
_look_up: list[str] = []


def use_get_proc(name: str) -> None:
    """From now on functions come from the driver's own look-up of this name."""
    _look_up[:] = [name]


def get_proc(symbol: str, version: int, flags: int = 0, by: str = "cuGetProcAddress_v2") -> int:
    """The address that the driver's look-up gives, or 0."""
    address = c.c_void_p()
    more = [] if by == "cuGetProcAddress" else [None]
    found = getattr(cuda, by)(symbol.encode(), c.byref(address), version, c.c_uint64(flags), *more)
    return (address.value or 0) if found == 0 else 0


def address_of(name: str) -> int:
    """A driver function by its exported name, found in the way chosen."""
    if not _look_up:
        return c.cast(getattr(cuda, name), c.c_void_p).value or 0
    base = name.removesuffix("_ptsz").removesuffix("_v2").removesuffix("_v3").removesuffix("_v4")
    return get_proc(base, 13000, 2 if name.endswith("_ptsz") else 1, _look_up[0])


def call(name: str, *values: Any) -> int:
    """Call a driver function; whole numbers go as 64 bits, which fits every argument on 64-bit machines."""
    address = address_of(name)
    assert address, name
    kinds = [c.c_uint64 if isinstance(one, int) else c.c_void_p for one in values]
    made = [one if isinstance(one, int) or one is None else c.cast(one, c.c_void_p) for one in values]
    return int(c.CFUNCTYPE(c.c_int, *kinds)(address)(*made))


def Context(device: int = 0, *, primary: bool = True) -> c.c_void_p:  # noqa: N802 - it makes one
    """Start the driver and make a context current."""
    context = c.c_void_p()
    assert cuda.cuInit(0) == 0
    if primary:
        assert cuda.cuDevicePrimaryCtxRetain(c.byref(context), device) == 0
    else:
        assert call("cuCtxCreate_v2", c.byref(context), 0, device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    return context


def kernel(us: int) -> c.c_void_p:
    """A kernel that takes so long."""
    made = c.c_void_p()
    assert cuda.cuModuleGetFunction(c.byref(made), None, f"work_{us}".encode()) == 0
    return made


class Config(c.Structure):
    _fields_ = (
        ("sizes", c.c_uint * 7), ("stream", c.c_void_p), ("attributes", c.c_void_p), ("count", c.c_uint),
    )  # fmt: skip


class Params(c.Structure):
    _fields_ = (
        ("function", c.c_void_p), ("sizes", c.c_uint * 7), ("stream", c.c_void_p), ("parameters", c.c_void_p),
    )  # fmt: skip


class Descriptor(c.Structure):
    _fields_ = (
        ("width", c.c_size_t), ("height", c.c_size_t), ("depth", c.c_size_t), ("format", c.c_int),
        ("channels", c.c_uint), ("flags", c.c_uint),
    )  # fmt: skip


class FlatDescriptor(c.Structure):
    _fields_ = (("width", c.c_size_t), ("height", c.c_size_t), ("format", c.c_int), ("channels", c.c_uint))


class Prop(c.Structure):
    _fields_ = (
        ("type", c.c_int), ("handles", c.c_int), ("location", c.c_int), ("id", c.c_int), ("metadata", c.c_void_p),
        ("flags", c.c_ubyte * 8),
    )  # fmt: skip


class Capture:
    """Kernels recorded into a graph, on a stream of its own."""

    def __init__(self, *kernels: c.c_void_p) -> None:
        self.stream, self.graph, self.executable = c.c_void_p(), c.c_void_p(), c.c_void_p()
        assert cuda.cuStreamCreate(c.byref(self.stream), 0) == 0
        assert cuda.cuStreamBeginCapture_v2(self.stream, 0) == 0
        for one in kernels:
            assert _plain("cuLaunchKernel")(one, self.stream) == 0
        self.ended = cuda.cuStreamEndCapture(self.stream, c.byref(self.graph))
        if self.ended == 0:
            assert cuda.cuGraphInstantiateWithFlags(c.byref(self.executable), self.graph, c.c_uint64(0)) == 0


class AllocNode(c.Structure):
    _fields_ = (
        ("types", c.c_int * 2), ("location", c.c_int * 2), ("rest", c.c_ubyte * 72), ("access", c.c_void_p),
        ("access_count", c.c_size_t), ("bytes", c.c_size_t), ("pointer", c.c_uint64),
    )  # fmt: skip


class Node(c.Structure):
    _fields_ = (("type", c.c_int), ("reserved", c.c_int * 3), ("alloc", AllocNode), ("rest", c.c_ubyte * 120))


Launch = Callable[[c.c_void_p, Any], int]


def _plain(name: str) -> Launch:
    def launch(one: c.c_void_p, stream: Any = None) -> int:
        return call(name, one, *[1] * 6, 0, stream, None, None)

    return launch


def _cooperative(name: str) -> Launch:
    def launch(one: c.c_void_p, stream: Any = None) -> int:
        return call(name, one, *[1] * 6, 0, stream, None)

    return launch


def _ex(name: str) -> Launch:
    def launch(one: c.c_void_p, stream: Any = None) -> int:
        return call(name, c.byref(Config((c.c_uint * 7)(*[1] * 6, 0), stream)), one, None, None)

    return launch


def _several(name: str) -> Launch:
    def launch(one: c.c_void_p, stream: Any = None) -> int:
        return call(name, c.byref(Params(one, (c.c_uint * 7)(*[1] * 6, 0), stream)), 1, 0)

    return launch


def _graph(name: str) -> Launch:
    made: dict[Any, Capture] = {}

    def launch(one: c.c_void_p, stream: Any = None) -> int:
        if one.value not in made:
            made[one.value] = Capture(one)
        return call(name, made[one.value].executable, stream)

    return launch


def _old(name: str, *sizes: int, stream_too: bool) -> Launch:
    def launch(one: c.c_void_p, stream: Any = None) -> int:
        return call(name, one, *sizes, *[stream] * stream_too)

    return launch


LAUNCHES: dict[str, Launch] = {
    "cuLaunchKernel": _plain("cuLaunchKernel"),
    "cuLaunchKernel_ptsz": _plain("cuLaunchKernel_ptsz"),
    "cuLaunchKernelEx": _ex("cuLaunchKernelEx"),
    "cuLaunchKernelEx_ptsz": _ex("cuLaunchKernelEx_ptsz"),
    "cuLaunchCooperativeKernel": _cooperative("cuLaunchCooperativeKernel"),
    "cuLaunchCooperativeKernel_ptsz": _cooperative("cuLaunchCooperativeKernel_ptsz"),
    "cuLaunchCooperativeKernelMultiDevice": _several("cuLaunchCooperativeKernelMultiDevice"),
    "cuGraphLaunch": _graph("cuGraphLaunch"),
    "cuGraphLaunch_ptsz": _graph("cuGraphLaunch_ptsz"),
    "cuLaunch": _old("cuLaunch", stream_too=False),
    "cuLaunchGrid": _old("cuLaunchGrid", 1, 1, stream_too=False),
    "cuLaunchGridAsync": _old("cuLaunchGridAsync", 1, 1, stream_too=True),
}


def _pointer(name: str, free: str, before: tuple[Any, ...] = (), after: tuple[Any, ...] = ()) -> Any:
    """Take memory in this way: the driver's answer, and how to give it back."""

    def take(mib: int) -> tuple[int, Callable[[], int]]:
        made = c.c_uint64()
        result = call(name, c.byref(made), *before, mib * MIB, *after)
        more = (None,) if "Async" in free else ()
        return result, lambda: call(free, made.value, *more)

    return take


def _pitch(mib: int) -> tuple[int, Callable[[], int]]:
    made, pitch = c.c_uint64(), c.c_size_t()
    result = call("cuMemAllocPitch_v2", c.byref(made), c.byref(pitch), 1024, mib * 1024, 4)
    return result, lambda: call("cuMemFree_v2", made.value)


def _physical(mib: int) -> tuple[int, Callable[[], int]]:
    made = c.c_uint64()
    prop = Prop(1, 0, 1, 0)
    result = call("cuMemCreate", c.byref(made), mib * MIB, c.byref(prop), 0)
    return result, lambda: call("cuMemRelease", made.value)


def _array(name: str, kind: type[c.Structure], free: str, after: tuple[Any, ...] = ()) -> Any:
    def take(mib: int) -> tuple[int, Callable[[], int]]:
        made = c.c_void_p()
        sizes = (1024, mib * 1024, 1) if kind is Descriptor else (1024, mib * 1024)
        result = call(name, c.byref(made), c.byref(kind(*sizes, 1, 1)), *after)
        return result, lambda: call(free, made)

    return take


ALLOCATIONS: dict[str, Callable[[int], tuple[int, Callable[[], int]]]] = {
    "cuMemAlloc_v2": _pointer("cuMemAlloc_v2", "cuMemFree_v2"),
    "cuMemAllocPitch_v2": _pitch,
    "cuMemAllocManaged": _pointer("cuMemAllocManaged", "cuMemFree_v2", after=(1,)),
    "cuMemAllocAsync": _pointer("cuMemAllocAsync", "cuMemFreeAsync", after=(None,)),
    "cuMemAllocAsync_ptsz": _pointer("cuMemAllocAsync_ptsz", "cuMemFreeAsync_ptsz", after=(None,)),
    "cuMemAllocFromPoolAsync": _pointer("cuMemAllocFromPoolAsync", "cuMemFreeAsync", after=(None, None)),
    "cuMemAllocFromPoolAsync_ptsz": _pointer("cuMemAllocFromPoolAsync_ptsz", "cuMemFree_v2", after=(None, None)),
    "cuMemCreate": _physical,
    "cuArrayCreate_v2": _array("cuArrayCreate_v2", FlatDescriptor, "cuArrayDestroy"),
    "cuArray3DCreate_v2": _array("cuArray3DCreate_v2", Descriptor, "cuArrayDestroy"),
    "cuMipmappedArrayCreate": _array("cuMipmappedArrayCreate", Descriptor, "cuMipmappedArrayDestroy", after=(1,)),
}


def _graph_of(add: Callable[[c.c_void_p, AllocNode], int], mib: int) -> tuple[int, c.c_void_p]:
    graph = c.c_void_p()
    assert cuda.cuGraphCreate(c.byref(graph), 0) == 0
    return add(graph, AllocNode((1, 0), (1, 0), bytes=mib * MIB)), graph


def _alloc_node(graph: c.c_void_p, params: AllocNode) -> int:
    return call("cuGraphAddMemAllocNode", c.byref(c.c_void_p()), graph, None, 0, c.byref(params))


def _any_node(name: str, *edges: None) -> Callable[[c.c_void_p, AllocNode], int]:
    def add(graph: c.c_void_p, params: AllocNode) -> int:
        node = Node(10, alloc=params)
        return call(name, c.byref(c.c_void_p()), graph, None, *edges, 0, c.byref(node))

    return add


def _recorded(mib: int) -> tuple[int, c.c_void_p]:
    stream, graph, pointer = c.c_void_p(), c.c_void_p(), c.c_uint64()
    assert cuda.cuStreamCreate(c.byref(stream), 0) == 0
    assert cuda.cuStreamBeginCapture_v2(stream, 0) == 0
    result = call("cuMemAllocAsync", c.byref(pointer), mib * MIB, stream)
    assert cuda.cuStreamEndCapture(stream, c.byref(graph)) == 0
    return result, graph


GRAPH_MEMORY: dict[str, Callable[[int], tuple[int, c.c_void_p]]] = {
    "cuGraphAddMemAllocNode": partial(_graph_of, _alloc_node),
    "cuGraphAddNode": partial(_graph_of, _any_node("cuGraphAddNode")),
    "cuGraphAddNode_v2": partial(_graph_of, _any_node("cuGraphAddNode_v2", None)),
    "cuMemAllocAsync, recorded": _recorded,
}
"""Makes a graph that takes so many MiB: the driver's answer, and the graph."""
