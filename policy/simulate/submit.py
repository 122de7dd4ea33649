"""Runs a study as a job array on the user's own cluster: one folder holds the study and a file for each finished run.

    DIR/study.json          the study, and checksums of its inputs
    DIR/runs/LABEL.json     a finished run
    DIR/logs/JOB_TASK.out   the output of the tasks

Submitting the same study to the same folder again submits only what is missing and not in the queue.
"""

import hashlib
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from policy.formats.errors import FormatError, SlurmError, UsageError
from policy.simulate.inputs.text import STDIN
from policy.simulate.report.files import placement_files
from policy.simulate.report.summary import Summary, as_plain
from policy.simulate.study import Cell, Study, cells
from policy.simulate.study import as_plain as study_as_plain
from policy.simulate.study import from_plain as study_from_plain
from policy.simulate.sweep import prepare, run_cell
from policy.slurm.unstarted import not_started
from topology import atomic

FORMAT = "berth-study/1"

_MOST_TASKS = 1000
"""Most tasks of an array; Slurm's default MaxArraySize is 1001."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of a study that was submitted to Slurm."""

    path: Path
    study: Study
    placements: str
    per_task: int

    @property
    def cells(self) -> list[Cell]:
        """All runs, in order."""
        return cells(self.study)

    def file(self, cell: Cell) -> Path:
        """Returns the file for the result of a run."""
        # A swept value may be a file's name; the digest keeps such names apart.
        safe = "".join(letter if letter.isalnum() or letter in "-_.=" else "_" for letter in cell.label)
        return self.path / "runs" / f"{safe}.{hashlib.sha256(cell.label.encode()).hexdigest()[:8]}.json"

    def task(self, number: int) -> list[Cell]:
        """Returns the runs of an array task."""
        return self.cells[number * self.per_task : (number + 1) * self.per_task]

    def missing(self) -> list[int]:
        """Returns the array tasks that have a run without a result."""
        tasks = range(-(-len(self.cells) // self.per_task))
        return [task for task in tasks if any(not self.file(cell).exists() for cell in self.task(task))]


def submit(study: Study, path: str, placements: str = "", options: Sequence[str] = ()) -> str:
    """Submits the missing runs; returns a sentence on what was done."""
    study = absolute(study)
    prepare(study)
    folder = _claim(study, Path(path).absolute(), placements)
    missing = folder.missing()
    here = f"berth simulate --gather {shlex.quote(path)}"
    if not missing:
        return f"all {len(folder.cells)} runs are there; read them with {here}"
    queued = _queued(folder)
    fresh = [task for task in missing if task not in queued]
    if not fresh:
        return f"{len(missing)} tasks are in the queue already, as job {', '.join(_jobs(folder))}"
    job = _sbatch(folder, fresh, options)
    with (folder.path / "jobs").open("a", encoding="utf-8") as jobs:
        jobs.write(f"{job}\n")
    runs = sum(not folder.file(cell).exists() for task in fresh for cell in folder.task(task))
    return f"submitted job {job}: {runs} of {len(folder.cells)} runs in {len(fresh)} tasks; read them with {here}"


def absolute(study: Study) -> Study:
    """Returns the study with absolute paths."""
    if STDIN in study.traces:
        raise UsageError("--submit cannot send standard input along; give the trace as a file")

    def whole(path: str) -> str:
        return str(Path(path).absolute()) if path else ""

    def scores(text: str) -> str:
        name, mark, path = text.partition("=")
        return f"{name}={whole(path)}" if mark and "/" not in name else whole(text)

    penalty = study.locality_penalty
    return replace(
        study,
        traces=tuple(map(whole, study.traces)),
        scores=tuple(map(scores, study.scores)),
        topology=whole(study.topology),
        fabric=whole(study.fabric),
        events=whole(study.events),
        quotas=whole(study.quotas),
        locality_penalty=whole(penalty) if Path(penalty).is_file() else penalty,
    )


def _claim(study: Study, path: Path, placements: str) -> Folder:
    """Makes the folder, or checks that it holds this same study."""
    count = len(cells(study))
    wanted = {
        "format": FORMAT,
        "study": json.loads(json.dumps(study_as_plain(study))),
        "inputs": _digests(study),
        "placements": str(Path(placements).absolute()) if placements else "",
        "per_task": -(-count // _MOST_TASKS),
    }
    file = path / "study.json"
    if file.exists():
        if _read(file) != wanted:
            raise UsageError(f"{path} holds another study, or its inputs have changed since; take another folder")
    else:
        try:
            for part in ("runs", "logs"):
                (path / part).mkdir(parents=True, exist_ok=True)
            _write(file, wanted)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return open_folder(str(path))


def open_folder(path: str) -> Folder:
    """Opens a folder that `submit` made."""
    file = Path(path) / "study.json"
    if not file.exists():
        raise UsageError(f"{path} holds no study; give the folder that --submit named")
    data = _read(file)
    if data.get("format") != FORMAT:
        raise FormatError(f'{file}: the format is "{data.get("format")}"; this Berth reads {FORMAT}')
    try:
        study = study_from_plain(data["study"])
        return Folder(Path(path).absolute(), study, data["placements"], data["per_task"])
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{file}: it is not what --submit writes ({error}); take another folder") from error


def work(path: str, task: int) -> None:
    """Runs an array task: its runs that have no result yet."""
    folder = open_folder(path)
    trace = prepare(folder.study)
    placements = placement_files(folder.placements, folder.cells) if folder.placements else {}
    for cell in folder.task(task):
        if not folder.file(cell).exists():
            _write(folder.file(cell), as_plain(run_cell(folder.study, cell, trace, placements.get(cell, ""))))


def gather(folder: Folder) -> tuple[list[Summary], int]:
    """Returns the results that exist, in order, and the number of those that are missing."""
    found = [Summary(**_read(file)) for cell in folder.cells if (file := folder.file(cell)).exists()]
    return found, len(folder.cells) - len(found)


def _sbatch(folder: Folder, tasks: Sequence[int], options: Sequence[str]) -> str:
    own = shlex.join([sys.executable, "-m", "policy.cli.main", "simulate", "--work", str(folder.path)])
    script = f"#!/bin/sh\nexec {own}\n"
    # The site's options come first, so that they cannot override the ones that the folder depends on.
    command = ["sbatch", "--job-name=berth-simulate", *options, "--parsable", f"--array={_folded(tasks)}"]
    command.append(f"--output={folder.path}/logs/%A_%a.out")
    done = _run(command, script)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SlurmError(f"sbatch refused the study: {reason}")
    return done.stdout.strip().splitlines()[-1].partition(";")[0]


def _queued(folder: Folder) -> set[int]:
    """Returns the tasks of earlier submissions that are in the queue."""
    jobs = _jobs(folder)
    if not jobs:
        return set()
    done = _run(["squeue", "--noheader", "--array", f"--jobs={','.join(jobs)}", "--format=%K"])
    # squeue fails for jobs that it has forgotten; then none is queued.
    return {int(word) for word in done.stdout.split() if word.isdigit()} if not done.returncode else set()


def _jobs(folder: Folder) -> list[str]:
    file = folder.path / "jobs"
    return file.read_text(encoding="utf-8").split() if file.exists() else []


def _run(command: Sequence[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    except OSError as problem:
        raise not_started(command[0], problem, "run --submit where Slurm's commands are") from problem


def _folded(tasks: Sequence[int]) -> str:
    """Returns task numbers in the form that sbatch takes.

    >>> _folded([0, 1, 2, 5])
    '0-2,5'
    """
    runs: list[list[int]] = []
    for task in tasks:
        if runs and task == runs[-1][1] + 1:
            runs[-1][1] = task
        else:
            runs.append([task, task])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _digests(study: Study) -> dict[str, str]:
    scores = [text.rpartition("=")[2] for text in study.scores]
    paths = [*study.traces, *scores, study.events, study.quotas, study.fabric]
    try:
        return {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths if path}
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{file}: it cannot be read ({error}); remove it and submit again") from error
    if not isinstance(data, dict):
        raise FormatError(f"{file}: an object is expected; remove it and submit again")
    return data


def _write(file: Path, data: object) -> None:
    """Writes a file in one step, so that a task that is stopped leaves no partial result."""
    atomic.replace(file, (json.dumps(data, indent=1) + "\n").encode("utf-8"))
