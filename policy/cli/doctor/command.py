# SPDX-License-Identifier: Apache-2.0
"""The command `berth doctor`, which checks all that Berth needs, and says how to mend what is missing."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from policy.cli import ask
from policy.cli.doctor.conf import unknown_names, wrong_tables
from policy.cli.doctor.models import Printed, by_model, nothing
from policy.cli.doctor.steps import EXACT, Name, plugins, step_of
from policy.cli.doctor.upgrade import PLUGINS, built_for
from policy.cli.output import built, installed, some, tell_checks
from policy.cli.reservations import counting
from policy.cli.topo.sources import fabric_of
from policy.formats.errors import BerthError
from policy.formats.slurm_facts import NodeFacts, PartitionFacts
from policy.site.auth.credentials import Credentials
from policy.site.auth.sack import SOCKETS
from policy.site.config import Config, config_path, fabric_file, load
from policy.slurm.by_command.command import CommandGateway, run_command
from policy.slurm.gateways import open_gateway
from policy.slurm.interface import Gateway
from policy.slurm.releases import NEWEST, OLDEST, release_of, why_only_watched
from topology.errors import TopologyError
from topology.files import load_directory
from topology.model import Machine


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    ok: bool
    text: str


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser("doctor", help="check Slurm's configuration and Berth's own (admins)")
    parser.add_argument(
        "where",
        nargs="?",
        choices=["node", "release"],
        help="node: check this compute node instead; release: try held jobs of each form on a newer release of Slurm",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--before-upgrade",
        nargs="?",
        const="",
        metavar="RELEASE",
        help="check before an upgrade of Slurm to RELEASE, such as 26.05.5, or of Berth alone, and say in which order",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs all checks; exit status 1 if one failed."""
    if options.where == "node":
        from prolog_epilog import doctor as node_doctor  # noqa: PLC0415 - keeps `berth --help` fast
        from prolog_epilog.node.paths import Paths  # noqa: PLC0415
        from prolog_epilog.settings import config as node_config  # noqa: PLC0415

        path, slurm_conf = node_config.find(os.environ), os.environ.get("SLURM_CONF", "")
        return tell_checks(options, map(astuple, node_doctor.examine(path, Paths(), slurm_conf)))

    config = load(config_path())
    if options.where == "release":
        from policy.cli.doctor import release  # noqa: PLC0415 - keeps `berth --help` fast

        return release.run(options, config, open_gateway(config.gateway))
    if options.before_upgrade is not None:
        return _before_upgrade(options, CommandGateway(), config, run_command)
    found = examine(CommandGateway(), config, lambda: ask.status(config.socket), run_command)
    return tell_checks(options, map(astuple, found))


def _before_upgrade(options: argparse.Namespace, gateway: Gateway, settings: Config, printed: Printed) -> int:
    """Runs the checks before an upgrade; exit status 1 if one failed."""
    from policy.cli.doctor.upgrade import before_upgrade  # noqa: PLC0415 - keeps `berth --help` fast

    rows, steps = before_upgrade(gateway, settings, printed, options.before_upgrade)
    code = tell_checks(options, rows, order=steps)
    if not options.json:
        sys.stdout.writelines(f"{number}. {step}\n" for number, step in enumerate(steps, 1))
    return code


def examine(
    gateway: Gateway, settings: Config, status: Callable[[], Mapping[str, str]], printed: Printed = nothing
) -> Iterator[Finding]:
    """Yields all checks, in the order in which an admin would mend problems."""
    try:
        version = gateway.version()
        config = gateway.config()
        reading = gateway.read(ended=False)
    except BerthError as problem:
        yield Finding("Slurm", ok=False, text=str(problem))
        return
    unknown = [*unknown_names(settings, (one.name for one in reading.partitions), printed)]
    wrong_conf = "; ".join(filter(None, [wrong_tables(config_path()), *unknown]))
    yield Finding("berth.conf", not wrong_conf, wrong_conf or "its tables and the names in it are known")
    gpu_nodes = [node for node in reading.nodes if node.gpus or node.loose]
    step = step_of(config, gpu_nodes, plain=settings.plain)
    pins, exact = step.name != "observe", step.name in EXACT
    yield _berth(Path(config.get("PluginDir", "").split(":")[0]))
    yield _version(version, step.name)
    yield Finding("rollout", not step.wrong, step.wrong or step.text)
    if exact:
        # If its pins name no GPUs, Berth never changes a job's number of nodes, so no job can shrink.
        yield _parameter(config)
    if pins:
        yield _preemption(config, pin_ahead=settings.settings.pin_ahead, moving=settings.settings.moving.enabled)
    if exact:
        yield _gres_types(config)
        yield _cpus_by_gpu(config, reading.partitions)
    if pins:
        yield _plugin(config)
    if exact:
        wrong = by_model(config, gpu_nodes, printed)
        yield Finding("limits by model", not wrong, wrong or "all that there are count")
        yield from (_types(gpu_nodes), _seats(gpu_nodes))
        counted = "; ".join(counting(reading.reservations, {node.name for node in gpu_nodes if node.gpus}))
        yield Finding("reservations", ok=True, text=counted or "none counts GPUs of such nodes")
        if settings.skipped_shards:
            yield _skipped_shards(gpu_nodes, settings.skip_partitions)
        yield _scripts(config)
    else:
        yield Finding("limits by model", ok=True, text="as Slurm counts them: no request and no GRES type is changed")
    machines, problems = _machines(settings.topology_dir, needed=exact)
    yield _topologies(gpu_nodes, machines, problems, settings.topology_dir, step.name)
    yield _fabric(
        machines, [node.name for node in reading.nodes], settings.fabric, step.name, by_blocks=_by_blocks(config)
    )
    yield from _blocks(reading.nodes, settings.fabric, printed, by_blocks=_by_blocks(config))
    yield from _credentials(config, settings)
    yield _daemon(status, needed=pins)


def _daemon(status: Callable[[], Mapping[str, str]], *, needed: bool) -> Finding:
    try:
        found = status()
    except BerthError as problem:
        return Finding("berthd", ok=not needed, text=str(problem) if needed else "not needed: it does not run")
    bad = found.get("problem")
    return Finding("berthd", ok=not bad, text=bad or f"answers, {found.get('answers', '0')} decisions since its start")


def _berth(folder: Path) -> Finding:
    """Returns the finding on the release of Berth, and on the releases that it and the plugins were built for."""
    try:
        release = built_for((folder / PLUGINS[0]).read_bytes())
    except OSError:
        release = ""
    plugins_here = f"plugins for Slurm {release}" if release else "no plugins here"
    return Finding("Berth", ok=True, text=f"{installed()}, {built() or 'from a checkout'}, {plugins_here}")


def _version(text: str, step: Name) -> Finding:
    release = release_of(text)
    if release >= OLDEST and not (why := why_only_watched(text)):
        return Finding("Slurm version", ok=True, text=text)
    if step == "observe":
        return Finding("Slurm version", ok=True, text=f"{text}; berth observe was tried with 24.11 to 26.05 only")
    if release > NEWEST:
        return Finding("Slurm version", ok=False, text=f"{why}; until it has passed, Berth leaves all jobs to Slurm")
    wrong = ", older ones give updated typed GRES to the wrong GPUs" if step in EXACT else ""
    return Finding("Slurm version", ok=False, text=f"{text}; Berth supports 24.11 to 26.05{wrong}")


def _credentials(config: Mapping[str, str], settings: Config) -> Iterator[Finding]:
    """Checks the credentials by which berthd knows users on other hosts; yields nothing if it listens to none."""
    if not (settings.notice_port or settings.users_hosts):
        return
    here = Credentials(settings.munge_socket).name
    if config.get("AuthType") == "auth/slurm" != here:
        text = f"Slurm has auth/slurm, and none of its sockets is on this host ({SOCKETS[0]}); start its daemon here"
        yield Finding("credentials", ok=False, text=text)
        return
    kind = "Slurm's own" if here == "auth/slurm" else "MUNGE's"
    yield Finding("credentials", ok=True, text=f"{kind} vouch for users and nodes; users of this host need none")


def _parameter(config: Mapping[str, str]) -> Finding:
    ok = "disable_job_shrink" in config.get("SchedulerParameters", "").split(",")
    advice = "missing in SchedulerParameters; without it a pin that comes too late shrinks a running job"
    return Finding("disable_job_shrink", ok, "set" if ok else advice)


def _preemption(config: Mapping[str, str], *, pin_ahead: bool, moving: bool) -> Finding:
    kind = config.get("PreemptType", "")
    if kind in ("", "(null)", "preempt/none"):
        return Finding("preemption", ok=True, text="off")
    if not pin_ahead:
        return Finding("preemption", ok=True, text=f"{kind}, and only free places are pinned")
    first = "take enabled out of [moving] and " if moving else ""
    advice = f"{first}set [berthd] pin_ahead = false in berth.conf"
    return Finding(
        "preemption", ok=False, text=f"pins on places that are not free keep Slurm from preempting; {advice}"
    )


def _gres_types(config: Mapping[str, str]) -> Finding:
    missing = [name for name in ("gpu", "shard", "seat") if name not in config.get("GresTypes", "").split(",")]
    return Finding("GresTypes", not missing, f"add {', '.join(missing)}" if missing else "gpu, shard and seat")


def _cpus_by_gpu(config: Mapping[str, str], partitions: Sequence["PartitionFacts"]) -> Finding:
    places = ["slurm.conf"] if "DefCpuPerGPU" in config.get("JobDefaults", "") else []
    places += [f"partition {one.name}" for one in partitions if one.counts_cpus_by_gpu]
    advice = (
        f"set in {some(places)}; Slurm never starts a job with it and typed GPUs, set [hook] def_cpu_per_gpu instead"
    )
    return Finding("DefCpuPerGPU", not places, advice if places else "not set")


def _skipped_shards(nodes: Sequence["NodeFacts"], skipped: frozenset[str]) -> Finding:
    """Checks that shards that users ask for by hand are on no GPU of Berth's."""
    both = [node.name for node in nodes if node.shards and node.partitions & skipped and node.partitions - skipped]
    advice = (
        f"skipped partitions have shards on {some(both)}, which Berth's partitions have too: there a shard is a whole"
        ' GPU without a limit; set [hook] skipped_shards = "refuse", or give them nodes of their own'
    )
    return Finding("shards in skipped partitions", not both, advice if both else "on nodes of their own")


def _plugin(config: Mapping[str, str]) -> Finding:
    names = plugins(config)
    ok = names[-1] == "berth"
    text = "berth is the last one" if ok else f"{','.join(names)}; berth has to be there, as the last one"
    return Finding("JobSubmitPlugins", ok, text)


def _scripts(config: Mapping[str, str]) -> Finding:
    """Checks that Berth's Prolog and Epilog call the site's own: Slurm names only a job's last GPU to those."""
    own = [
        f"{key}={path}"
        for key, path in sorted(config.items())
        if re.fullmatch(r"(Prolog|Epilog)(\[\d+\])?", key) and path not in ("", "(null)") and "berth" not in path
    ]
    advice = f"{some(own)}: with one type for each GPU it learns the last GPU only; put it into chain_prolog or"
    text = f"{advice} chain_epilog of berth.conf, docs/admin/node.md" if own else "none but Berth's see the layout"
    return Finding("Prolog and Epilog", not own, text)


def _types(nodes: Sequence["NodeFacts"]) -> Finding:
    torn = [node.name for node in nodes if node.loose and node.gpus]
    text = f"{sum(not node.loose for node in nodes)} of {len(nodes)} GPU nodes with one GRES type for each GPU"
    return Finding(
        "GPU types", not torn, f"{some(torn)}: give each GPU its own type, see berth topo export" if torn else text
    )


def _seats(nodes: Sequence["NodeFacts"]) -> Finding:
    without = [node.name for node in nodes if node.seats < node.gpus]
    return Finding(
        "seats",
        not without,
        f"{some(without)}: no seat GRES, see berth topo export" if without else "one for each GPU",
    )


def _machines(folder: Path, *, needed: bool) -> tuple[dict[str, "Machine"], list[str]]:
    """Returns the machines of the topology files, and the problems in these files."""
    problems: list[str] = []
    if not (needed or folder.is_dir()):
        return {}, []
    try:
        return load_directory(folder, lambda problem: problems.append(str(problem))), problems
    except TopologyError as problem:
        return {}, [f"{problem}; run berth topo discover on each GPU node"] if needed else []


def _topologies(
    nodes: Sequence["NodeFacts"],
    machines: Mapping[str, "Machine"],
    problems: Sequence[str],
    folder: Path,
    step: Name,
) -> Finding:
    if problems:
        return Finding("topology files", ok=False, text=problems[0])
    missing = [node.name for node in nodes if node.name not in machines]
    if missing and step not in EXACT:
        described = f"{len(nodes) - len(missing)} of {len(nodes)} GPU nodes described"
        how = "berth observe --machine" if step == "observe" else f"berth topo discover, its output in {folder},"
        return Finding("topology files", ok=True, text=f"{described}; {how} describes others")
    if missing:
        text = f"none for {some(missing)}; run berth topo discover there, with its output in {folder}"
        return Finding("topology files", ok=False, text=text)
    unlike = [node.name for node in nodes if machines[node.name].size != node.gpus + node.loose]
    if unlike:
        text = f"{some(unlike)}: another number of GPUs than Slurm has; discover again"
        return Finding("topology files", ok=False, text=text)
    owner: dict[str, str] = {}
    for machine in machines.values():
        for gpu in machine.gpus:
            if owner.setdefault(gpu.uuid, machine.node) != machine.node:
                text = f"{gpu.uuid} is in the files of {owner[gpu.uuid]} and {machine.node}; discover both again"
                return Finding("topology files", ok=False, text=text)
    return Finding("topology files", ok=True, text=f"{len(nodes)} GPU nodes described")


def _by_blocks(config: Mapping[str, str]) -> bool:
    """Tells whether Slurm chooses nodes by blocks."""
    return config.get("TopologyPlugin") == "topology/block"


def _fabric(
    machines: Mapping[str, "Machine"], nodes: Sequence[str], choice: str, step: Name, *, by_blocks: bool
) -> Finding:
    """Checks that Slurm's file can be read, names existing nodes, and agrees with the machines."""
    from topology.providers import slurm_fabric  # noqa: PLC0415

    source = fabric_file(choice)
    if source is None and by_blocks:
        cure = "leave [berthd] fabric out of berth.conf" if choice else "name Slurm's file as [berthd] fabric"
        return _no_blocks(step, cure)
    if source is None:
        why = "switched off in berth.conf" if choice else "Slurm has no topology.conf or topology.yaml"
        return Finding("fabric", ok=True, text=f"no leaves and pods: {why}")
    try:
        read = slurm_fabric.read(source)
        fabric = fabric_of(machines.values(), source)
    except (BerthError, TopologyError) as problem:
        # This error ends berth observe too.
        return Finding("fabric", ok=False, text=str(problem))
    if by_blocks and fabric.blocks is None:
        return _no_blocks(step, f"{source} has no line of BlockName")
    try:
        read.check(nodes)
    except TopologyError as problem:
        return Finding("fabric", ok=step == "observe", text=str(problem))
    if fabric.conflicts:
        more = f" (and {len(fabric.conflicts) - 1} more)" if len(fabric.conflicts) > 1 else ""
        cure = "" if step == "observe" else f"; mend {source}, or run berth topo discover again"
        return Finding("fabric", ok=step == "observe", text=f"{fabric.conflicts[0]}{more}{cure}")
    counts = f"leaves {len(fabric.leaves)}, pods {len(fabric.pods)}, NVLink domains {len(fabric.domains)}"
    return Finding("fabric", ok=True, text=f"{counts}; from {source}")


def _blocks(nodes: Sequence["NodeFacts"], choice: str, printed: Printed, *, by_blocks: bool) -> Iterator[Finding]:
    """Checks that slurmctld places by the blocks of Slurm's file, if that can be read."""
    from policy.cli.doctor.blocks import not_in_force, torn  # noqa: PLC0415 - with numpy
    from topology.providers import slurm_fabric  # noqa: PLC0415

    source = fabric_file(choice) if by_blocks else None
    with suppress(TopologyError):
        if source and (read := slurm_fabric.read(source)).kind == "block":
            wrong = not_in_force(read, nodes, printed)
            text = f"slurmctld places by {len(read.leaves)} blocks"
            if apart := torn(read, nodes):
                text += f"; nodes of {apart} are no neighbours for Slurm, so a group's ranks may lie in several blocks"
            yield Finding("blocks", not wrong, wrong or text)


def _no_blocks(step: Name, cure: str) -> Finding:
    """Returns the finding if Slurm places by blocks that Berth does not know, with its effect on this step."""
    outcome = {
        "observe": "so gangs over several blocks are not shown",
        "advise": "so jobs on several nodes may get nodes on which Slurm does not start them, and wait up to 120 s",
    }.get(step, "so jobs on several nodes may never start")
    text = f"Slurm chooses by blocks (topology/block) and Berth knows none, {outcome}; {cure}"
    return Finding("fabric", ok=step == "observe", text=text)
