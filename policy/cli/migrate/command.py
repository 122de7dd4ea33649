# SPDX-License-Identifier: Apache-2.0
"""The command `berth migrate`, which takes a site from plain Slurm to Berth rung by rung, and back."""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from policy.cli.doctor import model_limits
from policy.cli.migrate import advice, rungs, waiting
from policy.cli.migrate.conf_text import value_of
from policy.cli.migrate.drained import DrainState, node_states, turn
from policy.cli.migrate.node_lines import ExactNode, sorted_nodes
from policy.cli.migrate.rungs import RUNGS, Rung, rung_of
from policy.cli.migrate.site import Files, jobs_on, read_files, sharing_jobs
from policy.cli.migrate.state import Change, ChangeStore, FileChange, content_of, difference
from policy.cli.output import print_json, some
from policy.cli.reservations import counting
from policy.formats.errors import BerthError, SlurmError, UsageError
from policy.formats.hostlist import expand, fold
from policy.site.config import config_path, load
from policy.slurm.by_command.command import run_command
from policy.slurm.by_command.text import reservations

STATE = Path("/var/lib/berth/migrate")
_REGISTERS = 60.0
"""Seconds within which a slurmd registers after its start."""


def register(commands: Any) -> None:
    """Adds `migrate` and its commands to the parser of `berth`."""
    parser = commands.add_parser("migrate", help="go from plain Slurm to Berth in steps, and back (admins)")
    below = parser.add_subparsers(dest="migrate_command", metavar="COMMAND", required=True)
    plan = below.add_parser("plan", help="show what a step of docs/admin/rollout.md changes, and the way to it")
    plan.add_argument("rung", choices=RUNGS[1:], help="the step: advise, exact or sharing")
    plan.add_argument("nodes", nargs="?", metavar="NODES", help="for exact: only these nodes, such as n[1-4]")
    apply = below.add_parser("apply", help="write the files of a step, after a question")
    apply.add_argument("nodes", nargs="?", metavar="NODES", help="the exact layout for these nodes, such as n[1-4]")
    apply.add_argument("--rung", choices=RUNGS[1:], help="the step (default: exact with NODES, else the next one)")
    status = below.add_parser("status", help="show the step in force, and what was changed on the way to it")
    undo = below.add_parser("undo", help="restore the files as they were before the last step, byte for byte")
    undo.add_argument("--all", action="store_true", help="undo all steps")
    jobs = below.add_parser(
        "jobs", help="rewrite waiting jobs that name a GPU model in a form that the new layout lacks"
    )
    drain = below.add_parser(
        "drain", help="let no job start on these nodes; those that were drained for another reason stay as they are"
    )
    resume = below.add_parser(
        "resume", help="give these nodes back to jobs, but for those that were drained for another reason"
    )
    for one in (drain, resume):
        one.add_argument("nodes", metavar="NODES", help="such as n[1-4]")
    for one in (plan, status):
        one.add_argument("--json", action="store_true", help="print JSON")
    for one in (plan, apply, status, undo):
        where = f"where copies are kept (default: {STATE})"
        one.add_argument("--state", type=Path, metavar="DIR", default=STATE, help=where)
    for one in (plan, apply):
        where = "topology files (default: topology_dir of berth.conf)"
        one.add_argument("--topology-dir", type=Path, metavar="DIR", help=where)
        cores = "leave Cores= out of gres.conf: any core may go with any GPU"
        one.add_argument("--no-cores", action="store_true", help=cores)
    for one in (apply, undo, jobs):
        one.add_argument("--yes", action="store_true", help="do not ask")
    for one in (apply, undo):
        checks = "write though Slurm does not say that the nodes are empty"
        one.add_argument("--no-checks", action="store_true", help=checks)
    runs = {plan: _plan, apply: _apply, status: _status, undo: _undo, jobs: _jobs, drain: _turn, resume: _turn}
    for one, run in runs.items():
        one.set_defaults(run=run)


def _files() -> Files:
    return read_files(Path(os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf")), config_path())


def _printed(*command: str) -> str:
    return run_command(*command).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Planned:
    rung: Rung
    nodes: tuple[str, ...]
    files: tuple[FileChange, ...]
    steps: tuple[advice.Step, ...]
    notes: tuple[str, ...]
    back: tuple[str, ...]
    """Commands that restore limits in slurmdbd."""


def _planned(options: argparse.Namespace, files: Files, rung: Rung) -> _Planned:
    if options.nodes is not None and rung != "exact":
        raise UsageError(f"NODES belongs to the rung exact only; {rung} is for the whole cluster")
    wanted = _wanted(options, files) if rung == "exact" else {}
    conf = files.texts.slurm_conf
    found: list[model_limits.Limit] = []
    if rung == "exact" and "slurmdbd" in value_of(conf, "AccountingStorageType"):
        found = list(model_limits.limits(_printed, value_of(conf, "ClusterName")))
    changes = tuple(files.changes(rungs.changed(files.texts, rung, wanted, {limit.model for limit in found})))
    nodes = tuple(sorted_nodes(wanted))
    steps = tuple(advice.steps(rung, nodes, files, model_limits.commands(found), _again(options))) if changes else ()
    notes = (*_notes(nodes), *advice.seen_by_tools(wanted)) if nodes else ()
    return _Planned(rung, nodes, changes, steps, notes, tuple(model_limits.commands(found, back=True)))


def _again(options: argparse.Namespace) -> str:
    """Returns the options with which a later `apply` or `undo` does what was shown."""
    words = [] if options.state == STATE else ["--state", str(options.state)]
    if folder := getattr(options, "topology_dir", None):
        words += ["--topology-dir", str(folder)]
    if getattr(options, "no_cores", False):
        words.append("--no-cores")
    return shlex.join(words)


def _wanted(options: argparse.Namespace, files: Files) -> dict[str, ExactNode]:
    """Returns the exact words of the nodes asked for: those of all GPU nodes if none are named."""
    from policy.cli.migrate.exact import exact_words  # noqa: PLC0415  reads topology files

    present = files.texts.nodes
    if not present:
        raise UsageError(f"{files.slurm_conf[0]} has no node with Gres=gpu")
    names = list(dict.fromkeys(expand(options.nodes))) if options.nodes is not None else sorted_nodes(present)
    if unknown := [name for name in names if name not in present]:
        raise UsageError(f"{some(unknown)}: slurm.conf has no GPUs there; name nodes with Gres=gpu")
    names = [name for name in names if not present[name].exact]
    return exact_words(names, options.topology_dir or load(files.berth_conf).topology_dir, cores=not options.no_cores)


def _notes(nodes: Sequence[str]) -> list[str]:
    """Returns a sentence for each reservation that counts GPUs of nodes which get the exact layout."""
    try:
        found = reservations(_printed("scontrol", "show", "reservation", "--oneliner"))
    except SlurmError as problem:
        return [f"reservations are not known: {problem}"]
    return list(counting(found, nodes))


def _plan(options: argparse.Namespace) -> int:
    files = _files()
    found = _planned(options, files, options.rung)
    if options.json:
        print_json(
            {
                "in_force": rung_of(files.texts),
                "rung": found.rung,
                "nodes": list(found.nodes),
                "files": [{"path": str(file.path), "diff": difference(file)} for file in found.files],
                "steps": [asdict(step) for step in found.steps],
                "means": list(found.notes),
            }
        )
    else:
        _show(found, rung_of(files.texts))
    return 0


def _show(found: _Planned, present: Rung) -> None:
    on = f" on {fold(found.nodes)}" if found.nodes else ""
    sys.stdout.write(f"In force: {present}. Planned: {found.rung}{on}.\n\n")
    sys.stdout.write("".join(f"{difference(file)}\n" for file in found.files) or "No file changes.\n\n")
    sys.stdout.write("".join(f"Note: {note}\n\n" for note in found.notes))
    _show_steps("Steps", found.steps)


def _show_steps(title: str, steps: Sequence[advice.Step]) -> None:
    if steps:
        sys.stdout.write(f"{title}:\n")
    for number, step in enumerate(steps, 1):
        sys.stdout.write(f"  {number}. {step.text}{f': {step.command}' if step.command else ''}\n")


def _apply(options: argparse.Namespace) -> int:
    files = _files()
    present = rung_of(files.texts)
    found = _planned(options, files, options.rung or ("exact" if options.nodes else _next(files, present)))
    _show(found, present)
    if not found.files:
        return 0
    if found.nodes and not options.no_checks:
        _must_be_empty(found.nodes)
    if not _agreed(options, f"Write {len(found.files)} files?"):
        return 1
    store = ChangeStore(options.state)
    with store.locked():
        if any(content_of(file.path) != file.before for file in found.files):
            raise BerthError("a file was changed while this was shown; run berth migrate apply again")
        done = store.apply(Change(0, found.rung, present, found.nodes, time.time(), found.files, found.back))
    sys.stdout.write(f"Written: {', '.join(str(file.path) for file in found.files)} (change {done.number}).\n")
    sys.stdout.write("Go on with the step after berth migrate apply.\n")
    return 0


def _next(files: Files, present: Rung) -> Rung:
    if present == "exact" and not all(node.exact for node in files.texts.nodes.values()):
        return "exact"
    return RUNGS[min(RUNGS.index(present) + 1, len(RUNGS) - 1)]


def _node_states() -> dict[str, DrainState]:
    return node_states(_printed("scontrol", "show", "node", "--oneliner").splitlines())


def _must_be_empty(nodes: Sequence[str]) -> None:
    """Raises BerthError if a job holds, or may soon hold, GPUs there under names that are about to change."""
    if busy := jobs_on(_printed, fold(nodes)):
        raise BerthError(f"jobs {some(busy)} are on {fold(nodes)}; drain the nodes and wait for the jobs' end")
    states = _node_states()
    if open_ones := [node for node in nodes if node not in states or not states[node].closed]:
        raise BerthError(
            f"{some(open_ones)}: jobs may start there at any time; first berth migrate drain {fold(open_ones)}"
        )


def _agreed(options: argparse.Namespace, question: str) -> bool:
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("standard input is no terminal, so no question can be answered; --yes writes without one")
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _status(options: argparse.Namespace) -> int:
    files = _files()
    nodes = files.texts.nodes
    exact = [name for name, node in nodes.items() if node.exact]
    changes = ChangeStore(options.state).changes()
    touched = {file.path: file for change in changes for file in change.files}
    others = [str(path) for path, file in touched.items() if content_of(path) != file.after]
    rung = rung_of(files.texts)
    if options.json:
        made = [
            {
                "number": change.number,
                "rung": change.rung,
                "nodes": list(change.nodes),
                "when": int(change.when),
                "files": [str(file.path) for file in change.files],
            }
            for change in changes
        ]
        back = [asdict(step) for change in changes[-1:] for step in _steps_back(change, files, options)]
        counts = {"rung": rung, "gpu_nodes": len(nodes), "exact_nodes": exact}
        print_json({**counts, "changes": made, "changed_by_others": others, "steps_back": back})
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
    undone = store.changes()[::-1] if options.all else store.changes()[-1:]
    if not undone:
        raise BerthError(f"{options.state}: nothing is left to undo")
    store.check(undone)
    files = _files()
    for change in undone:
        for file in change.files:
            sys.stdout.write(f"{difference(FileChange(file.path, content_of(file.path), file.before))}\n")
        _show_steps(f"Steps to undo {change.rung}", list(_steps_back(change, files, options)))
    if not options.no_checks:
        _must_not_hurt(undone, files)
    if not _agreed(options, f"Restore the files of {len(undone)} steps?"):
        return 1
    with store.locked():
        store.undo(undone)
    sys.stdout.write("".join(f"Undone: change {change.number} ({change.rung}).\n" for change in undone))
    return 0


def _steps_back(change: Change, files: Files, options: argparse.Namespace) -> list[advice.Step]:
    try:
        forget = bool(_known_shares(files, change.nodes))
    except SlurmError:
        forget = False
    return list(advice.steps_back(change, files, _again(options), forget=forget))


def _must_not_hurt(undone: Sequence[Change], files: Files) -> None:
    """Raises BerthError if a job needs a part of the configuration that would be undone."""
    nodes = sorted_nodes({node for change in undone for node in change.nodes})
    if nodes:
        _must_be_empty(nodes)
    if known := _known_shares(files, nodes):
        raise BerthError(
            f"jobs {some(known)} shared GPUs of these nodes, and slurmctld would crash at its next start while it"
            f" knows them; wait until squeue -w {fold(nodes)} -t all shows none (MinJobAge after their end)"
        )
    if any(change.rung == "sharing" for change in undone) and (shares := sharing_jobs(_printed, "R,S,CG,ST")):
        raise BerthError(f"jobs {some(shares)} share GPUs and need berth-epilog at their end; wait for it")


def _known_shares(files: Files, nodes: Sequence[str]) -> list[str]:
    """Returns the jobs that shared GPUs of nodes which lose their shards while others keep theirs.

    slurmctld 24.11.5 crashes at each start while it knows such a job, also one that has ended, and 26.05.3 has the same
    lines: it searches the node's shards for those of the job. If no node has shards, it ignores the job's.
    """
    others = any(node.exact and name not in nodes for name, node in files.texts.nodes.items())
    return sharing_jobs(_printed, "all", nodes) if nodes and others else []


def _turn(options: argparse.Namespace) -> int:
    asked = list(dict.fromkeys(expand(options.nodes)))
    ends = time.monotonic() + _REGISTERS
    while True:
        states = _node_states()
        command, told = turn(asked, states, options.migrate_command)
        try:
            if command:
                _printed(*command)
            break
        except SlurmError as problem:
            # A node whose slurmd has just started cannot be resumed before it has registered; others are resumed.
            if "Invalid node state" not in str(problem) or time.monotonic() > ends:
                raise
            time.sleep(1)
    sys.stdout.write("".join(f"{line}\n" for line in (*told, " ".join(command)) if line))
    return 0


def _jobs(options: argparse.Namespace) -> int:
    texts = _files().texts
    shown = _printed("scontrol", "show", "job", "--oneliner")
    found = list(waiting.rewrites(shown, texts.nodes, value_of(texts.slurm_conf, "Licenses")))
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
