"""Waits for Slurm. Each is bounded, a row of them is not: whoever has to show that it lives is told before each."""

from collections.abc import Callable


class SlurmWaits:
    """Those of this process."""

    def __init__(self) -> None:
        self._told: Callable[[], None] | None = None

    def tell(self, told: Callable[[], None] | None) -> None:
        """Sets who is told from now on; None for nobody."""
        self._told = told

    def begin(self) -> None:
        """A wait begins."""
        if self._told is not None:
            self._told()


WAITS = SlurmWaits()
