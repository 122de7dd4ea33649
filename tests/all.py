# SPDX-License-Identifier: Apache-2.0
"""What `make test` runs: the clusters of both Slurm versions, and beside them all that needs no cluster.

Most of a cluster test is waiting, so all three go on at the same time; what needs no cluster has the lower priority.
Each part has its log under build/. Nothing is tried twice.

usage: python -m tests.all [--without-clusters]

Exit status: 0 all is well; 1 something failed; 3 what was run is well, but not all of it could be run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
TOOK = BUILD / "tests-took.json"
VERSIONS = ("24.11", "26.05")
#: Linear algebra would start a thread for each core in each process that tests start, all of which want the same cores.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
CPUS = len(os.sched_getaffinity(0))
PLUGIN = "plugin"
NOT_ALL = 3
#: Seconds between two lines of progress.
TELL_EVERY = 30.0
#: Seconds that half a second of sleep takes where the machine, and not a test, is slow.
STOOD_STILL = 10.0


@dataclass
class Part:
    """One run of pytest."""

    name: str
    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    nice: int = 0
    began: float = 0.0
    took: float = 0.0
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return BUILD / f"tests-{self.name}.log"

    def start(self) -> None:
        """Begin, where the terminal's interrupt does not come through: `stop` passes it on, once."""
        command = ["nice", "-n", str(self.nice), sys.executable, "-m", "pytest", *self.words]
        command += ["--durations=25", "--durations-min=5", "-o", f"cache_dir={BUILD / f'pytest-{self.name}'}"]
        self.began = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | ONE_THREAD | self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # A session may be scheduled as a group, and then its `nice` counts within it only.
        with suppress(OSError):
            Path(f"/proc/{self.process.pid}/autogroup").write_text(str(self.nice))

    def stop(self) -> None:
        """Let it take down what it has started, such as a cluster."""
        if self.process and not self.ended():
            self.process.send_signal(signal.SIGINT)
            self.process.wait()

    def ended(self) -> bool:
        """Whether it is over."""
        over = self.process is not None and self.process.poll() is not None
        if over and not self.took:
            self.took = time.monotonic() - self.began
        return over

    def progress(self) -> str:
        """How far it is, by pytest's own count."""
        if self.process is None:
            return "not begun"
        if self.ended():
            return "failed" if self.process.returncode else "done"
        shown = re.findall(r"\[ *(\d+)%\]", self.log.read_text(errors="replace"))
        return f"{shown[-1] if shown else 0} %"


def say(text: str) -> None:
    """A line at once, even through a pipe."""
    print(f"tests: {text}", flush=True)


def succeeds(*command: str) -> bool:
    """Run a command that says itself what it has to say."""
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def parts(*, clusters: bool, fuzzing: bool, headers: bool) -> list[Part]:
    """What there is to run."""
    elsewhere = [f"--ignore=tests/{folder}" for folder in ("slurm", "hostile", "hard", "fuzz")]
    words = ["tests", *elsewhere, "-m", "not hard and not published and not torch and not headers"]
    # One more than there are processors: some of them always wait.
    words += ["-n", str(CPUS + 1), "--dist", "worksteal"]
    units = Part("units", words, nice=5 if clusters else 0)
    fuzz = [Part("fuzz", ["tests/fuzz"], nice=5)] if fuzzing else []
    plugin = [Part(PLUGIN, ["tests/unit", "-m", "headers and not hard"], nice=5)] if headers else []
    versions = VERSIONS if clusters else ()
    # Two clusters of each version: four keep two processors busy, and each of them costs some of their time.
    words = ["tests/slurm", "tests/hostile", "-m", "not hard", "-n", "2", "--dist", "loadfile"]
    on_slurm = [Part(v, words, {"BERTH_TEST_VERSIONS": v, "BERTH_TEST_DEAL": "1"}) for v in versions]
    return [units, *fuzz, *plugin, *on_slurm]


def expected(running: list[Part]) -> str:
    """How long it took here the last time."""
    try:
        took = json.loads(TOOK.read_text())
        return f"; {max(took[part.name] for part in running) / 60:.0f} min the last time"
    except (OSError, ValueError, KeyError):
        return ""


def watch(running: list[Part]) -> None:
    """Tell how far all are until they have ended."""
    began, told = time.monotonic(), time.monotonic()
    while not all(part.ended() for part in running):
        slept = time.monotonic()
        time.sleep(0.5)
        if (stood := time.monotonic() - slept) >= STOOD_STILL:
            say(f"the machine stood still for {stood:.0f} s; a test with a time bound may fail for it")
        if time.monotonic() - told >= TELL_EVERY:
            told = time.monotonic()
            state = ", ".join(f"{part.name} {part.progress()}" for part in running)
            say(f"{(told - began) / 60:.1f} min: {state}{expected(running)}")


def run(every: list[Part]) -> bool:
    """Run all parts side by side; whether nothing failed."""
    clusters = [part for part in every if part.name in VERSIONS]
    # The first image brings the headers.
    later = [part for part in every if clusters and part.name in (PLUGIN, *VERSIONS)]
    try:
        for part in every:
            if part not in later:
                part.start()
        # One after the other: they share layers, and the first build of a machine makes the base images.
        built = all(succeeds("python3", "containers/cluster.py", "build", "--slurm", one.name) for one in clusters)
        for part in later if built else ():
            part.start()
        running = [part for part in every if part.process]
        watch(running)
    finally:
        for part in every:
            part.stop()
    failed = [part for part in running if part.process and part.process.returncode]
    for part in running:
        lines = part.log.read_text(errors="replace").splitlines(keepends=True)
        print(f"\n--- {part.name} ({part.log}) ---")
        sys.stdout.writelines(lines if part in failed else lines[-40:])
    if built and not failed:
        TOOK.write_text(json.dumps({part.name: round(part.took) for part in every}))
    for part in failed:
        say(f"{part.name} failed: see above, or {part.log}")
    return built and not failed


def main(arguments: list[str]) -> int:
    """Run all that can be run here, and say what could not."""
    clusters = "--without-clusters" not in arguments
    BUILD.mkdir(exist_ok=True)
    fuzzing = succeeds("containers/bootstrap", "tool-packages")
    headers = clusters or any((BUILD / "headers").glob("*"))
    every = parts(clusters=clusters, fuzzing=fuzzing, headers=headers)
    say(f"{' and '.join(part.name for part in every)} run side by side{expected(every)}; logs: {BUILD}/tests-*.log")
    if not run(every):
        return 1
    left = [f"the tests on Slurm {' and '.join(VERSIONS)} (no Docker engine runs here)"] if not clusters else []
    left += ["the whole plugin (Slurm's headers come with the first image)"] if not headers else []
    left += ["fuzzing (its tools are not installed)"] if not fuzzing else []
    if left:
        say(f"what was run is well; not run: {', '.join(left)} (status {NOT_ALL})")
        return NOT_ALL
    say("all is well" if os.geteuid() == 0 else "all is well; what only root can do was skipped")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
