"""Compile the kernels anew: `python -m topology.calibrate.kernels FILE.ptx`."""

import sys

from topology import atomic
from topology.calibrate.kernels import PTX, compile_ptx

atomic.replace(sys.argv[1] if len(sys.argv) > 1 else PTX, compile_ptx())
