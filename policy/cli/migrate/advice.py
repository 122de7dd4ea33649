# SPDX-License-Identifier: Apache-2.0
"""Lists the steps to a rung and back, in their order."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from policy.cli.migrate.conf_text import value_of, values_of
from policy.cli.migrate.node_lines import ExactNode, listed, sorted_nodes
from policy.cli.migrate.rungs import Rung
from policy.cli.migrate.site import Files
from policy.cli.migrate.state import Change
from policy.formats.hostlist import fold


@dataclass(frozen=True, slots=True)
class Step:
    """One step for an admin; `command` is empty if it is not a single command."""

    text: str
    command: str = ""
    hosts: tuple[str, ...] = ()
    """The hosts on which it runs; empty: the controller on which `berth migrate` runs."""


_CHECK = Step("Check", "berth doctor")
_JOBS = Step("Let waiting jobs that name a model go on", "berth migrate jobs --yes")


def steps(rung: Rung, nodes: Sequence[str], files: Files, limits: Sequence[str], options: str = "") -> Iterator[Step]:
    """Yields the steps to a rung, `apply` among them; `limits` are commands of sacctmgr, `options` those of `apply`."""
    hosts = "each controller, login node and compute node"
    yield Step(f"Install berth-common and the plugins on {hosts}, before Slurm's files name them")
    yield from _emptied(nodes)
    words = ("berth migrate apply", fold(nodes), f"--rung {rung}", options)
    yield Step("Write the files", " ".join(filter(None, words)))
    yield from _restart(nodes, files, all_slurmds=rung != "advise")
    start = "systemctl enable berthd && systemctl restart berthd"
    yield Step("Start berthd on each controller", start, tuple(_controllers(files)))
    if rung == "exact":
        yield _JOBS
        for command in limits:
            yield Step("Move a limit by model to its licence; a QOS holds for all clusters of slurmdbd", command)
        yield from _given_back(nodes)
    if rung == "sharing":
        gpu_nodes = tuple(sorted_nodes(files.texts.nodes))
        yield Step("Start berth-guard on each GPU node", "systemctl enable --now berth-guard", gpu_nodes)
        yield Step("Check each GPU node", "berth doctor node", gpu_nodes)
    yield _CHECK


def steps_back(change: Change, files: Files, options: str = "", *, forget: bool = False) -> Iterator[Step]:
    """Yields the steps that undo a change, `undo` with its `options` among them.

    `forget` if Slurm knows jobs that shared GPUs there.
    """
    controllers = tuple(_controllers(files))
    yield from _emptied(change.nodes)
    if forget:
        yield Step("Wait until Slurm has forgotten the jobs that ran there", f"squeue -w {fold(change.nodes)} -t all")
    if change.rung == "sharing":
        yield Step("Let no new job share, and wait for those that do", "berth queue")
        gpu_nodes = tuple(sorted_nodes(files.texts.nodes))
        yield Step("Stop berth-guard on each GPU node", "systemctl disable --now berth-guard", gpu_nodes)
    if change.came_from in ("observe", "advise"):
        stop = "Stop berthd on each controller, which gives waiting jobs back"
        yield Step(stop, "systemctl stop berthd", controllers)
        yield Step("Give all waiting jobs back for good", "berth release --all")
    yield Step("Restore the files", f"berth migrate undo {options}".rstrip())
    yield from _restart(change.nodes, files, all_slurmds=change.rung != "advise")
    if change.rung == "exact":
        yield _JOBS
    for command in change.back:
        yield Step("Restore a limit by model", command)
    yield from _given_back(change.nodes)
    if change.came_from != "observe":
        yield Step("Start berthd on each controller", "systemctl restart berthd", controllers)
        yield _CHECK


def seen_by_tools(nodes: Mapping[str, ExactNode]) -> Iterator[str]:
    """Yields notes on what users and tools see after nodes get one GRES type for each GPU, and what to set."""
    for model in sorted({node.model for node in nodes.values()}):
        gres = max((node.gres for node in nodes.values() if node.model == model), key=len)
        yield (
            f"sinfo %G and scontrol show node list each GPU of {model} by itself ({gres[:24]}..., {len(gres)} "
            "characters): scripts read models from the features (sinfo %f), or from berth nodes --json"
        )
        yield (
            f"AllocTRES has gres/gpu=2 as before, and license/berth_{model}=2 where it had gres/gpu:{model}=2: reports "
            "and exporters that count models, and XDMoD's resources, name the licence (docs/admin/slurm.md)"
        )
    if nodes:
        yield (
            "a Prolog that writes which job has which GPU learns of the last one alone: for dcgm-exporter set [node] "
            "jobs_for_dcgm, for jobstats jobs_for_jobstats (docs/admin/metrics.md)"
        )
        yield "requests that name a model, in scripts and in forms of Open OnDemand, stay as they are"


def _emptied(nodes: Sequence[str]) -> Iterator[Step]:
    if nodes:
        yield Step("Drain the nodes", f"berth migrate drain {fold(nodes)}")
        yield Step("Wait until no job runs there", f"squeue -w {fold(nodes)} -t R,CG,S")


def _given_back(nodes: Sequence[str]) -> Iterator[Step]:
    if nodes:
        yield Step("Give the nodes back to jobs", f"berth migrate resume {fold(nodes)}")


def _restart(nodes: Sequence[str], files: Files, *, all_slurmds: bool) -> Iterator[Step]:
    """Yields the restart of Slurm's daemons; `nodes` are those whose layout has changed."""
    first, *backups = _controllers(files)
    configless = "enable_configless" in value_of(files.texts.slurm_conf, "SlurmctldParameters")
    gone = "remove there what is gone here"
    if configless:
        rest = f", and the other changed files to {', '.join(backups)}" if backups else ""
        yield Step(f"Copy berth.conf to all compute and login nodes{rest}; {gone}")
    else:
        yield Step(f"Copy the changed files to all controllers, compute and login nodes that do not share them; {gone}")
    if nodes:
        # A slurmd that registers with its old GPUs at a controller with the new configuration would be drained.
        yield Step(f"Stop slurmd on {fold(nodes)}", "systemctl stop slurmd", tuple(nodes))
    # The backups first, so that each of them could take over.
    where = f": first {', '.join(backups)}, then {first}" if backups else ""
    yield Step(f"Restart slurmctld{where}", "systemctl restart slurmctld", (*backups, first))
    if nodes:
        yield Step(f"Start slurmd on {fold(nodes)}", "systemctl start slurmd", tuple(nodes))
    others = tuple(sorted_nodes(listed(files.texts.slurm_conf).keys() - set(nodes)))
    if all_slurmds and others:
        # If a slurmd is away at the start of a job, Slurm requeues the job, or lets its time run out.
        yield Step("Let no job start there for a moment", f"berth migrate drain {fold(others)}")
        yield Step("Wait until no job is starting there", f"squeue -w {fold(others)} -t CF")
        which = "all other nodes" if nodes else "all nodes"
        yield Step(f"Restart slurmd on {which}; jobs go on meanwhile", "systemctl restart slurmd", others)
        yield Step("Let jobs start there again", f"berth migrate resume {fold(others)}")
    if configless:
        # A slurmctld that starts does not send its files; a slurmd asks for them only at its own start.
        yield Step("Let slurmds and sackds fetch Slurm's files", "scontrol reconfigure")


def _controllers(files: Files) -> list[str]:
    found = [re.sub(r"\(.*\)", "", host) for host in values_of(files.texts.slurm_conf, "SlurmctldHost")]
    return found or [value_of(files.texts.slurm_conf, "ControlMachine") or "the controller"]
