# SPDX-License-Identifier: Apache-2.0
"""Calls cuBLAS by ctypes, if it is installed: its tensor products draw more power than Berth's own kernels.

Found in the wheels `nvidia-cublas*`, or where the system has it. Nothing of Berth needs it.
"""

import ctypes
import ctypes.util
import sys
from pathlib import Path
from typing import Any

from topology.errors import ProviderError

SIZE = 8192
"""Rows and columns of the matrices."""
_HALF, _FLOAT_SUMS, _DEFAULT = 2, 68, -1  # CUDA_R_16F, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT
_MAJORS = ("14", "13", "12", "11")


def find() -> Any:
    """Returns the library; None if there is none."""
    wheels = [str(found) for path in sys.path for found in sorted(Path(path).glob("nvidia/*/lib/libcublas.so.1?"))]
    names = (*wheels, *(f"libcublas.so.{major}" for major in _MAJORS), ctypes.util.find_library("cublas"))
    for name in names:
        if name:
            try:
                # A wheel's cuBLAS finds its other half beside it only when that is there already.
                beside = Path(name).with_name(Path(name).name.replace("libcublas", "libcublasLt"))
                if beside.exists():
                    ctypes.CDLL(str(beside), mode=ctypes.RTLD_GLOBAL)
                return ctypes.CDLL(name)
            except OSError:
                continue
    return None


class Gemm:
    """C = A x B of halves with sums in floats, on the GPU whose context is current."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        version = ctypes.c_int()
        self._call("cublasGetVersion_v2", self._handle, ctypes.byref(version))
        # 120902 is 12.9.2; before 11 the major stood in the thousands.
        major, minor = version.value // 10_000, version.value // 100 % 100
        self.label = f"cublas-{major}.{minor}-fp16-{SIZE}"
        """With the version, because each has kernels of its own."""
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def launch(self, a: ctypes.c_uint64, b: ctypes.c_uint64, c: ctypes.c_uint64) -> None:
        """Computes one product."""
        size, half = ctypes.c_int(SIZE), ctypes.c_int(_HALF)
        self._call(
            "cublasGemmEx",
            self._handle,
            *(0, 0, size, size, size),
            ctypes.byref(self._one),
            *(ctypes.c_void_p(a.value), half, size),
            *(ctypes.c_void_p(b.value), half, size),
            ctypes.byref(self._zero),
            *(ctypes.c_void_p(c.value), half, size),
            *(_FLOAT_SUMS, _DEFAULT),
        )

    def close(self) -> None:
        """Frees its memory."""
        self._call("cublasDestroy_v2", self._handle)

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise ProviderError(f"cuBLAS's {name} failed with {code}; try again with --own-kernels")
