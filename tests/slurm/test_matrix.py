"""Nothing that ran before is refused: every sbatch form x every srun form, plain Slurm against Berth alive and dead."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .harness import Slurm, until

BUILD = Path(__file__).resolve().parents[2] / "build"

# What a job asks for. MODEL forms are what users write on clusters whose GPUs are typed by model; Slurm alone
# refuses them under one type per GPU, so Berth alone is asked to run them.
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
    "--gpus=2 -w n2",
    "--gpus=2 -x n1,n2",
    "--gpus=2 -C h100",
    "--gpus=2 --exclusive",
    "--gpus=1 --array=0",
    "-n2",
    "--gres=none -n1",
)
MODELS = (
    "--gpus=h100:2",
    "--gres=gpu:v100:2",
    "--gres=gpu:v100",
    "--gpus-per-node=a6000:2",
    "--gpus-per-task=l40s:1 -n2",
    "--tres-per-task=gres/gpu:h100=1 -n2",
    "--gpus=h100:2 --cpus-per-gpu=2",
)
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
    "srun -n1 --overlap",
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

# Exit code and number of GPUs opened, for each step form of each job form.
Cells = dict[str, dict[str, tuple[int, int]]]
Table = dict[str, Cells]


def body(steps: tuple[str, ...]) -> str:
    """A script that runs every step form and writes down how each ended."""
    lines = ["P=/home/tests/probe.sh", "echo JOB"]
    lines += [STEP.format(name=step, command=f"{step} $P") for step in steps]
    lines.append(STEP.format(name="two steps side by side", command=PARALLEL))
    return "\n".join(lines)


def slug(form: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", form).strip("_")


def run_all(slurm: Slurm, partition: str, forms: tuple[str, ...], label: str) -> Cells:
    """For each job form: each step form's exit code and number of GPUs opened; the job's own acceptance as `submit`."""
    folder = f"{slurm.shared}/{label}"
    slurm.target.bash(f"rm -rf {folder}; install -d -m 1777 {folder}", user="root")
    lines = [f"cd {folder}"]
    for form in forms:
        model = re.search(r"gpu=?[:=]?.*?\b(h100|v100|a6000|l40s)\b", form)
        steps = STEPS + tuple(s.replace("MODEL", model[1]) for s in MODEL_STEPS) if model and form in MODELS else STEPS
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

    gather = f"""
    cd {folder}
    for rc in *.rc; do name=${{rc%.rc}}; echo "FILE $name $(cat $rc)"; cat $name.err $name.out 2>/dev/null; done
    """
    found: Cells = {}
    for part in slurm.target.bash(gather).out.split("FILE ")[1:]:
        head, _, text = part.partition("\n")
        name, rc = head.split()
        cells = {"submit": (int(rc), 0)}
        for step in text.split("STEP ")[1:]:
            ended = re.search(r"^RC (\d+)$", step, re.MULTILINE)
            opened = sum(len(gpus.split(",")) for gpus in re.findall(r"gpus=(\S+)", step))
            cells[step.splitlines()[0]] = (int(ended[1]) if ended else 255, opened)
        cells["whole"] = (0 if "END" in text.splitlines() else 1, 0)
        found[name] = cells
    return found


@pytest.fixture(scope="module")
def matrix(slurm: Slurm) -> Table:
    slurm.clear()
    table = {
        "plain": run_all(slurm, "plain", JOBS, "plain"),
        "alive": run_all(slurm, "gpu", JOBS + MODELS, "alive"),
    }
    slurm.berthd("stop")
    table["dead"] = run_all(slurm, "gpu", JOBS + MODELS, "dead")
    slurm.berthd("start")
    BUILD.mkdir(exist_ok=True)
    version = ".".join(f"{part:02}" for part in slurm.version)
    (BUILD / f"matrix-{version}.json").write_text(json.dumps(table, indent=1), encoding="utf-8")
    return table


@pytest.mark.parametrize("daemon", ["alive", "dead"])
def test_what_ran_before_still_runs(matrix: Table, daemon: str) -> None:
    refused = [
        f"{job} / {step}: plain Slurm 0, Berth {matrix[daemon][job].get(step, ('missing',))[0]}"
        for job, cells in matrix["plain"].items()
        for step, (rc, _) in cells.items()
        if rc == 0 and matrix[daemon][job].get(step, (1, 0))[0] != 0
    ]

    assert not refused, "\n".join(refused)
    assert sum(len(cells) for cells in matrix["plain"].values()) > len(JOBS) * len(STEPS)


@pytest.mark.parametrize("daemon", ["alive", "dead"])
def test_steps_see_as_many_gpus_as_before(matrix: Table, daemon: str) -> None:
    fewer = [
        f"{job} / {step}: plain Slurm {count} GPUs, Berth {matrix[daemon][job][step][1]}"
        for job, cells in matrix["plain"].items()
        for step, (rc, count) in cells.items()
        if rc == 0 and matrix[daemon][job][step][1] != count
    ]

    assert not fewer, "\n".join(fewer)


@pytest.mark.parametrize("daemon", ["alive", "dead"])
def test_jobs_that_name_a_model_run_and_so_do_their_steps(matrix: Table, daemon: str) -> None:
    """One type per GPU must not cost users the model names that they have in their scripts."""
    bad = [
        f"{form} / {step}: {rc}" for form in MODELS for step, (rc, _) in matrix[daemon][slug(form)].items() if rc != 0
    ]

    assert not bad, "\n".join(bad)
