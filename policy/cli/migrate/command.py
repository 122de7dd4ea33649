"""The command `berth migrate`, which takes a site from plain Slurm to Berth rung by rung, and back."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policy.cli.migrate import advice, limits, rungs, waiting
from policy.cli.migrate.conf_text import value_of
from policy.cli.migrate.drained import NodeUpdate, drain, node_states, resume
from policy.cli.migrate.node_lines import ExactNode, sorted_nodes
from policy.cli.migrate.rungs import RUNGS, ExactWords, Rung, rung_of
from policy.cli.migrate.site import Files, SlurmSays, ask_slurm, file_system, jobs_on, read_files, sharing_jobs
from policy.cli.migrate.state import Change, ChangeStore, FileChange, content_of, difference, new_change
from policy.cli.output import print_json, some
from policy.formats.errors import BerthError, SlurmError, UsageError
from policy.formats.hostlist import expand, fold

if TYPE_CHECKING:
    from policy.cli.migrate.limits import Limit
    from policy.site.config import Config

STATE = Path("/var/lib/berth/migrate")
_SINCE = "now-7days"
_REGISTERS = 60.0
"""Seconds within which a slurmd registers after its start."""


def register(commands: Any) -> None:
    """Adds `migrate` and its commands to the parser of `berth`."""
    parser = commands.add_parser("migrate", help="go from plain Slurm to Berth in steps, and back (admins)")
    below = parser.add_subparsers(dest="migrate_command", metavar="COMMAND", required=True)
    plan = below.add_parser("plan", help="show what a step of docs/rollout.md changes, and the way to it")
    plan.add_argument("rung", choices=RUNGS, help="the step: observe, advise, exact or sharing")
    plan.add_argument("nodes", nargs="?", metavar="NODES", help="for exact: only these nodes, such as n[1-4]")
    plan.add_argument("--json", action="store_true", help="print JSON")
    _common(plan, plans=True)
    apply = below.add_parser("apply", help="write the files of a step, after a question")
    apply.add_argument("nodes", nargs="?", metavar="NODES", help="the exact layout for these nodes, such as n[1-4]")
    apply.add_argument("--rung", choices=RUNGS, help="the step (default: exact with NODES, else the next one)")
    _common(apply, plans=True)
    _asking(apply)
    status = below.add_parser("status", help="show the step in force, and what was changed on the way to it")
    status.add_argument("--json", action="store_true", help="print JSON")
    _common(status)
    undo = below.add_parser("undo", help="restore the files as they were before the last step, byte for byte")
    undo.add_argument("--all", action="store_true", help="undo all steps")
    _common(undo)
    _asking(undo)
    jobs = below.add_parser(
        "jobs", help="rewrite waiting jobs that name a GPU model in a form that the new layout lacks"
    )
    jobs.add_argument("--yes", action="store_true", help="do not ask")
    for name, help_text, turn in (
        ("drain", "let no job start on these nodes; those that somebody else has drained stay as they are", drain),
        ("resume", "give these nodes back to jobs, but for those that somebody else has drained", resume),
    ):
        one = below.add_parser(name, help=help_text)
        one.add_argument("nodes", metavar="NODES", help="such as n[1-4]")
        one.set_defaults(run=_turn, turn=turn)
    for one, run in ((plan, _plan), (apply, _apply), (status, _status), (undo, _undo), (jobs, _jobs)):
        one.set_defaults(run=run)


def _common(parser: argparse.ArgumentParser, *, plans: bool = False) -> None:
    parser.add_argument(
        "--state", type=Path, metavar="DIR", default=STATE, help=f"where copies are kept (default: {STATE})"
    )
    if plans:
        parser.add_argument(
            "--topology-dir", type=Path, metavar="DIR", help="topology files (default: topology_dir of berth.conf)"
        )
        parser.add_argument(
            "--no-cores", action="store_true", help="leave Cores= out of gres.conf: any core may go with any GPU"
        )


def _asking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--no-checks", action="store_true", help="write though Slurm does not say that the nodes are empty"
    )


@dataclass(frozen=True, slots=True)
class _Site:
    """Holds the files, Berth's configuration and Slurm's answers that one command works with."""

    files: Files
    config: Config
    says: SlurmSays


def _site() -> _Site:
    from policy.site.config import config_path, load  # noqa: PLC0415 - keeps `berth --help` fast

    slurm_conf = Path(os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf"))
    files = read_files(slurm_conf, config_path())
    says = ask_slurm(_printed, value_of(files.texts.slurm_conf, "AccountingStorageType"))
    return _Site(files, load(config_path()), says)


def _printed(*command: str) -> bytes:
    from policy.slurm.by_command.command import run_command  # noqa: PLC0415

    return run_command(*command)


@dataclass(frozen=True, slots=True)
class _Planned:
    rung: Rung
    nodes: tuple[str, ...]
    files: tuple[FileChange, ...]
    limits: tuple[Limit, ...]
    steps: tuple[advice.Step, ...]
    notes: tuple[str, ...]
    noticed: tuple[str, ...]


def _planned(options: argparse.Namespace, site: _Site, rung: Rung, only: str | None) -> _Planned:
    texts = site.files.texts
    if only is not None and rung != "exact":
        raise UsageError(f"NODES belongs to the rung exact only; {rung} is for the whole cluster")
    wanted = _wanted(options, site, only) if rung == "exact" else {}
    found = tuple(_limits(site)) if rung == "exact" else ()
    limited = frozenset(limit.model for limit in found)
    new = rungs.changed(texts, rung, ExactWords(wanted, limited))
    changes = tuple(site.files.changes(new))
    nodes = tuple(sorted_nodes(wanted))
    moved = {path.name for path in (change.path for change in changes)}
    steps = tuple(advice.steps(rung, nodes, site.files, found)) if moved or rung == "observe" else ()
    kind = file_system(site.files.slurm_conf[0].parent)
    return _Planned(
        rung, nodes, changes, found, steps,
        tuple(advice.notes(site.files, site.says, kind, rung, nodes)),
        tuple(_noticed(site, rung, found)),
    )  # fmt: skip


def _wanted(options: argparse.Namespace, site: _Site, only: str | None) -> dict[str, ExactNode]:
    """Returns the exact words of the nodes asked for: those of all GPU nodes if none are named."""
    from policy.cli.migrate.exact import exact_words  # noqa: PLC0415  reads topology files

    present = site.files.texts.nodes
    if not present:
        raise UsageError(f"{site.files.slurm_conf[0]} has no node with Gres=gpu")
    names = list(dict.fromkeys(expand(only))) if only is not None else sorted_nodes(present)
    if unknown := [name for name in names if name not in present]:
        raise UsageError(f"{some(unknown)}: slurm.conf has no GPUs there; name nodes with Gres=gpu")
    names = [name for name in names if not present[name].exact]
    return exact_words(names, options.topology_dir or site.config.topology_dir, cores=not options.no_cores)


def _limits(site: _Site) -> Iterable[Limit]:
    if not site.says.accounting:
        return
    words = ("sacctmgr", "-nP", "show", "qos", f"format={','.join(limits.QOS_COLUMNS)}")
    yield from limits.qos(_printed(*words).decode("utf-8", "replace").splitlines())
    words = ("sacctmgr", "-nP", "show", "assoc", f"format={','.join(limits.ASSOCIATION_COLUMNS)}")
    cluster = value_of(site.files.texts.slurm_conf, "ClusterName")
    yield from limits.associations(_printed(*words).decode("utf-8", "replace").splitlines(), cluster)


def _noticed(site: _Site, rung: Rung, found: Sequence[Limit]) -> Iterable[str]:
    """Yields who would notice: limits and weights by model, and who names a model."""
    if rung in ("observe", "advise"):
        return
    for limit in found:
        yield f"{limit.title}: by a licence from then on"
    counted = rungs.models_counted(site.files.texts.slurm_conf)
    if counted:
        yield (f"slurm.conf counts {', '.join(sorted(counted))}: by licences from then on, which running jobs lack")
    models = {model for node in site.files.texts.nodes.values() for model in (*node.models, *node.features)}
    if not models or not site.says.accounting:
        return
    try:
        lines = (
            _printed("sacct", "-anPX", "-S", _SINCE, "-o", "User,SubmitLine").decode("utf-8", "replace").splitlines()
        )
    except SlurmError:
        return
    for model, users in sorted(advice.model_users(lines, sorted(models)).items()):
        yield f"{model} is named in the commands of {some(users)} in the last 7 days: it goes on to work, as a feature"
    if lines:
        yield "sacct has no #SBATCH lines: scripts that name a model there go on to work too"


def _plan(options: argparse.Namespace) -> int:
    site = _site()
    found = _planned(options, site, options.rung, options.nodes)
    if options.json:
        print_json(
            {
                "in_force": rung_of(site.files.texts),
                "rung": found.rung,
                "nodes": list(found.nodes),
                "files": [{"path": str(file.path), "diff": difference(file)} for file in found.files],
                "steps": [asdict(step) for step in found.steps],
                "means": list(found.notes),
                "noticed": list(found.noticed),
            }
        )
        return 0
    _show(found, rung_of(site.files.texts))
    return 0


def _show(found: _Planned, present: Rung) -> None:
    out = sys.stdout.write
    out(f"In force: {present}. Planned: {found.rung}{f' on {fold(found.nodes)}' if found.nodes else ''}.\n\n")
    for file in found.files:
        out(f"{difference(file)}\n")
    if not found.files:
        out("No file changes.\n\n")
    _section("What it means here", found.notes)
    _section("Who would notice", found.noticed)
    _steps("Steps", found.steps)


def _section(title: str, lines: Sequence[str]) -> None:
    if lines:
        sys.stdout.write(f"{title}:\n" + "".join(f"  * {line}\n" for line in lines) + "\n")


def _steps(title: str, steps: Sequence[advice.Step]) -> None:
    if steps:
        sys.stdout.write(f"{title}:\n")
    for number, step in enumerate(steps, 1):
        sys.stdout.write(f"  {number}. {step.text}{f': {step.command}' if step.command else ''}\n")


def _apply(options: argparse.Namespace) -> int:
    site = _site()
    present = rung_of(site.files.texts)
    rung = options.rung or ("exact" if options.nodes else _next(site, present))
    found = _planned(options, site, rung, options.nodes)
    _show(found, present)
    if not found.files:
        return 0
    if found.nodes and not options.no_checks:
        _must_be_empty(site, found.nodes)
    if not _agreed(options, f"Write {len(found.files)} files?"):
        return 1
    store = ChangeStore(options.state)
    back = limits.commands(found.limits, back=True)
    with store.locked():
        if any(content_of(file.path) != file.before for file in found.files):
            raise BerthError("a file was changed while this was shown; run berth migrate apply again")
        done = store.apply(new_change(rung, present, found.nodes, found.files, back))
    sys.stdout.write(f"Written: {', '.join(str(file.path) for file in found.files)} (change {done.number}).\n")
    sys.stdout.write("Go on with the step after berth migrate apply.\n")
    return 0


def _next(site: _Site, present: Rung) -> Rung:
    if present == "exact" and not all(node.exact for node in site.files.texts.nodes.values()):
        return "exact"
    return RUNGS[min(RUNGS.index(present) + 1, len(RUNGS) - 1)]


def _must_be_empty(site: _Site, nodes: Sequence[str]) -> None:
    """Raises BerthError if a job could be hurt: it holds GPUs there under names that are about to change."""
    if not site.says.answers:
        raise BerthError("Slurm does not say whether the nodes are empty; try again, or with --no-checks")
    busy = jobs_on(_printed, nodes)
    if busy:
        named = some([f"{node} has {some(jobs)}" for node, jobs in busy.items()])
        raise BerthError(f"jobs are on these nodes: {named}; drain the nodes and wait for the jobs' end")
    open_ones = [node for node in nodes if node not in site.says.states or not site.says.states[node].closed]
    if open_ones:
        raise BerthError(
            f"{some(open_ones)}: jobs may start there at any time; first berth migrate drain {fold(open_ones)}"
        )


def _agreed(options: argparse.Namespace, question: str) -> bool:
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("nobody is there to be asked; --yes writes without a question")
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _status(options: argparse.Namespace) -> int:
    site = _site()
    nodes = site.files.texts.nodes
    exact = [name for name, node in nodes.items() if node.exact]
    changes = ChangeStore(options.state).changes()
    touched = {file.path: file for change in changes for file in change.files}
    others = [str(path) for path, file in touched.items() if content_of(path) != file.after]
    rung = rung_of(site.files.texts)
    if options.json:
        print_json(
            {
                "rung": rung,
                "gpu_nodes": len(nodes),
                "exact_nodes": exact,
                "changes": [
                    {
                        "number": change.number,
                        "rung": change.rung,
                        "nodes": list(change.nodes),
                        "when": int(change.when),
                        "files": [str(file.path) for file in change.files],
                    }
                    for change in changes
                ],
                "changed_by_others": others,
                "steps_back": [asdict(step) for step in _steps_back(changes[-1:], site)],
            }
        )
        return 0
    sys.stdout.write(f"In force: {rung}; {len(exact)} of {len(nodes)} GPU nodes have the exact layout\n")
    for change in changes:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(change.when))
        where = f" on {fold(change.nodes)}" if change.nodes else ""
        named = ", ".join(str(file.path) for file in change.files)
        sys.stdout.write(f"{change.number}. {when} {change.rung}{where}: {named}\n")
    if others:
        sys.stdout.write(f"Changed since by others: {', '.join(others)}; berth migrate undo refuses and shows how\n")
    return 0


def _undo(options: argparse.Namespace) -> int:
    store = ChangeStore(options.state)
    changes = store.changes()
    if not changes:
        raise BerthError(f"{options.state}: nothing is left to undo")
    undone = list(reversed(changes)) if options.all else changes[-1:]
    # Of a file that several steps changed, the last one tells what it should be now.
    for file in {file.path: file for change in reversed(undone) for file in change.files}.values():
        present = content_of(file.path)
        if present not in (file.after, file.before):
            sys.stdout.write(difference(FileChange(file.path, file.after, present)))
            store.refuse(undone, file)
    site = _site()
    for change in undone:
        _show_undo(change, site)
    nodes = sorted_nodes({node for change in undone for node in change.nodes})
    if not options.no_checks:
        if nodes:
            _must_be_empty(site, nodes)
        if known := _known_shares(site, nodes):
            raise BerthError(
                f"jobs {some(known)} shared GPUs of these nodes, and slurmctld would crash at its next start while it"
                f" knows them; wait until squeue -w {fold(nodes)} -t all shows none (MinJobAge after their end)"
            )
        if any(change.rung == "sharing" for change in undone):
            _none_shares(site)
    if not _agreed(options, f"Restore the files of {len(undone)} steps?"):
        return 1
    with store.locked():
        for change in undone:
            store.undo(change)
            sys.stdout.write(f"Undone: change {change.number} ({change.rung}).\n")
    return 0


def _steps_back(changes: Sequence[Change], site: _Site) -> list[advice.Step]:
    return [
        step
        for change in changes
        for step in advice.steps_back(
            change.rung,
            change.came_from,
            change.nodes,
            site.files,
            change.back,
            forget=bool(change.rung == "exact" and _known_shares(site, change.nodes)),
        )
    ]


def _show_undo(change: Change, site: _Site) -> None:
    for file in change.files:
        sys.stdout.write(f"{difference(FileChange(file.path, content_of(file.path), file.before))}\n")
    _steps(f"Steps to undo {change.rung}", _steps_back([change], site))


def _none_shares(site: _Site) -> None:
    if not site.says.answers:
        raise BerthError("Slurm does not say whether jobs share GPUs; try again, or with --no-checks")
    shares = sharing_jobs(_printed, "R,S,CG,ST")
    if shares:
        raise BerthError(f"jobs {some(shares)} share GPUs and need berth-epilog at their end; wait for it")


def _known_shares(site: _Site, nodes: Sequence[str]) -> list[str]:
    """Returns the jobs that shared GPUs of nodes which lose their shards while others keep theirs.

    slurmctld 24.11.5 crashes at each start while it knows such a job, also one that has ended, and 26.05.3 has the same
    lines: it looks for the node's shards to write down which ones the job had. Without any node
    with shards it passes the job's over.
    """
    others = any(node.exact and name not in nodes for name, node in site.files.texts.nodes.items())
    return sharing_jobs(_printed, "all", nodes) if nodes and others and site.says.answers else []


def _turn(options: argparse.Namespace) -> int:
    asked = list(dict.fromkeys(expand(options.nodes)))
    ends = time.monotonic() + _REGISTERS
    while True:
        lines = _printed("scontrol", "show", "node", "--oneliner").decode("utf-8", "replace").splitlines()
        found: NodeUpdate = options.turn(asked, node_states(lines))
        try:
            if found.command:
                _printed(*found.command)
            break
        except SlurmError as problem:
            # A node whose slurmd has just started cannot be resumed before it has registered; others are resumed.
            if "Invalid node state" not in str(problem) or time.monotonic() > ends:
                raise
            time.sleep(1)
    for line in (*found.told, *([" ".join(found.command)] if found.command else [])):
        sys.stdout.write(f"{line}\n")
    return 0


def _jobs(options: argparse.Namespace) -> int:
    files = _site().files
    lines = _printed("scontrol", "show", "job", "--oneliner").decode("utf-8", "replace").splitlines()
    licenses = value_of(files.texts.slurm_conf, "Licenses")
    found = list(waiting.rewrites(lines, files.texts.nodes, licenses))
    for words in (words for one in found for words in one.commands):
        sys.stdout.write(f"{' '.join(words)}\n")
    if not found:
        sys.stdout.write("No waiting job names a model in a way that this layout does not know.\n")
        return 0
    if not _agreed(options, f"Change {len(found)} jobs?"):
        return 1
    failed = []
    for one in found:
        try:
            for words in one.commands:
                _printed(*words)
        except SlurmError as problem:
            failed.append(f"job {one.job}: {problem}")
    if failed:
        raise SlurmError(f"{some(failed)}; look at these jobs with scontrol show job")
    return 0
