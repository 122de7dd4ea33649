"""Types of the arrays that the plan computes with, and their special values."""

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]


Floats = NDArray[np.float64]


FAR = float("inf")


CUT = -1
"""In place of a GPU's memory: MIG has cut it, and packed jobs cannot use it."""
