# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=hook`: what job_submit costs at 1,024 nodes x 8 GPUs while berthd plans, beside a bare echo.

Three slurmctlds stand side by side, each in a container: without a plugin, with a C plugin that asks a bare echo
daemon, with Berth. They get the same submissions in turns of half a second, since the machine's mood changes more than
they differ. Latencies are told of all turns together; a rate beside another's is the median over the turns, each beside
the other's turn of the same round.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Self

from containers.cluster import IMAGES, PREFIX

from .table import Figure, at_least, at_most, report

HERE = Path(__file__).parent
CLUSTER = HERE.parents[1] / "containers" / "cluster.py"
NODES = 1024
LOG = {"echo": "/var/log/berth/echo.log", "berth": "/var/log/berth/hook.log"}
AS_ITS_UNIT = "nice -n -5"
"""berthd's unit says so; the echo daemon runs the same way."""
AS_SLURM = "setpriv --reuid=slurm --regid=slurm --init-groups"
# A shell as process 1: it reaps the daemons that this benchmark kills.
IDLE = ("bash", "-c", "while :; do sleep 1; done")
SUBMIT = "/usr/libexec/berth-bench/submit -g 2 -p gpu"
HELD = {"one": "-H", "limits": "-H -m limit", "new": "-H -m memory", "two": "-H -P 2"}
"""Jobs of one kind, with time limits of their own, of kinds never seen before, of one kind from two clients at once.

A kind is never seen before if no turn has had its amount of memory."""
AS_PLACED = (
    '-H -w g5 -g g0:1,gres/gpu:g1:1 -c "[berth/1 id=0123456789abcdef state=placed asked=tres_per_job:gres/gpu:2 '
    'nodes=g5 gpus=0,1 k=2 n=1 cpus=1 mem=100 why=best%20of%201024%20nodes%20that%20fit]"'
)
"""Jobs that say themselves what Berth writes into a job of one kind: what slurmctld takes longer for them it takes
whoever wrote it, and however fast. Only the echo's slurmctld gets these."""
STREAMS = {**HELD, "placed": AS_PLACED, "taken": ""}
"""And jobs that start."""
PLUGINS = ("none", "echo", "berth")
LONG = "-H -F retry=1 -L 524000"
"""A script of 4 MB, the longest that Slurm takes, of lines that the plugin reads: with a flag there is a message."""
LONG_TURNS = 15
CALM = 0.3
"""Seconds between two turns, for what slurmctld puts off."""


class Controller:
    """A container with a lone slurmctld."""

    def __init__(self, version: str, plugin: str, layout: str = "by-position", nodes: int = NODES) -> None:
        """`layout` is how its nodes' GPUs are named: as Berth needs it, or `by-model`, as is usual."""
        self.plugin = plugin
        self.layout = layout
        self.nodes = nodes
        self.name = f"{PREFIX}-bench-{version.replace('.', '')}-{plugin}"
        self.image = f"{IMAGES}-cluster:{version}"

    def __enter__(self) -> Self:
        self.remove()
        subprocess.run(
            [
                "docker",
                "run",
                "-d",
                "--cap-add",
                "SYS_NICE",
                "--name",
                self.name,
                "--hostname",
                "bench",
                self.image,
                *IDLE,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.bash((HERE / "hook_controller.sh").read_text(encoding="utf-8"), str(self.nodes), self.layout)
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        subprocess.run(["docker", "rm", "-f", self.name], check=False, capture_output=True)

    def bash(self, script: str, *words: str, timeout: float = 300) -> str:
        done = subprocess.run(
            ["docker", "exec", "-i", self.name, "bash", "-s", *words],
            input=script,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"in {self.name}: {done.stderr or done.stdout}")
        return done.stdout

    @contextmanager
    def running(self) -> Iterator[None]:
        """slurmctld with its job_submit plugin (none: without), an empty queue, and the daemon it asks."""
        plugin = self.plugin
        setting = "#JobSubmitPlugins" if plugin == "none" else f"JobSubmitPlugins={plugin}"
        daemon = {
            "none": "true",
            "echo": f"setsid {AS_ITS_UNIT} {AS_SLURM} python3 /usr/libexec/berth-bench/echo_daemon.py"
            " /run/berth/echo.sock >/var/log/berth/echod.out 2>&1 &",
            "berth": f"setsid {AS_ITS_UNIT} {AS_SLURM} berthd >/var/log/berth/berthd.out 2>&1 &",
        }[plugin]
        self.bash(
            f"sed -i 's/^#\\?JobSubmitPlugins.*/{setting}/' /etc/slurm/slurm.conf\n"
            "chown -R slurm: /var/log/berth /run/berth; rm -f /run/berth/*.sock\n"
            f"{AS_SLURM} env BERTH_ECHO_LOG={LOG['echo']} slurmctld -c\n"
            "for i in $(seq 100); do scontrol ping | grep -q 'is UP' && break; sleep 0.1; done\n"
            "[ $i -lt 100 ] || { grep -E 'error|fatal' /var/log/berth/slurmctld.log >&2; exit 1; }\n"
            f"{daemon}\n"
        )
        if plugin == "berth":
            self.wait(f"berth status --json | grep -q '\"free_gpus\": {8 * self.nodes}'")
        try:
            yield
        finally:
            self.bash(
                "pkill -KILL -x slurmctld; pkill -KILL -f 'berthd|echo_daemon'\n"
                "while pgrep -x slurmctld; do sleep 0.05; done"
            )

    def wait(self, condition: str) -> None:
        self.bash(
            f"for i in $(seq 300); do {condition} && exit 0; sleep 0.1; done; cat /var/log/berth/*.out >&2; exit 1"
        )

    def submit(self, count: int, stream: str = "one", turn: int = 0) -> tuple[float, list[float]]:
        """Submissions a second, and each one's latency at the client in ms."""
        unseen = f"-s {turn * count}" if stream == "new" else ""
        return self.submit_as(count, f"{STREAMS[stream]} {unseen}")

    def submit_as(self, count: int, words: str) -> tuple[float, list[float]]:
        output = self.bash(f"{SUBMIT} -n {count} {words}")
        *lines, last = output.splitlines()
        _, total, failed = last.split()
        if failed != "0":
            raise RuntimeError(f"{failed} of {count} submissions failed")
        return count / (float(total) / 1e6), [float(line) / 1000 for line in lines]

    def hook(self, outcome: str | None = None) -> list[float]:
        """Milliseconds inside the hook since the last call of this function, from the plugin's own log."""
        if self.plugin not in LOG:
            return []
        log = LOG[self.plugin]
        text = self.bash(f"cat {log} 2>/dev/null; : > {log}")
        rows = [line.split("\t") for line in text.splitlines()]
        return [float(row[1]) / 1000 for row in rows if outcome is None or row[2] == outcome]


@dataclass(slots=True)
class Measured:
    """What one slurmctld did with one stream, in all turns."""

    turns: list[float] = field(default_factory=list)
    """Submissions a second in each."""
    client: list[float] = field(default_factory=list)
    inside: list[float] = field(default_factory=list)
    """Milliseconds of each submission, at the client and in the hook."""

    @property
    def rate(self) -> float:
        """In all turns together, which have as many submissions each."""
        return statistics.harmonic_mean(self.turns)

    def beside(self, other: Measured) -> float:
        """How many times as many submissions a second as the other, in the median round."""
        return statistics.median(mine / theirs for mine, theirs in zip(self.turns, other.turns, strict=True))


Table = dict[tuple[str, str], Measured]
"""By plugin and stream."""


def quantile(values: list[float], share: float) -> float:
    """The value below which this share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def take_turns(controllers: Sequence[Controller], turns: int, jobs: int) -> Table:
    """All streams; those whose jobs start come last, since they keep slurmctld busy from then on."""
    table: Table = {(one.plugin, stream): Measured() for one in controllers for stream in STREAMS}
    for streams in ((*HELD, "placed"), ("taken",)):
        for number in range(turns):
            print(f"bench-hook: {', '.join(streams)}: turn {number + 1} of {turns}", flush=True)
            # Nobody is always the one after the same other.
            for stream, place in product(streams, range(len(controllers))):
                controller = controllers[(place + number) % len(controllers)]
                if stream == "placed" and controller.plugin != "echo":
                    continue
                measured = table[controller.plugin, stream]
                rate, latencies = controller.submit(jobs, stream, number)
                measured.turns.append(rate)
                measured.client += latencies
                measured.inside += controller.hook()
                time.sleep(CALM)
    return table


def long_scripts(controllers: Sequence[Controller]) -> dict[str, Measured]:
    """The longest scripts, one at a time, since slurmctld writes each to its disk."""
    table = {controller.plugin: Measured() for controller in controllers}
    for number in range(LONG_TURNS):
        for place in range(len(controllers)):
            controller = controllers[(place + number) % len(controllers)]
            table[controller.plugin].client += controller.submit_as(1, LONG)[1]
            table[controller.plugin].inside += controller.hook()
            time.sleep(CALM)
    return table


def figures_of_long(table: dict[str, Measured]) -> list[Figure]:
    berth, echo, none = (table[name] for name in ("berth", "echo", "none"))
    more = quantile(berth.inside, 0.5) - quantile(echo.inside, 0.5)
    return [
        at_most("script_4mb_p50_over_echo_ms", more, 1.0, "ms"),
        Figure("script_4mb_client_p50_ms", quantile(berth.client, 0.5), "ms", "no plugin", quantile(none.client, 0.5)),
    ]


def trouble(controller: Controller) -> tuple[float, float, float]:
    """Medians (ms) of the hook with berthd dead, and hung after the breaker opened; submissions a second then."""
    with controller.running():
        controller.bash("pkill -STOP -f berthd")
        controller.submit(50)
        controller.hook()
        rate, _ = controller.submit(400)
        opened = controller.hook("open")
        controller.bash("pkill -KILL -f berthd; sleep 6")  # longer than the breaker stays open
        controller.hook()
        controller.submit(400)
        dead = controller.hook("dead") + controller.hook("open")
    return statistics.median(dead), statistics.median(opened), rate


def figures_of(table: Table) -> list[Figure]:
    """Latencies and rates of all streams."""
    echo, bare = "C plugin, bare echo daemon", "no plugin"

    def over_echo(stream: str, share: float) -> float:
        return quantile(table["berth", stream].inside, share) - quantile(table["echo", stream].inside, share)

    one = {plugin: table[plugin, "one"] for plugin in PLUGINS}
    figures = []
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        peers = quantile(one["echo"].inside, share)
        figures.append(Figure(f"hook_{name}_ms", quantile(one["berth"].inside, share), "ms", echo, peers))
    for stream in ("one", "limits", "new", "taken"):
        prefix = "" if stream == "one" else f"{stream}_"
        ratio = table["berth", stream].beside(table["echo", stream])
        figures += [
            at_most(f"{prefix}p50_over_echo_ms", over_echo(stream, 0.5), 0.3, "ms"),
            at_most(f"{prefix}p99_over_echo_ms", over_echo(stream, 0.99), 2.0, "ms"),
            at_least(f"{prefix}rate_vs_echo", ratio, 0.9, "", echo, 1.0),
        ]
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        peers = quantile(one["none"].client, share)
        figures.append(Figure(f"client_{name}_ms", quantile(one["berth"].client, share), "ms", bare, peers))
    two = {plugin: table[plugin, "two"] for plugin in PLUGINS}
    return [
        *figures,
        Figure("placed_rate_vs_echo", table["echo", "placed"].beside(table["echo", "one"]), "", echo, 1.0),
        Figure("rate_2_vs_echo", two["berth"].beside(two["echo"]), "", echo, 1.0),
        Figure("rate_1", one["berth"].rate, "1/s", bare, one["none"].rate),
        Figure("rate_2", two["berth"].rate, "1/s", bare, two["none"].rate),
        Figure("echo_rate_1", one["echo"].rate, "1/s", bare, one["none"].rate),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--slurm", default="24.11")
    parser.add_argument("--turns", type=int, default=20, help="of each slurmctld in each stream")
    parser.add_argument("--jobs", type=int, default=150, help="submissions in each turn")
    parser.add_argument("--tick", type=int, default=1_000, help="milliseconds between two looks of berthd at Slurm")
    args = parser.parse_args()
    subprocess.run([sys.executable, CLUSTER, "build", "--slurm", args.slurm], check=True)
    with ExitStack() as stack:
        controllers = [stack.enter_context(Controller(args.slurm, plugin)) for plugin in PLUGINS]
        for controller in controllers:
            controller.bash(f"printf '[berthd]\\ntick_ms = {args.tick}\\n' >>/etc/slurm/berth.conf")
        with ExitStack() as daemons:
            for controller in controllers:
                daemons.enter_context(controller.running())
                controller.submit(50)  # warm
                controller.hook()
            table = take_turns(controllers, args.turns, args.jobs)
            print("bench-hook: scripts of 4 MB", flush=True)
            long = long_scripts(controllers)
            with_berth = controllers[PLUGINS.index("berth")]
            status = json.loads(with_berth.bash("berth status --json"))
        print("bench-hook: berthd hung, then dead", flush=True)
        dead, opened, hung_rate = trouble(with_berth)
        slurm = with_berth.bash("sinfo --version").strip()
    figures = [
        *figures_of(table),
        *figures_of_long(long),
        Figure("hung_rate_1", hung_rate, "1/s", "no plugin", table["none", "one"].rate),
        Figure("look_ms", status["look_ms"], f"ms, {status['waiting']} jobs wait at the end"),
        at_most("dead_ms", dead, 0.05, "ms"),
        at_most("open_ms", opened, 0.05, "ms"),
    ]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    notes = {"slurm": slurm, "nodes": str(NODES), "turns": str(args.turns), "jobs": str(args.jobs), "date": today}
    usual = args.tick == parser.get_default("tick")
    report(
        "hook" if usual else f"hook-{args.tick}ms",
        f"job_submit at {NODES} nodes x 8 GPUs, {slurm}, {args.turns} turns",
        figures,
        notes,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
