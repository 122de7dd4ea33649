"""`make bench-hook`: what job_submit costs at 1,024 nodes x 8 GPUs while berthd plans, beside a bare echo.

One run compares three slurmctlds: without a plugin, with a C plugin that asks a bare echo daemon, with Berth.
They take turns, several rounds each, because the machine's mood changes more than they differ; figures are medians
over the rounds.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

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
STREAMS = {
    "one": "-H",
    "limits": "-H -m limit",
    "new": "-H -m memory",
    "two": "-H -P 2",
    "taken": "",
}
"""Held jobs: of one kind, with time limits of their own, of kinds never seen before, of one kind from two clients at
once. And jobs that start."""


class Controller:
    """A container with a lone slurmctld."""

    def __init__(self, version: str) -> None:
        self.name = f"berth-bench-{version.replace('.', '')}"
        self.image = f"berth-cluster:{version}"

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
        self.bash((HERE / "hook_controller.sh").read_text(encoding="utf-8"), str(NODES))
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
    def running(self, plugin: str) -> Iterator[None]:
        """slurmctld with this job_submit plugin (none: without), an empty queue, and the daemon it asks."""
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
            self.wait("berth status --json | grep -q '\"free_gpus\": 8192'")
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

    def submit(self, count: int, stream: str = "one") -> tuple[float, list[float]]:
        """Submissions a second, and each one's latency at the client in ms."""
        output = self.bash(f"{SUBMIT} -n {count} {STREAMS[stream]}")
        *lines, last = output.splitlines()
        _, total, failed = last.split()
        if failed != "0":
            raise RuntimeError(f"{failed} of {count} submissions failed")
        return count / (float(total) / 1e6), [float(line) / 1000 for line in lines]

    def hook(self, plugin: str, outcome: str | None = None) -> list[float]:
        """Milliseconds inside the hook since the last call of this function, from the plugin's own log."""
        text = self.bash(f"cat {LOG[plugin]} 2>/dev/null; : > {LOG[plugin]}")
        rows = [line.split("\t") for line in text.splitlines()]
        return [float(row[1]) / 1000 for row in rows if outcome is None or row[2] == outcome]


def quantile(values: list[float], share: float) -> float:
    """The value below which this share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def trouble(controller: Controller) -> tuple[float, float, float]:
    """Medians (ms) of the hook with berthd dead, and hung after the breaker opened; submissions a second then."""
    with controller.running("berth"):
        controller.bash("pkill -STOP -f berthd")
        controller.submit(50)
        controller.hook("berth")
        rate, _ = controller.submit(400)
        opened = controller.hook("berth", "open")
        controller.bash("pkill -KILL -f berthd; sleep 6")  # longer than the breaker stays open
        controller.hook("berth")
        controller.submit(400)
        dead = controller.hook("berth", "dead") + controller.hook("berth", "open")
    return statistics.median(dead), statistics.median(opened), rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--slurm", default="24.11")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=500, help="submissions in each round and mode")
    args = parser.parse_args()
    subprocess.run([sys.executable, CLUSTER, "build", "--slurm", args.slurm], check=True)
    client: dict[tuple[str, str], list[list[float]]] = {}
    inside: dict[tuple[str, str], list[list[float]]] = {}
    rates: dict[tuple[str, str], list[float]] = {}
    with Controller(args.slurm) as controller:
        for number in range(args.rounds):
            # The queue grows meanwhile: who comes first changes from round to round.
            held = ["one", "limits", "new"]
            turns = [*held[number % 3 :], *held[: number % 3]]
            for plugin in ("none", "echo", "berth"):
                print(f"bench-hook: round {number + 1} of {args.rounds}, plugin {plugin}", flush=True)
                with controller.running(plugin):
                    controller.submit(50)  # warm
                    if plugin != "none":
                        controller.hook(plugin)
                    # Jobs that start come last: they keep slurmctld busy.
                    for stream in (*turns, "two", "taken"):
                        rate, latencies = controller.submit(args.jobs, stream)
                        rates.setdefault((plugin, stream), []).append(rate)
                        client.setdefault((plugin, stream), []).append(latencies)
                        if plugin != "none":
                            inside.setdefault((plugin, stream), []).append(controller.hook(plugin))
        print("bench-hook: berthd hung, then dead", flush=True)
        dead, opened, hung_rate = trouble(controller)
        slurm = controller.bash("sinfo --version").strip()

    def median(of: Callable[[list[float]], float], rounds: list[list[float]]) -> float:
        return statistics.median(of(values) for values in rounds)

    def at(share: float) -> Callable[[list[float]], float]:
        return lambda values: quantile(values, share)

    def over_echo(stream: str, share: float) -> float:
        return median(at(share), inside["berth", stream]) - median(at(share), inside["echo", stream])

    median_rate = {key: statistics.median(values) for key, values in rates.items()}
    echo = "C plugin, bare echo daemon"
    figures = [
        Figure(
            f"hook_{name}_ms",
            median(at(share), inside["berth", "one"]),
            "ms",
            echo,
            median(at(share), inside["echo", "one"]),
        )
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]
    for stream in ("one", "limits", "new", "taken"):
        prefix = "" if stream == "one" else f"{stream}_"
        figures += [
            at_most(f"{prefix}p50_over_echo_ms", over_echo(stream, 0.5), 0.3, "ms"),
            at_most(f"{prefix}p99_over_echo_ms", over_echo(stream, 0.99), 2.0, "ms"),
        ]
        ratio = median_rate["berth", stream] / median_rate["echo", stream]
        name = f"{prefix}rate_vs_echo"
        figures.append(
            at_least(name, ratio, 0.9, "", echo, 1.0) if stream == "one" else Figure(name, ratio, "", echo, 1.0)
        )
    two = median_rate["berth", "two"]
    figures += [
        Figure(
            "client_p50_ms",
            median(at(0.5), client["berth", "one"]),
            "ms",
            "no plugin",
            median(at(0.5), client["none", "one"]),
        ),
        Figure(
            "client_p99_ms",
            median(at(0.99), client["berth", "one"]),
            "ms",
            "no plugin",
            median(at(0.99), client["none", "one"]),
        ),
        Figure("rate_2_vs_echo", two / median_rate["echo", "two"], "", echo, 1.0),
        Figure("rate_1", median_rate["berth", "one"], "1/s", "no plugin", median_rate["none", "one"]),
        Figure("rate_2", two, "1/s", "no plugin", median_rate["none", "two"]),
        Figure("echo_rate_1", median_rate["echo", "one"], "1/s", "no plugin", median_rate["none", "one"]),
        Figure("hung_rate_1", hung_rate, "1/s", "no plugin", median_rate["none", "one"]),
        at_most("dead_ms", dead, 0.05, "ms"),
        at_most("open_ms", opened, 0.05, "ms"),
    ]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    notes = {
        "slurm": slurm,
        "nodes": str(NODES),
        "rounds": str(args.rounds),
        "jobs": str(args.jobs),
        "date": today,
    }
    report(
        "hook",
        f"job_submit at {NODES} nodes x 8 GPUs, {slurm}, medians of {args.rounds} rounds",
        figures,
        notes,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
