# SPDX-License-Identifier: Apache-2.0
"""The command `berth calibrate run`: measures the cluster's GPUs through Slurm, and makes way for jobs."""

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from policy.calibrate.campaign import Campaign, NodeState, begin, decode, encode
from policy.calibrate.choice import Rules, measurable, next_nodes, parse_window, to_make_way
from policy.cli.calibrate.jobs import Jobs, MeasurementEnd, request
from policy.formats.errors import BerthError, FormatError, SlurmError, UsageError
from policy.formats.slurm_facts import Reading
from policy.slurm.interface import Gateway
from topology.calibrate.runs import Visit, append, load, seconds_of


class CampaignProgress:
    """Prints the lines of one campaign."""

    def __init__(self) -> None:
        self._why = ""

    def event(self, campaign: Campaign, node: str) -> None:
        """Prints that something happened to a node."""
        one = campaign.nodes[node]
        told = f": {one.told}" if one.told and one.state != "running" else ""
        _say(f"{node} {_state(one)}{told} ({campaign.count('done')} of {len(campaign.nodes)} done)")

    def waits(self, why: str) -> None:
        """Prints once what the campaign waits for; empty if it does not wait."""
        if why and why != self._why:
            _say(why)
        self._why = why


def _state(one: NodeState) -> str:
    return "made way" if one.state == "waiting" and one.made_way and not one.tries else one.state


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


_TICK_S, _READING_SHARE = 1.0, 0.1
"""Seconds between two queries of Slurm, and the part of the time that they may take.

If an answer takes long, Slurm is queried less often.
"""
_CLEANUP_S = 3.0
"""Seconds that the cleanup of a node takes after its measurement made way.

Meanwhile no second measurement makes way for the same job.
"""
_MOST_FAILURES = 60
"""The most queries of Slurm that may fail in a row, for example while slurmctld restarts."""
_RUNS = "/var/lib/berth/runs"


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    run = commands.add_parser(
        "run",
        help="measure the cluster's GPUs through Slurm",
        description="Measure one node after the other in jobs of the lowest priority, on nodes without jobs, and "
        "make way for jobs that wait. May be interrupted; called again it goes on. Ends with a new score table.",
    )
    add = run.add_argument
    add("--output", default=_RUNS, metavar="RUNS", help="file of runs to add to (default: %(default)s)")
    add("--scores", default="", metavar="TABLE", help="table to write at the end (default: as berth.conf says)")
    add("--nodes", default="", metavar="HOSTLIST", help="only these nodes (default: all with GPUs)")
    add("--partition", default="", metavar="NAME", help="measure nodes of this partition, by jobs in it (default: any)")
    add("--fresh", default="7-0", metavar="TIME", help="leave out nodes measured within this time (default: 7 days)")
    add("--window", default="", metavar="FROM-TO", help="begin measurements only then, such as 22:00-06:00")
    add("--at-once", type=int, default=8, metavar="N", help="nodes measured at once (default: %(default)s)")
    add("--limit", default="2", metavar="TIME", help="time limit of one measurement (default: 2 minutes)")
    add("--program", default="", metavar="PATH", help="berth on the nodes (default: as here)")
    add("--dry-run", action="store_true", help="say what would be measured, and end")
    add("--simulated", type=int, default=0, metavar="GPUS", help="simulate so many GPUs on each node")
    add("--pace", type=float, default=0.0, metavar="PART", help="speed of simulated GPUs, as a part of real time")
    run.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    rules, runs = _rules(args), Path(args.output)
    last = _last_visits(runs)
    with _locked(runs):
        return _campaign_on(args, rules, runs, last)


def _campaign_on(args: argparse.Namespace, rules: Rules, runs: Path, last: Mapping[str, float]) -> int:
    from policy.cli.calibrate.report import report  # noqa: PLC0415
    from policy.site.config import config_path, load  # noqa: PLC0415
    from policy.slurm.gateways import open_gateway  # noqa: PLC0415

    config = load(config_path())
    gateway = open_gateway(config.gateway)
    campaign = _campaign(args, Path(f"{runs}.campaign"), measurable(gateway.read(ended=False), args.partition), last)
    if args.dry_run:
        print("\n".join(name for name, one in campaign.nodes.items() if one.state == "waiting"))
        return 0
    jobs = Jobs(campaign.name)
    # A campaign that was killed may have left jobs.
    jobs.close()
    loop = _Loop(args, rules, gateway, jobs, runs, campaign, last)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        loop.until_over(CampaignProgress())
    except KeyboardInterrupt:
        print(f"interrupted with {loop.campaign.count('done')} nodes done; the same command goes on from there")
        raise
    finally:
        jobs.close()
        gateway.close()
        loop.save()
    report(loop.campaign, runs, Path(args.scores) if args.scores else config.scores)
    return 1 if loop.campaign.count("failed") else 0


@contextmanager
def _locked(runs: Path) -> Iterator[None]:
    """Locks the file of runs, because two campaigns on one file would measure everything twice."""
    import fcntl  # noqa: PLC0415

    try:
        file = Path(f"{runs}.lock").open("w", encoding="ascii")  # noqa: SIM115 - closed below
    except OSError as problem:
        raise BerthError(f"cannot write beside {runs}: {problem.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BerthError(f"another campaign adds to {runs}; wait for it, or interrupt it") from None
        yield


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


class _Loop:
    """Runs the campaign, with one query of Slurm after the other."""

    def __init__(
        self,
        args: argparse.Namespace,
        rules: Rules,
        gateway: Gateway,
        jobs: Jobs,
        runs: Path,
        campaign: Campaign,
        last: Mapping[str, float],
    ) -> None:
        self.campaign = campaign
        self._args, self._rules, self._gateway, self._jobs, self._runs = args, rules, gateway, jobs, runs
        self._last = dict(last)
        self._failures = 0
        self._served: dict[int, float] = {}
        """Jobs for which measurements made way, and the time at which they did."""

    def until_over(self, progress: CampaignProgress) -> None:
        """Runs until all nodes are measured, or no node that is left answers."""
        while not self.campaign.over:
            begun = time.monotonic()
            try:
                reading = self._gateway.read(ended=False)
                why = self._look(reading, progress)
            except SlurmError as problem:
                self._failures += 1
                if self._failures > _MOST_FAILURES:
                    raise
                why = str(problem)
            else:
                self._failures = 0
                if not self._reachable(reading):
                    return
            progress.waits(why)
            spent = time.monotonic() - begun
            time.sleep(max(_TICK_S - spent, spent * (1.0 / _READING_SHARE - 1.0) if spent > _TICK_S else 0.0))

    def _reachable(self, reading: Reading) -> bool:
        """Tells whether any node that is left can be measured at all."""
        up = {node.name for node in reading.nodes if node.up}
        return any(name in up and one.state in {"waiting", "running"} for name, one in self.campaign.nodes.items())

    def save(self) -> None:
        """Saves the campaign, so that it can be resumed."""
        from topology import atomic  # noqa: PLC0415

        atomic.replace(f"{self._runs}.campaign", encode(self.campaign).encode())

    def _look(self, reading: Reading, progress: CampaignProgress) -> str:
        """Handles ended measurements, makes way for jobs, and starts new measurements.

        Returns a text on what the campaign waits for.
        """
        before = self.campaign
        for outcome in self._jobs.ended():
            self._take(outcome)
            progress.event(self.campaign, outcome.node)
        ids = self._jobs.ids()
        ours = {node: number for node, (number, _) in ids.items() if node in self._jobs.nodes}
        own = {number for number, _ in ids.values()}
        now, clock = time.time(), time.localtime()
        waiting = {job.id for job in reading.jobs if job.state in {"PENDING", "ARRAY"}}
        self._served = {job: since for job, since in self._served.items() if job in waiting}
        just = {job for job, since in self._served.items() if now - since < _CLEANUP_S}
        leaving = to_make_way(reading, ours, own | just, self._served)
        self._served |= dict.fromkeys(leaving.values(), now)
        stuck = {node for node in self._jobs.queued() if not ids.get(node, (0, True))[1]}
        for node in dict.fromkeys([*leaving, *stuck]):
            self._jobs.cancel(node, ours[node])
            told = f"for job {leaving[node]}" if node in leaving else "its job did not start"
            self.campaign = self.campaign.make_way(node, told, time.time())
            progress.event(self.campaign, node)
        minute = clock.tm_hour * 60 + clock.tm_min
        chosen = next_nodes(self.campaign, self._rules, reading, now, minute, self._last, own)
        for node in chosen:
            self._jobs.start(node, self._command(node, reading))
            self.campaign = self.campaign.start(node, now)
            progress.event(self.campaign, node)
        if self.campaign is not before:
            self.save()
        window = self._rules.window
        return f"waiting for the window {self._args.window}" if window and not window.holds(minute) else ""

    def _take(self, outcome: MeasurementEnd) -> None:
        node, now = outcome.node, time.time()
        if outcome.visit is None:
            self.campaign = self.campaign.fail(node, outcome.told, now, self._rules.tries)
            return
        # The visit is saved first, so that a campaign that is killed in between finds it in the file.
        append([outcome.visit], self._runs)
        self._last[node] = now
        self.campaign = self.campaign.done(node, outcome.told or _summary(outcome.visit))

    def _command(self, node: str, reading: Reading) -> list[str]:
        facts = next(one for one in reading.nodes if one.name == node)
        up = [one.name for one in reading.partitions if one.up and one.name in facts.partitions]
        program = self._args.program or shutil.which(sys.argv[0]) or "berth"
        words = [program, "calibrate", "node", "--node", node]
        if self._args.simulated:
            words += ["--simulated", str(self._args.simulated), "--pace", str(self._args.pace)]
        return [*request(facts, self._args.partition or up[0], self._jobs.name, self._rules.limit_s), *words]


def _summary(visit: Visit) -> str:
    """Returns the number of GPUs, and the fastest and the slowest compute time."""
    times = [run.time_ms for gpu in visit.gpus for run in gpu.runs if run.app_class == "compute"]
    told = f"{len(visit.gpus)} GPUs"
    return f"{told}, compute {min(times):.1f} to {max(times):.1f} ms" if times else told


def _rules(args: argparse.Namespace) -> Rules:
    if args.at_once < 1:
        raise UsageError("--at-once is at least 1")
    window = parse_window(args.window) if args.window else None
    return Rules(window, args.at_once, _seconds(args.limit, "--limit"))


def _seconds(text: str, option: str) -> int:
    from policy.formats.flags import parse_time  # noqa: PLC0415

    try:
        return parse_time(text)
    except FormatError as problem:
        raise UsageError(f"{option}: {problem}") from None


def _last_visits(runs: Path) -> dict[str, float]:
    """Returns the time at which each node was measured last."""
    if not runs.parent.is_dir():
        raise BerthError(f"{runs.parent} does not exist; make it, or name another file with --output")
    visits = load(runs) if runs.exists() else ()
    last: dict[str, float] = {}
    for visit in visits:
        if visit.way == "together":
            last[visit.node] = max(last.get(visit.node, 0.0), seconds_of(visit.at))
    return last


def _campaign(args: argparse.Namespace, path: Path, known: Sequence[str], last: Mapping[str, float]) -> Campaign:
    """Returns the campaign that was interrupted, or a new one of nodes that were not measured lately."""
    from topology.hostlist import expand  # noqa: PLC0415

    if path.exists():
        old = decode(path.read_text(encoding="utf-8"), str(path)).resume(last)
        if not old.over:
            print(f"resumed: {old.count('done')} of {len(old.nodes)} nodes are done")
            return old
    wanted = set(expand(args.nodes)) if args.nodes else set(known)
    if strange := sorted(wanted - set(known)):
        raise UsageError(f"--nodes: {strange[0]} has no GPUs in a partition that is up")
    now = time.time()
    since = now - _seconds(args.fresh, "--fresh")
    nodes = [name for name in known if name in wanted and last.get(name, 0.0) < since]
    print(f"{len(nodes)} nodes to be measured, {len(wanted) - len(nodes)} were measured lately")
    return begin(nodes, now)
