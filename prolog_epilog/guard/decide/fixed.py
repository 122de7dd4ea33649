"""No control at all: what a site has whose sharing is set once, such as an MPS percentage."""

from __future__ import annotations

from prolog_epilog.guard.decide.law import Reading

__all__ = ["Fixed"]


class Fixed:
    """The same duty for ever."""

    def __init__(self, duty: float) -> None:
        self._duty = duty

    def duty(self, reading: Reading) -> float:  # noqa: ARG002 - a law that looks at nothing
        """The duty it was made with."""
        return self._duty
