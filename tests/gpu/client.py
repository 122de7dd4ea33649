# SPDX-License-Identifier: Apache-2.0
"""A CUDA program for the tests on a real GPU: the driver's own library and calibration's kernels, no framework.

    python -m tests.gpu.client sms | allocate MIB [SECONDS] | fault | lock PID | loop, gemm or train SECONDS
    python -m tests.gpu.client green PERCENT SECONDS | fill MIB SECONDS

Prints one line; for `loop`, `gemm` (cuBLAS, where it is installed) and `train` (a job with a heartbeat and a gate)
launches or steps a second, then what each took in milliseconds. `green` does what `loop` does, in a green context with
this part of the multiprocessors, whose number it prints first. `fill` takes memory in pieces, prints so, and writes to
all of it again and again: rounds a second, then milliseconds. A call that fails is printed by name and code, and ends
the program with status 1.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from typing import Any

from prolog_epilog import injob
from topology.calibrate.device import cublas
from topology.calibrate.kernels import ptx_for

# CUdevice_attribute: MULTIPROCESSOR_COUNT, COMPUTE_CAPABILITY_MAJOR and _MINOR.
_SM_COUNT, _CAPABILITY_MAJOR, _CAPABILITY_MINOR = 16, 75, 76
_SM_RESOURCE, _GREEN_DEFAULT_STREAM = 1, 1
_THREADS, _BLOCKS_PER_SM, _ROUNDS = 256, 4, 4_000
_OUTPUT_BYTES = 1 << 26
_LAUNCHES_A_STEP = 16
_PIECE_MIB = 256
_NOBODYS = 0x10
"""An address that no allocation has."""


class DevResource(ctypes.Structure):
    """CUdevResource of cuda.h, as for multiprocessors; its size is the same from CUDA 12.4 to 13.3."""

    _fields_ = (
        ("type", ctypes.c_int), ("internal", ctypes.c_ubyte * 92), ("sm_count", ctypes.c_uint),
        ("rest", ctypes.c_ubyte * 44),
    )  # fmt: skip


class Client:
    """A context on the first GPU that this process sees."""

    def __init__(self) -> None:
        self._cuda: Any = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.device = device
        self.sms = self._attribute(device, _SM_COUNT)
        self._capability = 10 * self._attribute(device, _CAPABILITY_MAJOR) + self._attribute(device, _CAPABILITY_MINOR)

    def call(self, name: str, *arguments: Any) -> None:
        """Call the driver; its errors end the program."""
        code = getattr(self._cuda, name)(*arguments)
        if code:
            print(name, code, flush=True)
            sys.exit(1)

    def _attribute(self, device: ctypes.c_int, number: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        return value.value

    def enter_green(self, percent: int) -> int:
        """Make a green context with this part of the multiprocessors current; returns how many it has."""
        every, group, count = DevResource(), DevResource(), ctypes.c_uint(1)
        words, green, context = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDeviceGetDevResource", self.device, ctypes.byref(every), _SM_RESOURCE)
        least = ctypes.c_uint(max(1, every.sm_count * percent // 100))
        self.call(
            "cuDevSmResourceSplitByCount", ctypes.byref(group), ctypes.byref(count), ctypes.byref(every), None, 0, least
        )
        self.call("cuDevResourceGenerateDesc", ctypes.byref(words), ctypes.byref(group), 1)
        self.call("cuGreenCtxCreate", ctypes.byref(green), words, self.device, _GREEN_DEFAULT_STREAM)
        self.call("cuCtxFromGreenCtx", ctypes.byref(context), green)
        self.call("cuCtxSetCurrent", context)
        return int(group.sm_count)

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Memory of the GPU."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def kernel(self, name: str) -> ctypes.c_void_p:
        """One of calibration's kernels."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ptx_for(self._capability).path.read_bytes() + b"\0")
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def run(self, kernel: ctypes.c_void_p, *arguments: Any) -> None:
        """Launch on as many threads as the whole GPU holds, and wait."""
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.pointer(one), ctypes.c_void_p) for one in arguments)
        )
        # As many as the GPU holds, however few of its multiprocessors we are shown: the work is the same for all.
        blocks = 132 * _BLOCKS_PER_SM
        self.call("cuLaunchKernel", kernel, blocks, 1, 1, _THREADS, 1, 1, 0, None, pointers, None)
        self.call("cuCtxSynchronize")


def _loop(launch: Callable[[], None], seconds: float) -> None:
    launch()
    took = []
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        launch()
        took.append(time.monotonic() - began)
    print(len(took) / sum(took), *(f"{1000 * one:.3f}" for one in took))


def _kernel(client: Client) -> Callable[[], None]:
    kernel, output = client.kernel("compute"), client.allocate(_OUTPUT_BYTES)
    return lambda: client.run(kernel, output, ctypes.c_int(_ROUNDS))


def _product(client: Client) -> Callable[[], None]:
    """A matrix product of cuBLAS's; without cuBLAS, calibration's own kernel."""
    if not (library := cublas.find()):
        return _kernel(client)
    gemm = cublas.Gemm(library)
    a, b, c = (client.allocate(2 * cublas.SIZE**2) for _ in range(3))

    def launch() -> None:
        gemm.launch(a, b, c)
        client.call("cuCtxSynchronize")

    return launch


def _train(client: Client, seconds: float) -> None:
    """Steps of a few launches, told to the guard, gated where it asks."""
    kernel, output, took = client.kernel("compute"), client.allocate(_OUTPUT_BYTES), []
    client.run(kernel, output, ctypes.c_int(_ROUNDS))
    injob.ready()
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        launches = 0
        while launches < _LAUNCHES_A_STEP and time.monotonic() < until:
            client.run(kernel, output, ctypes.c_int(_ROUNDS))
            injob.gate()
            launches += 1
        if launches == _LAUNCHES_A_STEP:
            injob.step()
        # A guest that is held hard would end minutes late: its last step is reckoned from the launches that it did.
        took.append((time.monotonic() - began) * _LAUNCHES_A_STEP / max(launches, 1))
    print(len(took) / sum(took), *(f"{1000 * one:.3f}" for one in took))


def _fill(client: Client, mib: int) -> Callable[[], None]:
    kernel = client.kernel("fill")
    pieces = [client.allocate(_PIECE_MIB << 20) for _ in range(mib // _PIECE_MIB)]

    def write() -> None:
        for piece in pieces:
            client.run(kernel, piece, ctypes.c_uint64((_PIECE_MIB << 20) // 4))

    write()
    print("filled", flush=True)
    return write


def main() -> None:
    """Do what the first argument says."""
    what, *numbers = sys.argv[1:]
    client = Client()
    if what == "sms":
        print(client.sms)
    elif what == "allocate":
        client.allocate(int(numbers[0]) << 20)
        print("allocated", flush=True)
        time.sleep(float(numbers[1]) if len(numbers) > 1 else 0)
    elif what == "fault":
        client.run(client.kernel("fill"), ctypes.c_uint64(_NOBODYS), ctypes.c_uint64(1 << 20))
    elif what == "lock":
        # The driver's own gate for launches from outside (checkpointing, driver 570).
        client.call("cuCheckpointProcessLock", int(numbers[0]), None)
        client.call("cuCheckpointProcessUnlock", int(numbers[0]), None)
        print("locked and let go")
    elif what == "green":
        print(client.enter_green(int(numbers[0])), end=" ")
        _loop(_kernel(client), float(numbers[1]))
    elif what == "fill":
        _loop(_fill(client, int(numbers[0])), float(numbers[1]))
    elif what == "train":
        _train(client, float(numbers[0]))
    else:
        _loop((_product if what == "gemm" else _kernel)(client), float(numbers[0]))


if __name__ == "__main__":
    main()
