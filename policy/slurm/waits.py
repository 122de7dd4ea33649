# SPDX-License-Identifier: Apache-2.0
"""Waits for Slurm. Each is bounded, a row of them is not: a process that must show its life is told before each."""

from collections.abc import Callable


class SlurmWaits:
    """Those of this process."""

    def __init__(self) -> None:
        self._told: Callable[[], None] | None = None

    def tell(self, told: Callable[[], None] | None) -> None:
        """Sets the function that is called from now on; None for none."""
        self._told = told

    def begin(self) -> None:
        """A wait begins."""
        if self._told is not None:
            self._told()


WAITS = SlurmWaits()
