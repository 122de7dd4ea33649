# SPDX-License-Identifier: Apache-2.0
"""Types of the arrays in the plan's computations, and their special values."""

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]


Floats = NDArray[np.float64]


FAR = float("inf")


CUT = -1
"""Stands for a GPU's memory if MIG has cut the GPU: packed jobs cannot use it."""
