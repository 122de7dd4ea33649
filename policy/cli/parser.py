# SPDX-License-Identifier: Apache-2.0
"""The parser of `berth`: it answers a wrong call with one sentence, and with the right call if it is known."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from policy.formats.errors import UsageError, nearest


class CommandParser(argparse.ArgumentParser):
    """Raises UsageError where argparse prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError with argparse's sentence and the command for help."""
        raise UsageError(f"{message}; {self.prog} --help lists what it takes")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parses a whole command line; a command may correct it itself (`mend`), else the nearest option is named."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            mend = getattr(found, "mend", None)
            if mend is not None:
                raise UsageError(mend(args))
            called = self._called(found)
            known = [word for action in called._actions for word in action.option_strings]  # noqa: SLF001 - its own
            word = unknown[0].partition("=")[0]
            hint = nearest(word, known) if word.startswith("-") else ""
            raise UsageError(
                f"{called.prog} does not take {unknown[0]}{hint or f'; {called.prog} --help lists what it takes'}"
            )
        return found

    def _called(self, found: argparse.Namespace) -> CommandParser:
        """Returns the parser of the command that was called."""
        parser: CommandParser = self
        while below := [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]:  # noqa: SLF001
            parser = below[0].choices[getattr(found, below[0].dest)]
        return parser

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Names the nearest command if one is misspelt."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:  # noqa: SLF001
            hint = nearest(str(value), action.choices)
            raise UsageError(f"{self.prog} has no command {value}{hint or f'; {self.prog} --help lists them'}")
        super()._check_value(action, value)
