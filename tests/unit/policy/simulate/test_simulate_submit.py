"""`--submit`: a study as a job array. sbatch and squeue are stand-ins on PATH; the tasks run for real."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from policy.cli.main import main
from policy.simulate import submit

ROOT = Path(__file__).parents[4]
STUDY = (
    *("trace.csv", "--mode", "pal-rounds", "--nodes", "2", "--gpus-per-node", "2", "--repeat", "0"),
    *("--policy", "packed", "--policy", "pm-first", "--seed", "1:3"),
)

SBATCH = """#!/bin/sh
# Keeps what it was given, and answers as sbatch --parsable does.
printf '%s\\n' "$@" > called
cat > script
echo "41;cluster"
"""


class Cluster:
    """The stand-in for a Slurm cluster, in a folder that is the current one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, name: str, text: str) -> None:
        file = self.folder / "bin" / name
        file.write_text(text)
        file.chmod(0o755)

    @property
    def arguments(self) -> list[str]:
        return (self.folder / "called").read_text().splitlines()

    @property
    def array(self) -> str:
        # Of an option that is given twice, sbatch takes the last.
        return [word for word in self.arguments if word.startswith("--array=")][-1].removeprefix("--array=")

    @staticmethod
    def run_task(number: int) -> None:
        """What a task does, in this process."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_ARRAY_TASK_ID", str(number))
            assert main(["simulate", "--work", "out"]) == 0

    def run_script(self, number: int) -> None:
        """Do what the submitted script says, as slurmd would."""
        environment = os.environ | {"SLURM_ARRAY_TASK_ID": str(number), "PYTHONPATH": str(ROOT)}
        subprocess.run(["/bin/sh", "script"], cwd=self.folder, env=environment, check=True, timeout=60)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    lines = [f"{job},{1 + job % 3},{100 * job},5000,vgg19" for job in range(6)]
    (tmp_path / "trace.csv").write_text("job_id,num_gpus,submit_time,duration,model\n" + "\n".join(lines) + "\n")
    made = Cluster(tmp_path)
    made.command("sbatch", SBATCH)
    made.command("squeue", "#!/bin/sh\nexit 1\n")
    return made


def berth(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    code = main(["simulate", *options])
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def figures(text: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in one.items() if name != "wall_s"} for one in json.loads(text)["runs"]]


@pytest.mark.slow
def test_an_array_gives_what_one_process_gives(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = berth(
        capsys, *STUDY, "--submit", "out", "--sbatch=--partition=cpu --time=10 --array=7", "--placements", "p.csv"
    )

    assert (code, cluster.array) == (0, "0-5")
    assert "submitted job 41: 6 of 6 runs in 6 tasks; read them with berth simulate --gather out" in said
    assert {"--partition=cpu", "--time=10", "--parsable"} <= set(cluster.arguments)
    assert sys.executable in (cluster.folder / "script").read_text()

    cluster.run_script(0)
    for task in range(1, 6):
        cluster.run_task(task)
    code, gathered, _ = berth(capsys, "--gather", "out", "--json", "--report", "r.html")
    assert code == 0
    assert figures(gathered) == figures(berth(capsys, *STUDY, "--workers", "1", "--json")[1])
    assert len(list(cluster.folder.glob("p.*.csv"))) == 6
    assert "all 6 runs are there" in berth(capsys, *STUDY, "--submit", "out", "--placements", "p.csv")[1]


def test_only_what_is_missing_is_submitted_again(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    berth(capsys, *STUDY, "--submit", "out")
    for task in (0, 3):
        cluster.run_task(task)
    code, table, warning = berth(capsys, "--gather", "out")
    assert code == 1
    assert len(table.partition("\n\n")[2].splitlines()) == 3
    assert "4 runs are missing" in warning

    assert "4 of 6 runs in 4 tasks" in berth(capsys, *STUDY, "--submit", "out")[1]
    assert cluster.array == "1-2,4-5"


def test_what_is_in_the_queue_is_not_submitted_twice(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    berth(capsys, *STUDY, "--submit", "out")
    cluster.command("squeue", '#!/bin/sh\nprintf "%s\\n" "$@" > asked\nprintf "4\\n5\\n"\n')
    berth(capsys, *STUDY, "--submit", "out")

    assert cluster.array == "0-3"
    assert "--jobs=41" in (cluster.folder / "asked").read_text().splitlines()

    cluster.command("squeue", "#!/bin/sh\nseq 0 5\n")
    assert "6 tasks are in the queue already, as job 41, 41" in berth(capsys, *STUDY, "--submit", "out")[1]


def test_many_runs_share_tasks(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "_MOST_TASKS", 2)
    berth(capsys, *STUDY, "--submit", "out")
    assert cluster.array == "0-1"

    cluster.run_task(1)
    assert "3 of 6 runs in 1 tasks" in berth(capsys, *STUDY, "--submit", "out")[1]
    assert cluster.array == "0"


def test_a_folder_keeps_to_its_study(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    berth(capsys, *STUDY, "--submit", "out")

    assert "another study" in berth(capsys, *STUDY, "--backfill", "--submit", "out")[2]
    with (cluster.folder / "trace.csv").open("a") as trace:
        trace.write("9,1,9,9,vgg19\n")
    assert "its inputs have changed" in berth(capsys, *STUDY, "--submit", "out")[2]


@pytest.mark.parametrize(
    ("sbatch", "says"),
    [
        ("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2; exit 1\n", "sbatch refused the study: sbatch: error"),
        (None, "sbatch is not on PATH"),
    ],
)
def test_a_refusal_is_one_sentence_and_leaves_the_folder_usable(
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    sbatch: str | None,
    says: str,
) -> None:
    with monkeypatch.context() as patch:
        if sbatch is None:
            patch.setenv("PATH", "/nowhere")
        else:
            cluster.command("sbatch", sbatch)
        code, _, error = berth(capsys, *STUDY, "--submit", "out")
    assert (code, error.count("\n")) == (1, 1)
    assert says in error

    cluster.command("sbatch", SBATCH)
    assert berth(capsys, *STUDY, "--submit", "out")[0] == 0


def test_what_cannot_run_is_refused_before_it_is_submitted(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (("--scores", "none.csv"), ("--limits", "some"), ("--policy", "pall")):
        assert berth(capsys, *STUDY, *options, "--submit", "out")[0] != 0
    assert berth(capsys, "-", *STUDY[1:], "--submit", "out")[0] == 2
    assert not (cluster.folder / "called").exists()


def test_a_broken_result_is_named(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    berth(capsys, *STUDY, "--submit", "out")
    assert "none of 6 runs has ended yet" in berth(capsys, "--gather", "out")[2]
    cluster.run_task(2)
    (result,) = (cluster.folder / "out" / "runs").iterdir()
    result.write_text("{")

    assert f"{result}: it cannot be read" in berth(capsys, "--gather", "out")[2]
