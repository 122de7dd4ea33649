"""berth why JOBID: what Berth decided for a job, and its reasons."""

import argparse
import time
from collections.abc import Mapping
from typing import Any

from policy import hostlist, segment
from policy.cli.output import print_json, print_table
from policy.errors import BerthError, UsageError

_STATES = {
    "placed": "placed, its GPUs were free when it was decided",
    "waiting": "waits for GPUs that come free soonest",
    "later": "waits until a place is in sight",
    "observed": "only watched: Slurm chooses; this is what Berth would have done",
    "passed": "left to Slurm",
    "released": "its place was given up, Slurm chooses",
}


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("why", help="why a job got, or waits for, its GPUs")
    parser.add_argument("job", metavar="JOBID", help="a job's number")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print one job's decision."""
    from policy.slurm.command import CommandGateway  # noqa: PLC0415 - keeps `berth --help` fast

    if not (options.job.isascii() and options.job.isdigit()):
        raise UsageError(f"{options.job!r} is not a job's number; berth why takes one, such as 1234")
    job = CommandGateway().job(int(options.job))
    values = segment.fields(job.admin_comment)
    if values is None:
        raise BerthError(f"job {job.id} has no decision of Berth: it asked for no GPUs, or came past the plugin")
    if options.json:
        print_json({"job": job.id, "slurm_state": job.state, "decision": _typed(values)})
    else:
        print_table(rows(job.id, job.state, values))
    return 0


def rows(job_id: int, slurm_state: str, values: Mapping[str, str]) -> list[tuple[str, str]]:
    """The decision for people."""
    found = [
        ("job", f"{job_id} ({slurm_state.lower()})"),
        ("decision", _STATES.get(values.get("state", ""), "unknown")),
    ]
    if "nodes" in values:
        count = int(values.get("n", "1"))
        found.append(("nodes", values["nodes"] + (f" ({count} nodes)" if count > 1 else "")))
        gpus = tuple(int(gpu) for gpu in values.get("gpus", "").split(",") if gpu)
        found.append(("GPUs", hostlist.fold_numbers(gpus) + (" on each node" if count > 1 else "")))
        if len(gpus) > 1:
            weakest, together = float(values.get("gbps", "0")), float(values.get("sum", "0"))
            text = f"{weakest:g} GB/s in the weakest pair, {together:g} GB/s over all pairs"
            found.append(("NVLink", text if together else "none between these GPUs"))
        shared = "no guest on these GPUs" if values.get("seats") == "1" else "seats left free"
        found.append(("sharing", shared))
    if values.get("state") == "waiting" and values.get("start", "").isdigit():
        found.append(("expected", _moment(values["start"])))
    if "because" in values and slurm_state == "PENDING":
        found.append(("waits for", f"{values['because']}: {values.get('because_text', '')}"))
    if "insists" in values:
        found.append(("level", _insists(values)))
    found.append(("reason", values.get("why", "none given")))
    if "asked" in values:
        found.append(("asked", values["asked"].replace(";", ", ")))
    found += [(f"--{name[2:]}", value or "given") for name, value in values.items() if name.startswith("f.")]
    if values.get("at", "").isdigit():
        found.append(("decided", _moment(values["at"])))
    if values.get("pins", "0") != "0":
        found.append(("moved", f"{values['pins']} times since"))
    return found


def _insists(values: Mapping[str, str]) -> str:
    """The level that a job insists on, and the time left of it."""
    text = f"insists on {values['insists']} for {values.get('wait', '?')} s"
    if not values.get("until", "").isdigit():
        return text
    left = int(values["until"]) - int(time.time())
    return f"{text}, {left} s left" if left > 0 else f"{text}, which are over"


def _moment(seconds: str) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(int(seconds)))


def _typed(values: Mapping[str, str]) -> dict[str, Any]:
    numbers = {"n", "k", "cpus", "mem", "at", "start", "pins", "wait", "until"}
    typed: dict[str, Any] = {}
    for key, value in values.items():
        if key.startswith("f."):
            typed.setdefault("flags", {})[key[2:]] = value
        elif key in numbers:
            typed[key] = int(value)
        elif key in {"gbps", "sum"}:
            typed[{"gbps": "min_gbps", "sum": "sum_gbps"}[key]] = float(value)
        elif key == "nodes":
            typed[key] = value.split(",")
        elif key == "gpus":
            typed[key] = [int(gpu) for gpu in value.split(",")]
        elif key == "seats":
            typed[key] = value == "1"
        else:
            typed[key] = value
    return typed
