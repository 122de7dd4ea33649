# SPDX-License-Identifier: Apache-2.0
"""The command `berth ready`, by which a job's script reports that it works, so that its pre-flight can end."""

import argparse
import os
from pathlib import Path
from typing import Any

from policy.formats.errors import BerthError


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "ready", help="end the pre-flight of this job: call it in the script where the job works"
    )
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Reports to the pre-flight; outside a pre-flight it does nothing, so that a script can always call it."""
    sign = os.environ.get("BERTH_READY")
    if os.environ.get("BERTH_PREFLIGHT") != "1" or not sign:
        return 0
    try:
        Path(sign).touch()
    except OSError as problem:
        raise BerthError(
            f"{sign}: {problem.strerror}; in a container bind its folder, or the pre-flight goes on to its end"
        ) from None
    return 0
