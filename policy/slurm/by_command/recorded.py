# SPDX-License-Identifier: Apache-2.0
"""A simulated gateway, for tests and for trying Berth without a cluster: the recorded output of Slurm's commands.

A recording is a folder of files named after the command, `scontrol-show-node`, `squeue`, `squeue-json` and so on. It is
read afresh each time, so that a test can change what "Slurm" prints. Updates and requeues are written to `updates`,
one line of JSON each.
"""

import json
from pathlib import Path

from policy.formats.errors import SlurmError
from policy.slurm.by_command.command import CommandGateway

MARK = "|~"
"""The mark behind each field in a recorded queue; it is replaced by the mark that a reading asks for."""


class Recording:
    """Answers commands from a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, *command: str) -> bytes:
        """Returns the recorded output of a command."""
        if command[:2] in {("scontrol", "update"), ("scontrol", "requeue")}:
            with (self._folder / "updates").open("a") as updates:
                updates.write(json.dumps(command[2:]) + "\n")
            return b""
        name = "-".join([command[0], *[word for word in command[1:4] if word.isalpha()]])
        if "--json" in command:
            name = f"{command[0]}-json"
        elif command[0] == "squeue" and "-r" not in command:
            name = "squeue-arrays"
        try:
            printed = (self._folder / name).read_bytes()
        except OSError as problem:
            raise SlurmError(f"the recording {self._folder} has no {name}: {problem.strerror}") from None
        mark = command[-1].rpartition(":")[2] if name == "squeue" else MARK
        return printed.replace(MARK.encode(), mark.encode())


def recorded_gateway(folder: Path) -> CommandGateway:
    """Returns a gateway that reads a recording."""
    return CommandGateway(Recording(folder), name="recorded")
