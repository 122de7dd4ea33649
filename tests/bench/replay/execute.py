# SPDX-License-Identifier: Apache-2.0
"""One run of a replay: submit, watch, wait for the end, keep what was logged."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from containers import cluster as clusters

from . import outcome
from .chaos import CLOCK_OFF, Chaos
from .systems import System, notice_log
from .testbed import FOLDER, PROGRAMS, USER, Testbed, TestbedError, shell
from .workload import Job, Shape, draw, draw_adversary, plan_text

LOOK_EVERY = 2.0
PROGRESS_EVERY = 10.0
NOTICES = "notices.log"
LOGS = (NOTICES, "submit.log", "watch.log", "jobs.log", "slurmctld.log", "berthd.log")


@dataclass(frozen=True, slots=True)
class Progress:
    """The last line of the watch."""

    pending: int
    running: int


def run(testbed: Testbed, system: System, seed: int, shape: Shape, mode: str, folder: Path) -> outcome.Run:
    """Replay a seed's jobs on a cluster prepared for the system; `folder` keeps the logs."""
    jobs = draw_adversary(seed, shape) if mode == "adversary" else draw(seed, shape)
    testbed.prepare(system, seed, CLOCK_OFF if mode == "chaos" else 0)
    chaos = Chaos(testbed.controller, jobs[-1].at, seed) if mode == "chaos" else None
    began, used = time.monotonic(), testbed.processor_seconds()
    with chaos or contextlib.nullcontext():
        _replay(testbed.controller, jobs, folder, berth=system.berth, title=f"{system.name}, seed {seed}")
    used, wall = testbed.processor_seconds() - used, time.monotonic() - began
    slurm_log, cores = folder / "slurmctld.log", os.cpu_count() or 1
    return outcome.Run(
        system=system.name,
        seed=seed,
        slurm=testbed.slurm,
        settings={**asdict(shape), "topology": testbed.topology},
        outcomes=outcome.outcomes(jobs, folder, berth=system.berth),
        looks=outcome.looks(folder),
        updates=outcome.count(slurm_log, "_slurm_rpc_update_job", "complete"),
        denied=outcome.count(slurm_log, "request to shrink"),
        notices_us=outcome.notices(folder / NOTICES),
        answers_us=outcome.answers(folder / NOTICES),
        cpu_share=round(used / wall / cores, 3),
        notes={"acts": chaos.acts, "pins_left": chaos.pins_left} if chaos else {},
    )


def _replay(controller: str, jobs: tuple[Job, ...], folder: Path, *, berth: bool, title: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("plan").write_text(plan_text(jobs, berth=berth), encoding="ascii")
    if log := notice_log():
        shell(controller, f": > {log}")
    shell(controller, f"cd {FOLDER}; rm -f *.log; install -m 666 /dev/null jobs.log")
    clusters.docker("cp", str(folder / "plan"), f"{controller}:{FOLDER}/plan")
    marks = _log_lengths(controller)
    with (
        _background(controller, f"exec {PROGRAMS}/replay_watch {LOOK_EVERY} > watch.log", "root") as watch,
        _background(
            controller, f"exec {PROGRAMS}/replay_submit {PROGRAMS}/replay_job < plan > submit.log 2>&1", USER
        ) as submit,
    ):
        _wait(controller, submit, watch, jobs, title)
        time.sleep(2 * LOOK_EVERY)
        shell(controller, "pkill -x replay_watch", check=False)
    _collect(controller, marks, folder)


def _background(controller: str, command: str, user: str) -> subprocess.Popen[bytes]:
    prepared = (
        f"cd {FOLDER}; touch submit.log; chmod 666 submit.log; {command}"
        if user == "root"
        else f"cd {FOLDER}; {command}"
    )
    return subprocess.Popen(["docker", "exec", "--user", user, controller, "bash", "-c", prepared])


def _wait(
    controller: str,
    submit: subprocess.Popen[bytes],
    watch: subprocess.Popen[bytes],
    jobs: tuple[Job, ...],
    title: str,
) -> None:
    """Until all jobs ended; a line every ten seconds."""
    began, span = time.monotonic(), jobs[-1].at
    deadline = began + 3 * span + 600
    next_line = began
    while True:
        time.sleep(1)
        if watch.poll() is not None:
            raise TestbedError(f"replay_watch ended with status {watch.returncode}")
        at = time.monotonic() - began
        progress = _progress(controller)
        if submit.poll() is not None and progress.pending == progress.running == 0 and at > span:
            return
        if time.monotonic() > deadline:
            raise TestbedError(f"{title}: {progress.pending} jobs wait and {progress.running} run after {at:.0f} s")
        if time.monotonic() >= next_line:
            submitted = sum(job.at < at for job in jobs)
            print(
                f"bench-replay: {title}, {at:.0f} s: {submitted} of {len(jobs)} came (the last after {span:.0f} s), "
                f"{progress.pending} wait, {progress.running} run",
                flush=True,
            )
            next_line += PROGRESS_EVERY


def _progress(controller: str) -> Progress:
    line = shell(controller, f"grep ^queue {FOLDER}/watch.log | tail -n 1", check=False).split("\t")
    return Progress(int(line[2]), int(line[3])) if len(line) > 4 else Progress(0, 1)


def _log_lengths(controller: str) -> dict[str, int]:
    text = shell(
        controller,
        "cd /var/log/cluster; for f in slurmctld berthd; do echo $f $(stat -c %s $f.log 2>/dev/null || echo 0); done",
    )
    return {name: int(size) for name, size in (line.split() for line in text.splitlines())}


def _collect(controller: str, marks: dict[str, int], folder: Path) -> None:
    for name, size in marks.items():
        shell(
            controller,
            f"tail -c +{size + 1} /var/log/cluster/{name}.log > {FOLDER}/{name}.log 2>/dev/null",
            check=False,
        )
    if log := notice_log():
        shell(controller, f"cp {log} {FOLDER}/{NOTICES}", check=False)
    for name in LOGS:
        folder.joinpath(name).unlink(missing_ok=True)
        clusters.run("docker", "cp", f"{controller}:{FOLDER}/{name}", str(folder / name))


def write_json(path: Path, content: object) -> None:
    """A file that is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
