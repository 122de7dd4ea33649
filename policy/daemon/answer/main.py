# SPDX-License-Identifier: Apache-2.0
"""berthd: answers job_submit, and plans behind it."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from policy.cluster.cost import CostModel
from policy.cluster.reserved import know_users_by
from policy.daemon.answer.answerer import Answerer
from policy.daemon.answer.server import Server, child_command, planner_command
from policy.daemon.known.users import names_of
from policy.daemon.processes.child import Child
from policy.formats.errors import BerthError, ConfigError
from policy.placement.registry import create
from policy.site import log
from policy.site.config import config_path, load
from policy.slurm.gateways import open_gateway

WRONG_CONFIG = 2
"""Exit status after which the service manager should not start berthd again."""


def package_version() -> str:
    """Returns the installed version of Berth."""
    try:
        return version("slurm-berth")
    except PackageNotFoundError:
        return "uninstalled"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs berthd until SIGTERM; returns the exit status."""
    know_users_by(names_of)
    text = "Decides where GPU jobs run and plans those that wait. Its unit starts it beside slurmctld, as Slurm's user."
    parser = argparse.ArgumentParser(prog="berthd", description=text)
    parser.add_argument(
        "--config", type=Path, default=None, metavar="FILE", help="berth.conf (default: next to slurm.conf)"
    )
    parser.add_argument(
        "--socket", type=Path, default=None, metavar="PATH", help="listen here instead of where berth.conf says"
    )
    parser.add_argument(
        "--gateway",
        default="auto",
        metavar="NAME",
        help="how Slurm is reached: auto (the default), pyslurm, libslurm, command, or recorded:FOLDER for tests",
    )
    parser.add_argument("--check-config", action="store_true", help="read the configuration and exit")
    parser.add_argument("--version", action="version", version=f"berthd {package_version()}")
    options = parser.parse_args(arguments)
    try:
        path = options.config or config_path()
        config = load(path, must_exist=options.config is not None)
        open_gateway(options.gateway)
        create(config.policy)
        CostModel.of_site(config.cost_lines())
        if options.check_config:
            # A program of its own: berthd itself does not import what checks the tables of nodes.
            words = [sys.executable, "-m", "policy.cli.doctor.conf", str(path)]
            if subprocess.run(words, check=False).returncode:
                return WRONG_CONFIG
            sys.stdout.write(f"{path}: ok\n")
            return 0
        answerer = Answerer(config, package_version(), os.getpid())
        listens = options.socket or config.socket
        serve = child_command("policy.serve.main", path, options.gateway, listens)
        children = [Child("the read-only process", serve)] if config.listeners else []
        Server(answerer, listens, planner_command(path, options.gateway, listens), children).run()
    except ConfigError as problem:
        log.error(problem)
        return WRONG_CONFIG
    except BerthError as problem:
        log.error(problem)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
