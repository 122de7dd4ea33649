# SPDX-License-Identifier: Apache-2.0
"""The node's part of a pre-flight: a script runs for a bounded time, until it works; a failure is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from policy.cli.main import main as berth
from prolog_epilog.preflight import runner
from tests.programs import python_program

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
_MODULE = "prolog_epilog.preflight.runner"
_RUN_IT = f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); runpy.run_module({_MODULE!r}, None, '__main__', True)"
RUNNER = [sys.executable, "-I", "-c", _RUN_IT]
"""As `python -I -m` runs it, but with the modules of this tree, not with the installed ones."""
PYTHON = sys.executable


@pytest.fixture
def world(tmp_path: Path) -> dict[str, str]:
    """What a script's environment has on a node; temporary files are where they can be counted."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "bin").mkdir()
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return {"PATH": path, "TMPDIR": str(tmp_path / "tmp"), "HOME": str(tmp_path), "PYTHONSAFEPATH": ""}


def script(tmp_path: Path, text: str, head: str = "#!/bin/bash") -> Path:
    file = tmp_path / "script"
    file.write_bytes(f"{head}\n{text}\n".encode())
    file.chmod(0o755)
    return file


def fly(
    world: dict[str, str], file: Path, *words: str, seconds: int = 30, rule: str = ""
) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    command = [*RUNNER, f"{seconds}{rule}", "--", str(file), *words]
    done = subprocess.run(
        command, cwd=ROOT, env=world, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )
    return done, time.monotonic() - began


def test_a_script_that_ends_before_its_first_step_ends_the_preflight_with_its_status(
    world: dict[str, str], tmp_path: Path
) -> None:
    for status in (0, 1, 77):
        done, _ = fly(world, script(tmp_path, f"echo out; echo err >&2; exit {status}"))
        assert (done.returncode, done.stdout) == (status, "out\n")
        assert "err\n" in done.stderr
    assert "the script ended with exit status 77" in done.stderr


def test_a_typo_is_told_at_once(world: dict[str, str], tmp_path: Path) -> None:
    done, took = fly(world, script(tmp_path, "set -e\npyhton train.py"))

    assert done.returncode == 127
    assert "pyhton: command not found" in done.stderr
    assert took < 25


def test_a_signal_that_killed_the_script_is_told_as_a_shell_tells_it(world: dict[str, str], tmp_path: Path) -> None:
    done, _ = fly(world, script(tmp_path, "kill -SEGV $$"))

    assert done.returncode == 128 + signal.SIGSEGV
    assert "exit status 139" in done.stderr


def test_the_words_of_the_script_are_its_own(world: dict[str, str], tmp_path: Path) -> None:
    done, _ = fly(world, script(tmp_path, 'printf "%s|" "$@"'), "a b", "1,must", "$x", "")

    assert done.stdout == "a b|1,must|$x||"


@pytest.mark.parametrize("head", ["#!PYTHON", "#!/usr/bin/env python3", "#! PYTHON -u"])
def test_any_interpreter_will_do(world: dict[str, str], tmp_path: Path, head: str) -> None:
    # The path of a checkout may hold a space, which ends an interpreter's name.
    (tmp_path / "interpreter").symlink_to(Path(PYTHON).resolve())
    head = head.replace("PYTHON", str(tmp_path / "interpreter"))
    done, _ = fly(world, script(tmp_path, "import os, sys\nprint(os.environ['BERTH_PREFLIGHT'])\nsys.exit(3)", head))

    assert (done.returncode, done.stdout) == (3, "1\n")


def test_a_script_that_cannot_be_started_is_its_own_failure(world: dict[str, str], tmp_path: Path) -> None:
    done, _ = fly(world, script(tmp_path, "true", "#!/no/such/shell"))

    assert done.returncode == 127
    assert "Traceback" not in done.stderr


def test_the_first_step_of_a_program_ends_it_well(world: dict[str, str], tmp_path: Path) -> None:
    text = "import time, berth_injob\nfor _ in range(100):\n    time.sleep(0.3)\n    berth_injob.step()"
    done, took = fly(world, script(tmp_path, f"'{PYTHON}' - <<'END'\n{text}\nEND\necho not reached"))

    assert done.returncode == 0
    assert "the first step was done in" in done.stderr
    assert "not reached" not in done.stdout
    assert took < 28


def test_ready_ends_it_well(world: dict[str, str], tmp_path: Path) -> None:
    done, took = fly(world, script(tmp_path, f"'{PYTHON}' -m policy.cli.main ready; sleep 50"))

    assert done.returncode == 0
    assert "the script said that it is ready" in done.stderr
    assert took < 28


def test_berth_ready_elsewhere_does_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BERTH_PREFLIGHT", raising=False)
    monkeypatch.setenv("BERTH_READY", str(tmp_path / "no" / "where"))
    assert berth(["ready"]) == 0
    monkeypatch.setenv("BERTH_PREFLIGHT", "1")
    assert berth(["ready"]) == 1


def test_it_never_takes_longer_than_its_time(world: dict[str, str], tmp_path: Path) -> None:
    """Not even where the script and what it starts do not listen."""
    done, took = fly(world, script(tmp_path, "trap '' TERM\n(trap '' TERM; sleep 60) &\nsleep 60"), seconds=4)

    assert done.returncode == 0
    assert "nothing went wrong in 3 s" in done.stderr
    # The script would take a minute.
    assert took < 30


def test_nothing_stays_behind(world: dict[str, str], tmp_path: Path) -> None:
    fly(world, script(tmp_path, f"sleep 61 & echo $! >{tmp_path}/child; sleep 62"), seconds=1)

    assert not list((tmp_path / "tmp").iterdir())
    child = int((tmp_path / "child").read_text())
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_preflight_that_is_cancelled_says_nothing_of_the_job(world: dict[str, str], tmp_path: Path) -> None:
    scancel = slurm(world, tmp_path, "7 afterany:6(unfulfilled)")
    file = script(tmp_path, "echo up\nexec sleep 50")
    flight = subprocess.Popen(
        [*RUNNER, "30,must", "--", str(file)], cwd=ROOT, env=world, stdout=subprocess.PIPE, text=True
    )
    assert flight.stdout is not None
    with flight.stdout:
        assert flight.stdout.readline() == "up\n"
        flight.terminate()
        assert flight.wait(20) == 128 + signal.SIGTERM
    assert not scancel.exists()
    assert not list((tmp_path / "tmp").iterdir())


def slurm(world: dict[str, str], tmp_path: Path, *queue: str, job: int = 6) -> Path:
    """A queue of Slurm's, in which the pre-flight is job 6; the file that has the jobs that were cancelled."""
    file = tmp_path / "cancelled"
    for name, text in (
        ("squeue", '[ -z "$SQUEUE_STATES" ] || exit 1\n' + "cat <<'END'\n" + "\n".join(queue) + "\nEND"),
        ("scancel", f'echo "$@" >>{file}'),
    ):
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    world |= {"SLURM_JOB_ID": str(job), "SQUEUE_STATES": "RUNNING"}
    return file


LOST = "RuntimeError: NCCL communicator was aborted: Connection reset by peer"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
TYPO = "ModuleNotFoundError: No module named 'apex'"


@pytest.mark.parametrize(
    ("said", "ends"),
    [
        (TYPO, {"", ",must", ",site"}),
        ("nothing that anybody knows", {"", ",must"}),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'shards-of-1'", {"", ",must"}),
        (OOM, {",must"}),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=6.batch", {",must"}),
        (LOST, {",must"}),
        ("CUDA error: uncorrectable ECC error encountered", {",must"}),
        ("RuntimeError: CUDA error: invalid device ordinal", {",must"}),
        ("There are not enough slots available in the system to satisfy the 32 slots", {",must"}),
        (f"{LOST}\n{TYPO}", {"", ",must", ",site"}),
    ],
)
@pytest.mark.parametrize("rule", ["", ",must", ",site"])
def test_a_failure_ends_the_job_if_it_says_something_about_it(
    world: dict[str, str], tmp_path: Path, said: str, ends: set[str], rule: str
) -> None:
    scancel = slurm(world, tmp_path, "9 afterany:66(unfulfilled)", "7 afterany:6(unfulfilled),afterok:5(unfulfilled)")
    file = script(tmp_path, f'echo "{said}" >&2; exit 1')
    log = tmp_path / "log"
    with log.open("w") as out:
        command = [*RUNNER, f"60{rule}", "--", str(file)]
        done = subprocess.run(command, cwd=ROOT, env=world, stdout=out, stderr=out, check=False)

    assert done.returncode == 1
    assert (scancel.read_text() if scancel.exists() else "") == ("--state=PENDING 7\n" if rule in ends else "")
    assert ("job 7, which waits for this pre-flight, is cancelled" in log.read_text()) == (rule in ends)


def test_a_node_on_which_slurm_does_not_answer_ends_no_job(world: dict[str, str], tmp_path: Path) -> None:
    done, _ = fly(world, script(tmp_path, "exit 3"), rule=",must")

    assert done.returncode == 3
    assert "the job cannot be cancelled from here" in done.stderr


def test_a_job_that_runs_by_now_is_not_cancelled(world: dict[str, str], tmp_path: Path) -> None:
    """Its user took the dependency away while the pre-flight ran."""
    scancel = slurm(world, tmp_path, "7 afterany:6(unfulfilled)")
    done, _ = fly(world, script(tmp_path, f"echo '#!/bin/sh' >{tmp_path}/bin/squeue; exit 3"), rule=",must")

    assert done.returncode == 3
    assert not scancel.exists()
    assert "no job waits for this pre-flight any more" in done.stderr


def test_a_job_that_slurm_did_not_tell_at_first_is_cancelled_all_the_same(
    world: dict[str, str], tmp_path: Path
) -> None:
    scancel = slurm(world, tmp_path, "7 afterany:6(unfulfilled)")
    queue = tmp_path / "bin" / "squeue"
    queue.rename(tmp_path / "later")
    done, _ = fly(world, script(tmp_path, f"mv {tmp_path}/later {queue}; exit 3"), rule=",must")

    assert done.returncode == 3
    assert scancel.read_text() == "--state=PENDING 7\n"


def test_a_preflight_whose_job_is_cancelled_ends(world: dict[str, str], tmp_path: Path) -> None:
    slurm(world, tmp_path, "7 afterany:6(unfulfilled)")
    file = script(tmp_path, f"echo '#!/bin/sh' >{tmp_path}/bin/squeue; exec sleep 50")
    code = f"from prolog_epilog.preflight import runner; runner.ASK_EVERY = 0.5; runner.run(40, 'asked', ['{file}'])"
    done = subprocess.run([PYTHON, "-c", code], cwd=ROOT, env=world, capture_output=True, text=True, check=True)

    assert "its job waits no more in" in done.stderr


@pytest.mark.parametrize(("rule", "looks_for"), [("asked", 10), ("must", 136)])
def test_a_preflight_whose_job_is_gone_does_not_run(
    world: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rule: str,
    looks_for: int,
) -> None:
    """With `must` it waits for longer than sbatch tries to submit the job: 120 s."""
    slurm(world, tmp_path, "9 afterany:66(unfulfilled)", "8 (null)")
    for name, value in world.items():
        monkeypatch.setenv(name, value)
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)

    assert runner.run(30, rule, [str(script(tmp_path, "echo ran >&2"))]) == 0
    assert "no job waits for this pre-flight" in capsys.readouterr().err
    assert sum(wait for wait in waits if isinstance(wait, int)) == looks_for


def launcher(tmp_path: Path, name: str, folder: str = "bin") -> Path:
    """A launcher that only prints what it is asked for."""
    file = tmp_path / folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text('#!/bin/sh\necho "launched $@"\n')
    file.chmod(0o755)
    return file


def test_a_python_launcher_is_caught_whatever_its_path(world: dict[str, str], tmp_path: Path) -> None:
    file = launcher(tmp_path, "torchrun", "env")
    python_program(file, "import sys\nprint(sys.argv[1:])\n")
    done, _ = fly(world, script(tmp_path, f"env {file} --nproc-per-node=8 train.py"))

    assert "'--nproc-per-node=1'" in done.stdout


def test_a_user_may_keep_berth_out_of_the_program(world: dict[str, str], tmp_path: Path) -> None:
    done, _ = fly({**world, "BERTH_INJOB": "off"}, script(tmp_path, 'echo "[$PYTHONPATH][$BERTH_WORD]"'))

    assert done.stdout == "[][]\n"


@pytest.mark.parametrize("words", [[], ["x", "--", "a"], ["5", "a", "b"], ["5,may", "--", "a"], ["5", "--"]])
def test_called_in_a_wrong_way_it_says_how(words: list[str]) -> None:
    done = subprocess.run([*RUNNER, *words], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr.startswith("berth-preflight: usage:")
