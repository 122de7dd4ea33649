# SPDX-License-Identifier: Apache-2.0
"""The command `berth doctor node`, which checks a node for jobs that share GPUs, and for remains of such jobs."""

import argparse
import os
import sys
from dataclasses import asdict

from policy.cli.output import print_json


def run(options: argparse.Namespace) -> int:
    """Runs all checks of a node; exit status 1 if one failed."""
    from prolog_epilog import doctor  # noqa: PLC0415 - keeps `berth --help` fast
    from prolog_epilog.node.paths import Paths  # noqa: PLC0415
    from prolog_epilog.settings import config  # noqa: PLC0415

    findings = doctor.examine(config.find(os.environ), Paths(), os.environ.get("SLURM_CONF", ""))
    failed = False
    if options.json:
        found = list(findings)
        failed = not all(one.ok for one in found)
        print_json({"checks": [asdict(one) for one in found]})
    else:
        for one in findings:
            failed = failed or not one.ok
            sys.stdout.write(f"{'ok  ' if one.ok else 'FAIL'}  {one.name}: {one.text}\n")
    return 1 if failed else 0
