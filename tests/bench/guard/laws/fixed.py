# SPDX-License-Identifier: Apache-2.0
"""The law without control: a site that sets its sharing once, such as by an MPS percentage, has this."""

from __future__ import annotations

from prolog_epilog.guard.decide.law import GuardReading

__all__ = ["Fixed"]


class Fixed:
    """A law that always returns the same duty."""

    def __init__(self, duty: float) -> None:
        self._duty = duty

    def duty(self, reading: GuardReading) -> float:  # noqa: ARG002 - a law that looks at nothing
        """Returns the duty that the law was made with."""
        return self._duty
