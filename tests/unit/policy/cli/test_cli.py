# SPDX-License-Identifier: Apache-2.0
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from policy.cli.jobs import why
from policy.cli.main import main
from policy.daemon.answer import main as berthd
from policy.formats import segment
from policy.formats.errors import ConfigError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_syntax.moments import local_time
from policy.plan.answer.explain import rows, sentence
from policy.site.config import load
from tests.programs import python_program

DATA = Path(__file__).parents[2] / "data" / "slurm-26.05"
ROOT = Path(__file__).parents[4]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands on PATH, printing a recording and writing updates down."""
    recording = Path(shutil.copytree(DATA, tmp_path / "recording"))
    shutil.copy(recording / "squeue-json", recording / "scontrol-json")
    commands = tmp_path / "bin"
    commands.mkdir()
    script = (
        "import sys\nfrom pathlib import Path\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from policy.slurm.by_command.recorded import Recording\n"
        f"sys.stdout.buffer.write(Recording(Path({str(recording)!r}))(Path(sys.argv[0]).name, *sys.argv[1:]))\n"
    )
    for name in ("scontrol", "squeue"):
        python_program(commands / name, script)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("BERTH_CONF", str(tmp_path / "berth.conf"))
    return recording


def waiting_job(recording: Path) -> int:
    jobs = json.loads((recording / "squeue-json").read_text())["jobs"]
    return int(next(job["job_id"] for job in jobs if job["job_state"] == ["PENDING"]))


def test_why_tells_the_decision_with_units(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "-v", str(waiting_job(slurm))]) == 0

    printed = capsys.readouterr().out
    assert "waits for GPUs that come free soonest" in printed
    assert "450 GB/s in the weakest pair, 12600 GB/s over all pairs" in printed
    assert "GPUs      0-7" in printed


def test_why_for_programs_has_a_version_and_types(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "--json", str(waiting_job(slurm))]) == 0

    printed = json.loads(capsys.readouterr().out)
    assert printed["schema_version"] == 1
    assert printed["decision"]["gpus"] == list(range(8))
    assert printed["decision"]["min_gbps"] == 450.0
    assert printed["decision"]["seats"] is True


def test_berth_alone_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])

    assert ended.value.code == 0
    assert "why a job got, or waits for, its GPUs" in capsys.readouterr().out


@pytest.mark.parametrize(("queue", "code", "words"), [("42\\n7\\n", 0, "job 42"), ("", 2, "none of your jobs")])
def test_why_without_a_number_is_about_the_callers_last_job(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    queue: str,
    code: int,
    words: str,
) -> None:
    python_program(tmp_path / "squeue", f"import sys\nassert '--me' in sys.argv\nprint('{queue}', end='')\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(why, "look_up", lambda _: why.Told("RUNNING", JobPlan({"state": "placed", "why": "best of 3"})))

    assert main(["why"]) == code
    assert words in "".join(capsys.readouterr())


def test_why_of_a_failed_job_tells_the_decision_where_slurms_commands_are_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = why.Told("FAILED", JobPlan({"state": "placed", "why": "best of 3"}))
    monkeypatch.setattr(why, "look_up", lambda _: told)
    monkeypatch.setenv("PATH", "/nowhere")

    assert main(["why", "-v", "7"]) == 0

    shown = capsys.readouterr().out
    assert "best of 3" in shown
    assert "scontrol is not on PATH" in shown


def test_why_of_a_job_left_to_slurm_gives_the_reason_and_the_flags() -> None:
    values = {"state": "passed", "why": "the tasks of an array are not placed yet", "f.movable": "", "f.retry": "3"}

    shown = dict(rows(7, "PENDING", JobPlan(values)))

    assert shown["decision"] == "left to Slurm [BERTH-201]"
    assert shown["reason"] == "the tasks of an array are not placed yet"
    assert (shown["--movable"], shown["--retry"]) == ("given", "3")


PLACE = {"nodes": "n1,n2", "gpus": "0,1,2", "why": "best of 3"}


@pytest.mark.parametrize(
    ("state", "values", "failure", "told"),
    [
        (
            "PENDING",
            {"state": "placed", **PLACE},
            [],
            "has n[1-2] GPUs 0-2 and starts when Slurm starts it: best of 3 [BERTH-101]",
        ),
        ("PENDING", {"state": "waiting", **PLACE}, [], "waits for n[1-2] GPUs 0-2: best of 3 [BERTH-102]"),
        (
            "PENDING",
            {"state": "waiting", **PLACE, "because": "capacity", "because_text": "2 GPUs are free [BERTH-515]"},
            [],
            "waits for n[1-2] GPUs 0-2: 2 GPUs are free [BERTH-515]",
        ),
        (
            "PENDING",
            {"state": "later", "why": "no end [BERTH-307]"},
            [],
            "waits until a place is in sight: no end [BERTH-307]",
        ),
        ("RUNNING", {"state": "waiting", **PLACE}, [], "runs on n[1-2] GPUs 0-2: best of 3 [BERTH-102]"),
        ("COMPLETED", {"state": "placed", **PLACE}, [], "ran on n[1-2] GPUs 0-2: best of 3 [BERTH-101]"),
        ("RUNNING", {"state": "passed", "why": "no GPUs [BERTH-202]"}, [], "is left to Slurm: no GPUs [BERTH-202]"),
        ("PENDING", {"state": "placed", **PLACE, "disagrees": "it has g3"}, [], "is held: it has g3 [BERTH-602]"),
        (
            "FAILED",
            {"state": "placed", **PLACE},
            [("failed", "oom: no memory"), ("known by", "its log")],
            "failed: oom: no memory; its log [BERTH-619]",
        ),
    ],
)
def test_why_tells_one_sentence(state: str, values: dict[str, str], failure: list[tuple[str, str]], told: str) -> None:
    assert sentence(7, state, JobPlan(values), failure) == f"job 7 {told}"


def test_why_prints_one_line(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(waiting_job(slurm))]) == 0

    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert re.search(r"^job \d+ waits for .* GPUs 0-7, expected by .* \[BERTH-\d{3}\]$", printed)


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["why", "seven"], 2, "not a job's number"),
        (["why", "7_"], 2, "not a job's number"),
        (["why", "99999"], 1, "job 99999 is not known"),
        (["release"], 2, "--all"),
        (["release", "--all", "5"], 2, "--all"),
        (["release", "--for-now", "5"], 2, "--all"),
        (["release", "7_"], 2, "not a job's number"),
        (["status"], 1, "berthd"),
    ],
)
def test_an_error_is_one_line_and_an_exit_status(
    slurm: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, what: str
) -> None:
    assert main(arguments) == code

    error = capsys.readouterr().err
    assert error.startswith("berth: error: ")
    assert what in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("missing", ["numpy", "msgspec"])
def test_a_package_that_a_smaller_installation_lacks_is_named(
    slurm: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def without(_: object) -> int:
        raise ModuleNotFoundError(f"No module named '{missing}'", name=missing)

    monkeypatch.setattr("policy.cli.jobs.release.run", without)

    assert main(["release", "--all"]) == 1
    assert capsys.readouterr().err == (
        f"berth: error: this command needs {missing}:"
        " install slurm-berth[daemon], or the package berth-controller [BERTH-708]\n"
    )


@pytest.mark.slow
def test_release_all_gives_back_each_waiting_pinned_job(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Only jobs that wait are listed by squeue -t PENDING; the recording does not filter, so do it here.
    queue = slurm / "squeue"
    queue.write_text("".join(line for line in queue.read_text().splitlines(keepends=True) if "|~PENDING|~" in line))

    assert main(["release", "--all"]) == 0

    assert "1 job given back to Slurm" in capsys.readouterr().out
    [update] = (slurm / "updates").read_text().splitlines()
    assert f"JobId={waiting_job(slurm)}" in json.loads(update)


def only_waiting(slurm: Path) -> None:
    """Only jobs that wait are listed by squeue -t PENDING; the recording does not filter, so do it here."""
    queue = slurm / "squeue"
    queue.write_text("".join(line for line in queue.read_text().splitlines(keepends=True) if "|~PENDING|~" in line))


@pytest.mark.slow
def test_what_the_unit_gives_back_at_berthds_end_the_next_berthd_takes_again(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only_waiting(slurm)
    (slurm / "scontrol-ping").write_text(f"Slurmctld(primary) at {socket.gethostname()} is UP\n")
    unit = (ROOT / "policy" / "daemon" / "berthd.service").read_text()
    [command] = re.findall(r"^ExecStopPost=/opt/berth/bin/berth (.*)$", unit, re.MULTILINE)

    assert main(command.split()) == 0

    assert "1 job given back to Slurm" in capsys.readouterr().out
    [update] = [json.loads(line) for line in (slurm / "updates").read_text().splitlines()]
    written = dict(word.partition("=")[::2] for word in update)
    values = segment.fields(written["AdminComment"]) or {}
    assert (values["state"], values["why"]) == ("later", "given back to Slurm until berthd runs again [BERTH-106]")
    assert "gpus" not in values
    assert written["TresPerNode"] == "gres/gpu:8"


def test_the_end_of_a_standbys_berthd_leaves_the_pins_of_the_active_one(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only_waiting(slurm)
    (slurm / "scontrol-ping").write_text("Slurmctld(primary) at elsewhere is UP\nSlurmctld(backup) at here is UP\n")

    assert main(["release", "--all", "--for-now"]) == 0

    assert "nothing given back" in capsys.readouterr().out
    assert not (slurm / "updates").exists()


@pytest.mark.slow
def test_a_job_whose_segment_cannot_be_read_does_not_keep_the_others_pinned(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only_waiting(slurm)
    as_tasks(slurm, 80, {80: 3, 81: 4})
    records = json.loads((slurm / "scontrol-json").read_text())
    records["jobs"][0]["admin_comment"] = "[berth/2 x=1]"
    (slurm / "scontrol-json").write_text(json.dumps(records))

    assert main(["release", "--all"]) == 1

    told = capsys.readouterr()
    assert "1 job given back to Slurm" in told.out
    assert "job 80 keeps its place: a segment of version berth/2" in told.err
    assert released(slurm) == ["JobId=80_4"]


def as_tasks(slurm: Path, array: int, tasks: Mapping[int, int]) -> None:
    """Let the recorded job that waits with a pin be several: tasks of an array, by their records' numbers."""
    first = waiting_job(slurm)
    line = next(line for line in (slurm / "squeue").read_text().splitlines() if line.startswith(f"{first}|~"))
    found = json.loads((slurm / "squeue-json").read_text())["jobs"]
    record = next(job for job in found if job["job_id"] == first)
    lines, arrays, records = "", "", []
    for number, task in tasks.items():
        new = line.replace(f"{first}|~", f"{number}|~", 1).replace(f"|~{first}|~", f"|~{array}_{task}|~")
        lines, arrays = f"{lines}{new}\n", f"{arrays}{number}|{array}_{task}|\n"
        ids = {"array_job_id": {"set": True, "number": array}, "array_task_id": {"set": True, "number": task}}
        records.append({**record, "job_id": number, **ids})
    (slurm / "squeue").write_text(lines)
    (slurm / "squeue-arrays").write_text(arrays)
    (slurm / "scontrol-json").write_text(json.dumps({"jobs": records}))


def released(slurm: Path) -> list[str]:
    return [json.loads(line)[0] for line in (slurm / "updates").read_text().splitlines()]


@pytest.mark.slow
def test_release_of_an_array_gives_back_each_of_its_tasks_that_waits(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_tasks(slurm, 80, {80: 0, 81: 1, 95: 7})

    assert main(["release", "80"]) == 0

    assert "3 jobs given back to Slurm" in capsys.readouterr().out
    # By number Slurm would take the first for all of them.
    assert released(slurm) == ["JobId=80_0", "JobId=80_1", "JobId=80_7"]


@pytest.mark.slow
def test_release_of_tasks_that_share_a_record_leaves_those_that_run(slurm: Path) -> None:
    as_tasks(slurm, 80, {80: 1})
    line = (slurm / "squeue").read_text()
    (slurm / "squeue").write_text(line + line.replace("|~80_1|~", "|~80_2|~"))
    (slurm / "squeue-arrays").write_text("80|80_[1-2%4]|\n")

    for name in ("80", "80_2"):
        assert main(["release", name]) == 0

    # By the array's number tasks that run already would be meant too.
    assert released(slurm) == ["JobId=80_1", "JobId=80_2", "JobId=80_2"]


@pytest.mark.slow
def test_release_of_one_task_leaves_the_others(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_tasks(slurm, 80, {80: 0, 81: 1, 95: 7})

    assert main(["release", "80_7"]) == 0
    assert released(slurm) == ["JobId=80_7"]
    assert main(["release", "80_8"]) == 1
    assert "task 80_8 does not wait with a pin of Berth" in capsys.readouterr().err
    assert released(slurm) == ["JobId=80_7"]


def test_a_reader_that_has_seen_enough_is_no_error(slurm: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "policy.cli.main", "why", str(waiting_job(slurm))]
    done = subprocess.run(command, cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE, check=False, timeout=30)
    os.close(write_end)

    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[berthd]\ntick = 5\n", "did you mean tick_ms"),
        ("[bertd]\n", "did you mean berthd"),
        ('[berthd]\ntick_ms = "5"\n', "a whole number"),
        ("[berthd]\ntick_ms = 1\n", "at least 50"),
        ("[berthd]\npin_ahead = 1\n", "true or false"),
        ('[berthd]\nlocality_wait = "soon"\n', "not a time"),
        ('[hook]\nfail = "maybe"\n', "open, closed"),
        ("berthd = 1\n", "table"),
        ("[berthd\n", "berth.conf"),
        ('[berthd]\nfabric = "topology.conf"\n', 'a path from / on, or "none"'),
    ],
)
def test_a_wrong_berth_conf_names_file_key_and_what_is_right(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "berth.conf"
    path.write_text(text)

    with pytest.raises(ConfigError, match=what) as caught:
        load(path)

    assert str(path) in str(caught.value)


def test_berth_conf_is_read_and_its_absence_means_defaults(tmp_path: Path) -> None:
    path = tmp_path / "berth.conf"
    assert load(path).tick == 1.0

    path.write_text('[hook]\nsocket = "/x"\ndeadline_ms = 20\n[berthd]\ntick_ms = 250\nlocality_wait = "1:00:00"\n')
    config = load(path)

    assert (str(config.socket), config.tick, config.settings.locality_wait) == ("/x", 0.25, 3_600)


def test_berthd_does_not_start_with_a_policy_that_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "berth.conf"
    conf.write_text('[berthd]\npolicy = "brth"\n')

    code = berthd.main(["--config", str(conf), "--check-config"])

    assert code == berthd.WRONG_CONFIG
    assert "there is no policy brth; did you mean berth" in capsys.readouterr().err


SBATCH = """#!/bin/sh
[ "$1 $2" = "--test-only --retry=0" ] || exit 9
case "$*" in
*gpus=99*) echo 'sbatch: error: berth: 99 GPUs are too many' >&2
    echo 'allocation failure: Requested node configuration is not available' >&2; exit 1 ;;
esac
echo 'sbatch: berth: n1 GPUs 0,4: NVLink 51.6 GB/s between every pair; best of 3 nodes' >&2
case ${SLURM_TIME_FORMAT:-standard} in standard) at=2026-11-21T15:42:14 ;; *) at='21 Nov 15:42' ;; esac
echo "sbatch: Job 7 to start at $at using 2 processors on nodes n1 in partition gpu" >&2
"""


@pytest.fixture
def sbatch(slurm: Path) -> None:
    command = slurm.parent / "bin" / "sbatch"
    command.write_text(SBATCH)
    command.chmod(0o755)


@pytest.mark.usefixtures("sbatch")
def test_plan_says_where_a_job_would_go_and_submits_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%d %b %H:%M")
    assert main(["plan", "--", "--gpus=2", "--wrap", "true"]) == 0

    printed = capsys.readouterr().out
    assert "berth  n1 GPUs 0,4: NVLink 51.6 GB/s between every pair; best of 3 nodes" in printed
    assert "slurm  would start it at 2026-11-21T15:42:14 on n1, partition gpu" in printed


@pytest.mark.usefixtures("sbatch")
def test_plan_of_a_job_that_is_refused_gives_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--", "--gpus=99", "--wrap", "true"]) == 1

    assert capsys.readouterr().err == "berth: error: 99 GPUs are too many [BERTH-700]\n"


def test_plan_on_a_host_without_the_plugin_says_what_is_missing(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = slurm.parent / "bin" / "sbatch"
    command.write_text("#!/bin/sh\necho \"sbatch: unrecognized option '$2'\" >&2\nexit 1\n")
    command.chmod(0o755)
    assert main(["plan", "--", "--gpus=2", "job.sh"]) == 1
    assert "an admin adds spank_berth.so to plugstack.conf" in capsys.readouterr().err


@pytest.mark.usefixtures("sbatch")
def test_plan_without_arguments_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 2
    assert "berth plan -- --gpus=2 job.sh" in capsys.readouterr().err


def test_why_shows_what_a_waiting_job_waits_for_and_the_time_left() -> None:
    values = {
        "state": "waiting", "because": "locality", "because_text": "it waits", "insists": "leaf", "wait": "600",
        "until": "1", "why": "best", "at": "1", "promised": "1000,1300",
    }  # fmt: skip

    found = dict(rows(5, "PENDING", JobPlan(values)))

    assert found["waits for"] == "locality: it waits"
    promised = f"for {local_time(1_000)} as plain Slurm would plan it (300 of 300 s more are used)"
    assert found["promised"] == promised
    assert sentence(5, "PENDING", JobPlan(values)) == f"job 5 waits, promised {promised}: it waits [BERTH-102]"
    assert found["level"] == "insists on leaf for 600 s, which are over"
    assert "waits for" not in dict(rows(5, "RUNNING", JobPlan(values)))
