"""Runs a process that berthd starts beside itself: at low priority, with berthd's configuration, gateway and socket."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from policy.formats.errors import BerthError
from policy.site import log
from policy.site.config import Config, load
from policy.site.priority import give_way
from policy.slurm.gateways import open_gateway
from policy.slurm.interface import Gateway

__all__ = ["run_beside"]


def run_beside(program: str, arguments: Sequence[str] | None, serve: Callable[[Config, Gateway, Path], None]) -> int:
    """Calls `serve`, which returns when berthd has ended; returns the exit status."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--socket", type=Path, required=True)
    options = parser.parse_args(arguments)
    give_way()
    try:
        config = load(options.config)
        gateway = open_gateway(config.gateway if options.gateway == "auto" else options.gateway)
        serve(config, gateway, options.socket)
        gateway.close()
    except BerthError as problem:
        log.error(problem)
        return 1
    return 0
