# SPDX-License-Identifier: Apache-2.0
"""Compiles the kernels anew: `python -m topology.calibrate.kernels`."""

from topology import atomic
from topology.calibrate.kernels import AMPERE, VOLTA, compile_ptx

for one in (VOLTA, AMPERE):
    atomic.replace(one.path, compile_ptx(one))
