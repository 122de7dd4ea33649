"""Choosing a gateway by name."""

from pathlib import Path

from policy.errors import ConfigError
from policy.slurm.command import CommandGateway
from policy.slurm.interface import Gateway
from policy.slurm.recorded import recorded_gateway


def open_gateway(name: str) -> Gateway:
    """`command`, or `recorded:FOLDER`."""
    kind, _, folder = name.partition(":")
    if kind == "command" and not folder:
        return CommandGateway()
    if kind == "recorded" and folder:
        return recorded_gateway(Path(folder))
    raise ConfigError(f"unknown gateway {name!r}; use command, or recorded:FOLDER")
