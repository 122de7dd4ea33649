# SPDX-License-Identifier: Apache-2.0
"""All forms of sbatch with all forms of srun, on plain Slurm and with berthd alive and dead: none is newly refused."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from .deal import dealt
from .harness import Slurm, everywhere, until

BUILD = Path(__file__).resolve().parents[2] / "build"

# What a job asks for.
JOBS = (
    "--gpus=2",
    "--gpus=2 -N1",
    "--gpus=4 -N2",
    "--gpus=3 -N2",
    "--gpus=10",
    "--gres=gpu",
    "--gres=gpu:2",
    "--gres=gpu:2 -N2",
    "--gres=gpu:2 -N1-2",
    "--gres=gpu:2 -n4 -c2",
    "--gres=gpu:2 -n40",
    "--gpus-per-node=2",
    "--gpus-per-node=2 -N2",
    "--gpus-per-node=1 --ntasks-per-node=2",
    "--gpus-per-task=1 -n2",
    "--gpus-per-task=1 -n2 -N2",
    "--gpus-per-task=1 -n2 -c2",
    "--tres-per-task=cpu=2,gres/gpu=1 -n2",
    "--gpus-per-socket=1 --sockets-per-node=2 -c2 -n2",
    "--gpus=2 --cpus-per-gpu=3",
    "--gres=gpu:2 --cpus-per-gpu=3",
    "--gpus-per-node=2 --cpus-per-gpu=2 -N2",
    "--gpus=2 --ntasks-per-gpu=2",
    "--gpus=2 --mem-per-gpu=100",
    "--gres=gpu:2 --mem-per-gpu=100 --cpus-per-gpu=2",
    "--gpus=2 --mem=500 -c4",
    "--gpus=2 --gpu-bind=single:1 -n2",
    "--gpus=2 -N1 -w n2",
    "--gpus=2 -x n1,n2",
    "--gpus=2 -C h100",
    "--gpus=2 --exclusive",
    "--gpus=1 --array=0",
    "-n2",
    "--gres=none -n1",
)
# How many GPUs these get hangs on the sockets that happen to be free, with plain Slurm as with Berth, which leaves them
# to Slurm.
COUNT_VARIES = {"--gpus-per-socket=1 --sockets-per-node=2 -c2 -n2"}
# What users write on clusters whose GPUs are typed by model. Slurm alone refuses these under one type per GPU, so the
# same request by feature is its equal.
MODELS = {
    "--gpus=h100:2": "--gpus=2 -C h100",
    "--gres=gpu:v100:2": "--gres=gpu:2 -C v100",
    "--gres=gpu:v100": "--gres=gpu -C v100",
    "--gpus-per-node=a6000:2": "--gpus-per-node=2 -C a6000",
    "--gpus-per-task=l40s:1 -n2": "--gpus-per-task=1 -n2 -C l40s",
    "--tres-per-task=gres/gpu:h100=1 -n2": "--tres-per-task=gres/gpu=1 -n2 -C h100",
    "--gpus=h100:2 --cpus-per-gpu=2": "--gpus=2 --cpus-per-gpu=2 -C h100",
}
# What the job's script then runs. MODEL is replaced by the job's own model, where it named one.
STEPS = (
    "srun",
    "srun -n1",
    "srun -n2 --overcommit",
    "srun -n1 --gres=gpu:1",
    "srun -n1 --gpus=1",
    "srun -n1 --gpus-per-node=1",
    "srun -n1 --gpus-per-task=1",
    "srun -n1 --exact --gpus=1",
    "srun -n1 --gres=none",
    "srun -n1 --gpu-bind=single:1",
    "srun -n1 --overlap --mem=0",
    "srun -n1 --gpus=1 --cpus-per-gpu=1",
    "srun -n1 --gpus=1 --mem-per-gpu=20",
    "srun -n1 --export=NONE",
)
MODEL_STEPS = ("srun -n1 --gres=gpu:MODEL:1", "srun -n1 --gpus=MODEL:1", "srun -n1 --gpus-per-task=MODEL:1")
PARALLEL = (
    "srun -n1 -c1 --exact --gpus=1 --mem=20 $P & a=$!; srun -n1 -c1 --exact --gpus=1 --mem=20 $P & wait $a && wait $!"
)

STEP = """
echo "STEP {name}"; ( timeout 20 {command} ) 2>&1; echo "RC $?"
"""

pytestmark = pytest.mark.timeout(1_800)
FULL = os.environ.get("BERTH_FULL_MATRIX") == "1"
"""Every job form with every step form, and with srun and salloc; else each job form has a third of the step forms."""

# Exit code and number of GPUs opened, for each step form of each job form.
Cells = dict[str, dict[str, tuple[int, int]]]
Table = dict[str, Cells]


def jobs_of(slurm: Slurm) -> tuple[str, ...]:
    """The job forms that this version is tried with."""
    return JOBS if FULL else dealt(JOBS, slurm.name)


def models_of(slurm: Slurm) -> dict[str, str]:
    """Returns the forms that name a model, each with its form without one."""
    return MODELS if FULL else {job: MODELS[job] for job in dealt(tuple(MODELS), slurm.name)}


def body(steps: tuple[str, ...]) -> str:
    """Returns a script that runs every step form and writes down how each ended."""
    lines = ["P=/home/tests/probe.sh", "echo JOB"]
    lines += [STEP.format(name=step, command=f"{step} $P") for step in steps]
    lines.append(STEP.format(name="two steps side by side", command=PARALLEL))
    return "\n".join(lines)


def steps_of(form: str) -> tuple[str, ...]:
    """The step forms that a job form is tried with; of models and features also those that may name the model."""
    if FULL:
        return STEPS
    if form in MODELS or form in MODELS.values():
        turn = next(i for i, pair in enumerate(MODELS.items()) if form in pair)
        unnamed = {step.replace("MODEL:", "") for step in MODEL_STEPS}
        return tuple(step for i, step in enumerate(STEPS) if i % 3 == turn % 3 or step in unnamed)
    return STEPS[JOBS.index(form) % 3 :: 3]


def slug(form: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", form).strip("_")


def run_all(slurm: Slurm, partition: str, forms: tuple[str, ...], label: str) -> Cells:
    """For each job form: each step form's exit code and number of GPUs opened; the job's own acceptance as `submit`."""
    folder = f"{slurm.shared}/{label}"
    slurm.target.bash(f"rm -rf {folder}; install -d -m 1777 {folder}", user="root")
    lines = [f"cd {folder}"]
    for form in forms:
        model = re.search("h100|v100|a6000|l40s", form)
        named = tuple(step.replace("MODEL", model[0]) for step in MODEL_STEPS) if model and form in MODELS else ()
        steps = steps_of(form) + named
        name = slug(form)
        lines.append(f"cat > {name}.sh <<'END'\n#!/bin/bash\n{body(steps)}\necho END\nEND")
        memory = "" if "mem" in form else "--mem-per-cpu=100"
        options = f"-p {partition} -t 5 {memory} {form} -o {name}.out"
        lines.append(f"sbatch --parsable {options} {name}.sh > {name}.id 2> {name}.err")
        lines.append(f"echo $? > {name}.rc")
    slurm.target.bash("\n".join(lines), timeout=180)
    until(
        "the matrix to drain",
        lambda: not slurm.target.run(["squeue", "-h", "-u", "alice"]).out.strip(),
        240,
        0.5,
    )

    if FULL:
        listed = "\n".join(f"{slug(form)} {form}" for form in forms)
        slurm.target.run(["tee", f"{folder}/forms"], stdin=f"{listed}\n")
        slurm.target.bash(DIRECT.replace("{folder}", folder).replace("{partition}", partition), timeout=580)

    gather = f"""
    cd {folder}
    for rc in *.rc; do
        name=${{rc%.rc}}; echo "FILE $name $(cat $rc)"; cat $name.err $name.out $name.direct 2>/dev/null
    done
    true
    """
    found: Cells = {}
    for part in slurm.target.bash(gather).out.split("FILE ")[1:]:
        head, _, text = part.partition("\n")
        name, rc = head.split()
        cells = {"submit": (int(rc), 0)}
        for step in text.split("STEP ")[1:]:  # the batch job's, then those of srun and salloc
            ended = re.search(r"^RC (\d+)$", step, re.MULTILINE)
            opened = sum(len(gpus.split(",")) for gpus in re.findall(r"gpus=(\S+)", step))
            cells[step.splitlines()[0]] = (int(ended[1]) if ended else 255, opened)
        cells["whole"] = (0 if "END" in text.splitlines() else 1, 0)
        found[name] = cells
    return found


# The same request to srun and to salloc, a few at a time; what they say is added to the batch job's output.
DIRECT = """
ask() {
    name=$1 folder=$2 partition=$3; shift 3
    memory=--mem-per-cpu=100; case "$*" in *mem*) memory= ;; esac
    case "$*" in *array*) return ;; esac
    P=/home/tests/probe.sh
    {
        echo "STEP direct srun"; timeout 40 srun -p $partition -t 2 $memory "$@" $P; echo "RC $?"
        echo "STEP salloc, srun"; timeout 40 salloc -Q -p $partition -t 2 $memory "$@" srun $P; echo "RC $?"
    } > $folder/$name.direct 2>&1
}
export -f ask
while read -r name form; do echo "ask $name {folder} {partition} $form"; done <{folder}/forms |
    xargs -d '\\n' -P 4 -n 1 bash -c
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """A step of a job that ran with plain Slurm and did not, or saw other GPUs, with Berth."""

    daemon: str
    job: str
    plain_job: str
    step: str
    plain: tuple[int, int]
    berth: tuple[int, int]


def differences(table: Table, daemon: str, pairs: dict[str, str]) -> list[Difference]:
    """Returns the cells where plain Slurm succeeded and Berth differs. Of exit codes only zero or not is compared."""
    found = []
    for job, plain_job in pairs.items():
        for step, plain in table["plain"][slug(plain_job)].items():
            berth = table[daemon][slug(job)].get(step, (255, 0))
            same = berth[0] == 0 and (berth == plain or job in COUNT_VARIES)
            if plain[0] == 0 and not same:
                found.append(Difference(daemon, job, plain_job, step, plain, berth))
    return found


@pytest.fixture(scope="session")
def matrices(clusters: dict[str, Slurm]) -> dict[str, Table]:
    return everywhere(clusters, matrix_of)


@pytest.fixture
def matrix(slurm: Slurm, matrices: dict[str, Table]) -> Table:
    return matrices[slurm.name]


def matrix_of(slurm: Slurm) -> Table:
    """Runs every cell. Among other jobs Slurm may spread a job over nodes: one that differs is run again by itself."""
    slurm.clear()
    jobs, models = jobs_of(slurm), models_of(slurm)
    pairs = {job: job for job in jobs} | models
    table = {
        "plain": run_all(slurm, "plain", tuple(dict.fromkeys(pairs.values())), "plain"),
        "alive": run_all(slurm, "gpu", tuple(pairs), "alive"),
    }
    for job, plain_job in {(d.job, d.plain_job) for d in differences(table, "alive", pairs)}:
        table["plain"] |= run_all(slurm, "plain", (plain_job,), "plain-again")
        table["alive"] |= run_all(slurm, "gpu", (job,), "alive-again")
    slurm.berthd("stop")
    table["dead"] = run_all(slurm, "gpu", tuple(pairs), "dead")
    for job, plain_job in {(d.job, d.plain_job) for d in differences(table, "dead", pairs)}:
        table["plain"] |= run_all(slurm, "plain", (plain_job,), "plain-again")
        table["dead"] |= run_all(slurm, "gpu", (job,), "dead-again")
    slurm.berthd("start")
    BUILD.mkdir(exist_ok=True)
    version = ".".join(f"{part:02}" for part in slurm.version)
    (BUILD / f"matrix-{version}.json").write_text(json.dumps(table, indent=1), encoding="utf-8")
    return table


@pytest.mark.parametrize("daemon", ["alive", "dead"])
def test_what_ran_before_still_runs_and_sees_as_many_gpus(slurm: Slurm, matrix: Table, daemon: str) -> None:
    different = differences(matrix, daemon, {job: job for job in jobs_of(slurm)})

    assert not different, "\n".join(map(str, different))
    cells = [rc for row in matrix["plain"].values() for rc, _ in row.values()]
    assert cells.count(0) > len(cells) / 2


@pytest.mark.parametrize("daemon", ["alive", "dead"])
def test_jobs_that_name_a_model_run_like_those_that_name_a_feature(slurm: Slurm, matrix: Table, daemon: str) -> None:
    """One type per GPU must not cost users the model names that they have in their scripts."""
    different = differences(matrix, daemon, models_of(slurm))

    assert not different, "\n".join(map(str, different))


@pytest.mark.parametrize("daemon", ["alive", "dead"])
def test_steps_may_name_the_model_too(slurm: Slurm, matrix: Table, daemon: str) -> None:
    bad = {
        f"{job} / {step}": cell
        for job, plain_job in models_of(slurm).items()
        for step, cell in matrix[daemon][slug(job)].items()
        if (model := re.search("(h100|v100|a6000|l40s):", step))
        and matrix["plain"][slug(plain_job)][step.replace(model[0], "")][0] == 0
        and cell[0] != 0
    }

    assert bad == {}
    for job, plain_job in models_of(slurm).items():
        named = plain_job.split()[-1]
        assert any(f"gpu:{named}:1" in step for step in matrix[daemon][slug(job)])
