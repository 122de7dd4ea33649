# SPDX-License-Identifier: Apache-2.0
"""Waits for Slurm. Each is bounded, a series of them is not: before each one a process may give a sign of life."""

from collections.abc import Callable


class SlurmWaits:
    """The waits of this process."""

    def __init__(self) -> None:
        self._told: Callable[[], None] | None = None

    def tell(self, told: Callable[[], None] | None) -> None:
        """Sets the function that is called before each wait; None: no function."""
        self._told = told

    def begin(self) -> None:
        """Calls the function, before a wait."""
        if self._told is not None:
            self._told()


WAITS = SlurmWaits()
