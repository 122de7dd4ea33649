# SPDX-License-Identifier: Apache-2.0
"""Calibration's kernels: the source, and its PTX, which the driver compiles for the GPU at hand.

There are two PTX files, since the tensor instructions of Ampere are unknown to Volta and Turing.
"""

import ctypes
import ctypes.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from topology.errors import ProviderError

SOURCE = Path(__file__).with_name("calibrate.cu")


@dataclass(frozen=True, slots=True)
class Ptx:
    """A PTX file: for GPUs of one compute capability and later."""

    path: Path
    capability: int
    """10 times the major number, plus the minor number."""
    version: str
    """The first version of PTX with these instructions: the older it is, the older the drivers that take it."""
    kernel: str
    """The name of its tensor kernel in records. Runs of different kernels are never compared."""
    launches: int
    """Launches of the tensor kernel in a batch, so that a batch takes 100 to 400 ms."""


VOLTA = Ptx(SOURCE.with_name("volta.ptx"), 70, "6.3", "wmma-fp16", 12)
AMPERE = Ptx(SOURCE.with_name("ampere.ptx"), 80, "7.0", "mma-fp16", 24)


def ptx_for(capability: int) -> Ptx:
    """Returns the PTX for a compute capability (75 for 7.5); ProviderError for a GPU without tensor cores."""
    if capability < VOLTA.capability:
        raise ProviderError(
            f"this GPU has compute capability {capability / 10:.1f}, and calibration needs 7.0 (Volta) or newer;"
            " leave its model out of the calibration"
        )
    return AMPERE if capability >= AMPERE.capability else VOLTA


def compile_ptx(ptx: Ptx) -> bytes:
    """Compiles the source with NVRTC 12 (package `nvidia-cuda-nvrtc-cu12`, or a CUDA toolkit)."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    created = nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE.read_bytes(), SOURCE.name.encode(), 0, None, None)
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture=compute_{ptx.capability}".encode())
    if created or nvrtc.nvrtcCompileProgram(program, 1, options):
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value or 1)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise ProviderError(f"NVRTC cannot compile {SOURCE}: {log.value.decode(errors='replace').strip()}")
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, text)
    return re.sub(rb"\.version \d+\.\d+", f".version {ptx.version}".encode(), text.value, count=1)


def _nvrtc() -> ctypes.CDLL:
    # CUDA 13 cannot compile for Volta.
    wheels = [str(found) for path in sys.path for found in Path(path).glob("nvidia/*/lib/libnvrtc.so.12")]
    for name in (*wheels, "libnvrtc.so.12", ctypes.util.find_library("nvrtc"), "libnvrtc.so"):
        if name:
            try:
                return ctypes.CDLL(name)
            except OSError:
                continue
    raise ProviderError("NVRTC is not installed; install nvidia-cuda-nvrtc-cu12, or use the PTX that comes with Berth")
