"""Calibration's kernels: the source, and its PTX, which any driver since Ampere compiles for its own GPU."""

from __future__ import annotations

import ctypes
import ctypes.util
import re
import sys
from pathlib import Path

from topology.errors import ProviderError

__all__ = ["PTX", "SOURCE", "compile_ptx"]

SOURCE = Path(__file__).with_name("calibrate.cu")
PTX = Path(__file__).with_name("calibrate.ptx")
_TARGET = b"--gpu-architecture=compute_80"
"""The first with these tensor instructions; newer GPUs run it too."""
_PTX_VERSION = b".version 7.0"
"""The first with these instructions, so that drivers from CUDA 11.0 on take it, whichever NVRTC made it."""


def compile_ptx() -> bytes:
    """Compile the source with NVRTC, where that is installed (package `nvidia-cuda-nvrtc-cu12` or a CUDA toolkit)."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    created = nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE.read_bytes(), SOURCE.name.encode(), 0, None, None)
    options = (ctypes.c_char_p * 1)(_TARGET)
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
    return re.sub(rb"\.version \d+\.\d+", _PTX_VERSION, text.value, count=1)


def _nvrtc() -> ctypes.CDLL:
    wheels = [str(found) for path in sys.path for found in Path(path).glob("nvidia/*/lib/libnvrtc.so.1?")]
    for name in (*wheels, ctypes.util.find_library("nvrtc"), "libnvrtc.so"):
        if name:
            try:
                return ctypes.CDLL(name)
            except OSError:
                continue
    raise ProviderError("NVRTC is not installed; install nvidia-cuda-nvrtc-cu12, or use the PTX that comes with Berth")
