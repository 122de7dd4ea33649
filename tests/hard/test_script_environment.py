# SPDX-License-Identifier: Apache-2.0
"""A site's Prolog and Epilog beside plain Slurm: the same variables with the same values, however a job was placed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.hard.test_differential import Pair, pair
from tests.slurm.harness import Slurm, until
from tests.slurm.nodes import berth_conf
from tests.slurm.target import Container
from tests.slurm.test_script_environment import AWAY, FOLDER, KEEP, VARIABLES, WAYS, Told, parts, told

__all__ = ["pair"]

pytestmark = [pytest.mark.hard, pytest.mark.timeout(2_400)]

ONLY_BERTH = re.compile(r"BERTH_\w+|SLURM_JOB_(EXTRA|ADMIN_COMMENT|CONSTRAINTS)")
"""Variables that Berth may add: its own, and texts of the job that it writes."""
NAME_GPUS = (*VARIABLES, "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
SHELLS = re.compile(r"PWD|OLDPWD|SHLVL|_|PATH|LC_CTYPE")
SKIPPED = ("-p plain", "v100")
"""Partitions and models that the plain cluster does not have."""


@pytest.fixture
def both(pair: Pair) -> Iterator[tuple[Slurm, Slurm]]:
    """Both clusters with the same two scripts: Slurm calls them on the one, Berth on the other."""
    plain, berth = (Slurm(str(target), target) for target in pair)
    for one in (plain, berth):
        one.target.bash(f"install -d -m 777 {FOLDER}; rm -f {FOLDER}/*", user="root")
        one.target.run(["tee", f"{FOLDER}/keep"], user="root", stdin=KEEP)
        one.target.bash(f"chmod 755 {FOLDER}/keep", user="root")
    lines = f"Prolog={FOLDER}/keep\\nEpilog={FOLDER}/keep\\n"
    plain.target.bash(f"printf '{lines}' >>/etc/slurm/slurm.conf; scontrol reconfigure", user="root")
    until("the reconfiguration", lambda: FOLDER in plain.target.bash("scontrol show config | grep Prolog").out or None)
    assert isinstance(berth.target, Container)
    with berth_conf(berth, f'[node]\nchain_prolog = ["{FOLDER}/keep"]\nchain_epilog = ["{FOLDER}/keep"]'):
        yield plain, berth


def mapped(environment: dict[str, str], job: int) -> dict[str, str]:
    """Return the variables without what has to differ: numbers of jobs, times, and which GPUs of the node these are."""
    found = {}
    for name, value in environment.items():
        if SHELLS.fullmatch(name):
            continue
        if name in NAME_GPUS:
            found[name] = f"{len(value.split(','))} GPUs"
        elif name.endswith(("_TIME", "SLUID", "JOB_ID")) or "JOBID" in name:
            found[name] = "a number"
        else:
            found[name] = re.sub(rf"\b{job}\b", "JOB", value)
    return found


def run(slurm: Slurm, way: str) -> list[dict[tuple[str, str], dict[str, str]]]:
    """Return what the scripts were told on each node, for each job that a submission made."""
    job = slurm.submit(*WAYS[way].split(), body="sleep 0.5")
    found = []
    for one in parts(slurm, job):
        slurm.wait_state(one, {"COMPLETED"}, 180)
        nodes = int(slurm.show(one)["NumNodes"].partition("-")[0])
        saw: Told = told(slurm, one, nodes)
        for node, script in saw:
            both = [saw[node, which].get(name) for name in VARIABLES for which in ("prolog", "epilog")]
            assert len(set(both)) == 1, f"{way}: {script} of job {one} on {node} is told {both}"
        found.append({place: mapped(environment, one) for place, environment in saw.items()})
    return found


def test_scripts_are_told_the_same_as_on_plain_slurm(both: tuple[Slurm, Slurm]) -> None:
    plain, berth = both
    differ = []
    for way, away in [*((way, False) for way in WAYS), *((way, True) for way in AWAY)]:
        if any(word in WAYS[way] for word in SKIPPED):
            continue
        with ExitStack() as stack:
            if away:
                berth.berthd("stop")
                stack.callback(berth.berthd, "start")
            here, there = run(berth, way), run(plain, way)
        assert len(here) == len(there)
        for ours, theirs in zip(here, there, strict=True):
            for place in theirs:
                got, wanted = (
                    {name: text for name, text in one[place].items() if not ONLY_BERTH.fullmatch(name)}
                    for one in (ours, theirs)
                )
                differ += [
                    f"{way}{', berthd away' * away}, {place}: {name} is {got.get(name)!r}, plain {wanted.get(name)!r}"
                    for name in sorted(got.keys() | wanted.keys())
                    if got.get(name) != wanted.get(name)
                ]
    assert not differ, "\n".join(differ)
