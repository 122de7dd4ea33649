"""Says what to do for a rung, in which order, and what the site's ways of working mean for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from policy.cli.migrate.conf_text import entries, value_of, words_of
from policy.cli.migrate.limits import Limit, commands
from policy.cli.migrate.node_lines import listed, sorted_nodes
from policy.cli.migrate.rungs import Rung
from policy.cli.migrate.site import Files, SlurmSays
from policy.cli.output import some
from policy.cli.reservations import counting
from policy.formats.hostlist import fold

__all__ = ["Step", "notes", "steps", "steps_back"]

_SHARED = re.compile(
    r"nfs|lustre|gpfs|beegfs|ceph|afs|glusterfs|cifs|smb|9p|virtiofs|fuse\.(?!snap)|orangefs|wekafs|gfs2|ocfs2"
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step that an admin takes; `command` is empty where it is no single command."""

    text: str
    command: str = ""
    hosts: tuple[str, ...] = ()
    """Hosts on which it runs; empty for the controller on which `berth migrate` runs."""


def steps(rung: Rung, nodes: Sequence[str], files: Files, limits: Sequence[Limit]) -> Iterator[Step]:
    """Yields the steps to a rung, `apply` among them."""
    if rung == "observe":
        yield Step("Change nothing in Slurm, and look", "berth observe")
        return
    hosts = "each controller, login node and compute node"
    yield Step(f"Install berth-common and the plugins on {hosts}, before Slurm's files name them")
    if rung == "exact" and nodes:
        yield from _emptied(nodes)
    only = f" {fold(nodes)}" if nodes and rung == "exact" else ""
    yield Step("Write the files", f"berth migrate apply{only} --rung {rung}")
    yield from _restart(rung, nodes, files, all_slurmds=rung != "advise")
    controllers = tuple(_controllers(files))
    yield Step("Start berthd on each controller", "systemctl enable berthd && systemctl restart berthd", controllers)
    if rung == "exact":
        yield Step("Let waiting jobs that name a model go on", "berth migrate jobs --yes")
        for command in commands(limits):
            yield Step("Move a limit by model to its licence", command)
        if nodes:
            yield Step("Give the nodes back to jobs", f"berth migrate resume {fold(nodes)}")
    if rung == "sharing":
        gpu_nodes = tuple(sorted_nodes(files.texts.nodes))
        yield Step("Start berth-guard on each GPU node", "systemctl enable --now berth-guard", gpu_nodes)
        yield Step("Check each GPU node", "berth doctor node", gpu_nodes)
    yield Step("Check", "berth doctor")


def steps_back(
    rung: str, came_from: str, nodes: Sequence[str], files: Files, back: Sequence[str], *, forget: bool = False
) -> Iterator[Step]:
    """Yields the steps that undo a rung, `undo` among them; `forget` if Slurm knows jobs that shared GPUs there."""
    exact = rung == "exact"
    controllers = tuple(_controllers(files))
    last = came_from in ("observe", "advise")
    if exact and nodes:
        yield from _emptied(nodes)
    if forget:
        yield Step("Wait until Slurm has forgotten the jobs that ran there", f"squeue -w {fold(nodes)} -t all")
    if rung == "sharing":
        yield Step("Let no new job share, and wait for those that do", "berth queue")
        gpu_nodes = tuple(sorted_nodes(files.texts.nodes))
        yield Step("Stop berth-guard on each GPU node", "systemctl disable --now berth-guard", gpu_nodes)
    if last or came_from == "observe":
        yield Step(
            "Stop berthd on each controller, which gives waiting jobs back", "systemctl stop berthd", controllers
        )
        yield Step("Give all waiting jobs back for good", "berth release --all")
    yield Step("Restore the files", "berth migrate undo")
    yield from _restart(rung, nodes, files, all_slurmds=exact or rung == "sharing")
    if exact:
        yield Step("Let waiting jobs that name a model go on", "berth migrate jobs --yes")
    for command in back:
        yield Step("Restore a limit by model", command)
    if exact and nodes:
        yield Step("Give the nodes back to jobs", f"berth migrate resume {fold(nodes)}")
    if came_from != "observe":
        yield Step("Start berthd on each controller", "systemctl restart berthd", controllers)
        yield Step("Check", "berth doctor")


def _emptied(nodes: Sequence[str]) -> Iterator[Step]:
    yield Step("Drain the nodes", f"berth migrate drain {fold(nodes)}")
    yield Step("Wait until no job runs there", f"squeue -w {fold(nodes)} -t R,CG,S")


def _restart(rung: str, nodes: Sequence[str], files: Files, *, all_slurmds: bool) -> Iterator[Step]:
    yield Step(_copies(files))
    own = fold(nodes)
    if rung == "exact" and nodes:
        # One that registers with its old GPUs at a controller with the new configuration would be drained.
        yield Step(f"Stop slurmd on {own}", "systemctl stop slurmd", tuple(nodes))
    controllers = _controllers(files)
    where = f": first {', '.join(controllers[1:])}, then {controllers[0]}" if len(controllers) > 1 else ""
    yield Step(f"Restart slurmctld{where}", "systemctl restart slurmctld", (*controllers[1:], controllers[0]))
    if rung == "exact" and nodes:
        yield Step(f"Start slurmd on {own}", "systemctl start slurmd", tuple(nodes))
    done = set(nodes) if rung == "exact" else set()
    others = [node for node in sorted_nodes(listed(files.texts.slurm_conf)) if node not in done]
    if all_slurmds and others:
        yield from _while_no_job_starts(
            others,
            Step(
                f"Restart slurmd on all {'other ' if done else ''}nodes; jobs go on meanwhile",
                "systemctl restart slurmd",
                tuple(others),
            ),
        )
    if _configless(files):
        # A slurmctld that starts sends its files to nobody; a slurmd asks for them at its own start only.
        yield Step("Let slurmds and sackds fetch Slurm's files", "scontrol reconfigure")


def _copies(files: Files) -> str:
    controllers = _controllers(files)
    gone = "remove there what is gone here"
    if not _configless(files):
        return f"Copy the changed files to all controllers, compute and login nodes that do not share them; {gone}"
    others = f", and the other changed files to {', '.join(controllers[1:])}" if len(controllers) > 1 else ""
    return f"Copy berth.conf to all compute and login nodes{others}; {gone}"


def _configless(files: Files) -> bool:
    return "enable_configless" in value_of(files.texts.slurm_conf, "SlurmctldParameters")


def _while_no_job_starts(nodes: Sequence[str], step: Step) -> Iterator[Step]:
    """Yields a restart of the slurmds of these nodes between a drain and a resume.

    Slurm puts a job back into the queue, or lets its time run out, if its slurmd is away in the moment of its start.
    """
    yield Step("Let no job start there for a moment", f"berth migrate drain {fold(nodes)}")
    yield Step("Wait until no job is starting there", f"squeue -w {fold(nodes)} -t CF")
    yield step
    yield Step("Let jobs start there again", f"berth migrate resume {fold(nodes)}")


def notes(files: Files, says: SlurmSays, kind: str, rung: Rung, nodes: Sequence[str]) -> Iterator[str]:
    """Yields one line for each of the site's ways of working that matters for the step."""
    conf = files.texts.slurm_conf
    gpu_nodes = sorted_nodes(files.texts.nodes)
    if rung == "observe":
        return
    if len(files.slurm_conf) > 1:
        yield f"Include: slurm.conf is {len(files.slurm_conf)} files; each setting is changed where it stands"
    controllers = _controllers(files)
    folder = files.slurm_conf[0].parent
    if _configless(files):
        yield (
            f"Configless: write the files on {', '.join(controllers)} only; slurmds and sackds fetch slurm.conf,"
            " gres.conf and plugstack.conf, but not berth.conf: copy that to /etc/slurm of login and compute nodes"
        )
    elif _SHARED.match(kind):
        yield f"Shared configuration: {folder} is on {kind}; the files have to be written once"
    else:
        named = some(gpu_nodes)
        yield (
            f"Copied configuration: {folder} is on {kind or 'a file system of its own'}; copy the changed files to"
            f" {', '.join(controllers)}, all compute nodes ({named} and those without GPUs) and login nodes"
        )
    if len(controllers) > 1:
        yield (
            f"Backup controllers: {', '.join(controllers)} each need the plugins, berth.conf and berthd;"
            " restart the backups first, so that each of them could take over"
        )
    yield from _releases(says)
    if len(says.clusters) > 1:
        own = value_of(conf, "ClusterName")
        yield (
            f"Clusters {', '.join(says.clusters)} share slurmdbd: only {own} changes; a QOS is of all of them, so keep"
            " its limits by gres/gpu:MODEL for the others; jobs sent there by -M need the plugins too"
        )
    yield (
        "Login nodes need spank_berth.so and cli_filter_berth.so before plugstack.conf and slurm.conf name them,"
        " or each sbatch there ends with an error"
    )
    if files.job_submit_lua and "lua" in words_of(value_of(conf, "JobSubmitPlugins")):
        yield from _lua(files, rung)
    if rung == "exact":
        yield from _exact_notes(files, nodes, gpu_nodes)
        yield from counting(says.reservations, nodes)


def _lua(files: Files, rung: Rung) -> Iterator[str]:
    yield "job_submit.lua stays as it is and runs before berth"
    typed = re.findall(r"gpu:[A-Za-z][\w-]*", files.job_submit_lua)
    if typed and rung in ("exact", "sharing"):
        yield f"job_submit.lua names {some(sorted(set(typed)))}: it sees what users write, so this goes on to work"
    # With the exact layout a job's record has gpu:g0:1 where users wrote gpu:2.
    if rung in ("exact", "sharing") and "slurm_job_modify" in files.job_submit_lua and "gres" in files.job_submit_lua:
        yield "job_submit.lua may read gres in slurm_job_modify: a pinned job has gpu:g0:1 there, look at that function"


def _releases(says: SlurmSays) -> Iterator[str]:
    if not says.answers:
        yield "Slurm does not answer here: releases, jobs and limits were not looked at"
        return
    by_release: dict[str, list[str]] = {}
    for node, release in says.slurmds.items():
        if release and _major(release) != _major(says.version):
            by_release.setdefault(_major(release), []).append(node)
    for release, old in by_release.items():
        yield (
            f"slurmd {release} on {some(old)}, older than slurmctld {_major(says.version)}: job_submit_berth.so is"
            f" for the controllers' release, spank_berth.so and berth-notice there are those built for {release}"
        )


def _exact_notes(files: Files, nodes: Sequence[str], gpu_nodes: Sequence[str]) -> Iterator[str]:
    rest = [node for node in gpu_nodes if node not in nodes and not files.texts.nodes[node].exact]
    if rest:
        yield (
            f"Mixed cluster: {some(rest)} keep their layout; there Slurm alone chooses GPUs, and models are features"
            " everywhere"
        )
    if files.texts.gres_conf and any(
        entry.pairs and entry.get("NodeName") is None and entry.get("Name") for entry in entries(files.texts.gres_conf)
    ):
        yield (
            "gres.conf has lines without NodeName: they are tied to the nodes that keep their layout; nodes with a"
            " gres.conf of their own need this one"
        )
    if any(node in nodes and "mps:" in one.gres for node, one in files.texts.nodes.items()):
        yield "The GRES mps of these nodes goes: shards take its place, and jobs that ask for mps do not start there"
    if "DefCpuPerGPU" in " ".join(files.texts.slurm_conf):
        yield (
            "DefCpuPerGPU is set: Slurm never starts a job with it and typed GPUs; take it out, and set def_cpu_per_gpu"
            " in [hook] of berth.conf"
        )


def _controllers(files: Files) -> list[str]:
    found = []
    for text in files.texts.slurm_conf:
        found += [
            re.sub(r"\(.*\)", "", entry.get("SlurmctldHost") or "")
            for entry in entries(text)
            if entry.key == "slurmctldhost"
        ]
    return found or [value_of(files.texts.slurm_conf, "ControlMachine") or "the controller"]


def _major(release: str) -> str:
    return ".".join(release.split(".")[:2])


def model_users(lines: Sequence[str], models: Mapping[str, object] | Sequence[str]) -> dict[str, list[str]]:
    """Returns who named a model in a command line of `sacct -o User,SubmitLine`: users by model, most jobs first."""
    found: dict[str, dict[str, int]] = {}
    for line in lines:
        user, _, command = line.partition("|")
        for model in models:
            if re.search(rf"gpu[\w-]*[=: ](gpu:)?{re.escape(model)}(?=[:= ]|$)|gpu:{re.escape(model)}\b", command):
                users = found.setdefault(model, {})
                users[user] = users.get(user, 0) + 1
    return {
        model: [f"{user} ({count})" for user, count in sorted(users.items(), key=lambda one: (-one[1], one[0]))]
        for model, users in found.items()
    }
