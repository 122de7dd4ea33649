# SPDX-License-Identifier: Apache-2.0
"""Runs a campaign's jobs: one `srun` for each node, which returns the measurement's output without a shared folder.

The jobs have the lowest priority and a limit of minutes, so that Slurm runs them only where no job waits.
"""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from policy.formats.errors import SlurmError
from policy.formats.slurm_facts import NodeFacts
from policy.slurm.by_command.command import run_command
from topology.calibrate.runs import Visit, decode
from topology.errors import TopologyError

_NICE = 2_147_483_645
"""The greatest nice value that Slurm accepts."""
_CPUS_PER_GPU = 2
_LEAVING_S = 15.0
"""Seconds that an srun may take to end after its job was cancelled."""
_QUEUED_S = 60.0
"""Seconds after which a job that has not started is given up.

It waits for something unknown; its node is tried again later.
"""


@dataclass(frozen=True, slots=True)
class MeasurementEnd:
    """The end of a measurement."""

    node: str
    visit: Visit | None
    told: str
    """The reason why there is no visit, or which runs in it do not count; empty if all is well."""


@dataclass(slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]
    begun: float = field(default_factory=time.monotonic)


def request(node: NodeFacts, partition: str, name: str, limit_s: int) -> list[str]:
    """Returns the command line up to the program, for a whole node.

    Each GPU is requested by its own type, which only root may do.
    """
    typed = [f"gpu:g{k}:1" for k in range(node.gpus)]
    loose = [f"gpu:{node.loose}"] if node.loose else []
    cpus = min(max(node.cpus // max(node.threads, 1), 1), _CPUS_PER_GPU * (len(typed) + node.loose))
    return [
        "srun",
        f"--job-name={name}",
        f"--partition={partition}",
        f"--nodelist={node.name}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={cpus}",
        "--exclusive",
        f"--gres={','.join(typed + loose)}",
        f"--time={-(-limit_s // 60)}",
        f"--nice={_NICE}",
        "--chdir=/",
        "--input=none",
        "--quiet",
    ]


class Jobs:
    """The jobs that run or wait now, by node."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._running: dict[str, _Running] = {}
        self._leaving: list[_Running] = []

    @property
    def nodes(self) -> tuple[str, ...]:
        """Returns the nodes whose measurements run or wait."""
        return tuple(self._running)

    def start(self, node: str, command: Sequence[str]) -> None:
        """Submits a job to Slurm."""
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed when it ended
        try:
            # It gets a process group of its own: the terminal's interrupt goes to the campaign, which ends its jobs.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        except OSError as problem:
            raise SlurmError(f"srun cannot be started here: {problem.strerror}") from None
        self._running[node] = _Running(process, out, err)

    def ids(self) -> dict[str, tuple[int, bool]]:
        """Returns by node each job's number, and True if the job runs."""
        text = run_command("squeue", "-h", "-a", "-t", "all", f"--name={self.name}", "-o", "%A|%T|%n")
        rows = [line.split("|") for line in text.decode().splitlines()]
        return {
            node: (int(number), state == "RUNNING")
            for number, state, node in rows
            if state in {"RUNNING", "PENDING", "CONFIGURING"}
        }

    def ended(self) -> Iterator[MeasurementEnd]:
        """Yields the outcomes of jobs that ended since the last call."""
        for node, one in list(self._running.items()):
            if one.process.poll() is not None:
                del self._running[node]
                yield _outcome(node, one)
        for one in [one for one in self._leaving if one.process.poll() is not None]:
            self._leaving.remove(one)
            _close(one)

    def queued(self) -> list[str]:
        """Returns the nodes whose jobs were submitted so long ago that they should run by now."""
        now = time.monotonic()
        return [node for node, one in self._running.items() if now - one.begun > _QUEUED_S]

    def cancel(self, node: str, job: int) -> None:
        """Cancels a job; its output is ignored."""
        with contextlib.suppress(SlurmError):  # it ended a moment ago
            run_command("scancel", str(job))
        # srun is not killed: the node would search for a dead srun while it cleans up, and delay the next job.
        if one := self._running.pop(node, None):
            self._leaving.append(one)

    def close(self) -> None:
        """Cancels all of this campaign's jobs, also those of an interrupted run."""
        with contextlib.suppress(SlurmError):
            run_command("scancel", f"--name={self.name}")
        until = time.monotonic() + _LEAVING_S
        for one in (*self._running.values(), *self._leaving):
            try:
                one.process.wait(max(until - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                one.process.kill()
            _close(one)
        self._running.clear()
        self._leaving.clear()


def _close(one: _Running) -> None:
    one.process.wait()
    one.out.close()
    one.err.close()


def _outcome(node: str, one: _Running) -> MeasurementEnd:
    one.out.seek(0)
    one.err.seek(0)
    text, said = (file.read().decode("utf-8", "replace") for file in (one.out, one.err))
    _close(one)
    last = said.strip().splitlines()[-1:] or [f"srun ended with status {one.process.returncode}"]
    told = last[0].removeprefix("berth: error: ") if one.process.returncode else ""
    begin = text.find('{"format"')
    if begin < 0:
        return MeasurementEnd(node, None, told or "the measurement printed nothing")
    try:
        (visit,) = decode(text[begin:].splitlines()[:2], f"what {node} printed")
    except (TopologyError, ValueError) as problem:
        return MeasurementEnd(node, None, str(problem))
    if visit.node != node:
        return MeasurementEnd(node, None, f"it measured {visit.node}, not {node}")
    return MeasurementEnd(node, visit, told)
