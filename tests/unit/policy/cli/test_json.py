# SPDX-License-Identifier: Apache-2.0
"""Each command with `--json` prints one object with `schema_version` and the keys of docs/develop/formats.md."""

import argparse
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from policy.cli import status
from policy.cli.doctor import command as doctor
from policy.cli.jobs import job_gpus, why
from policy.cli.main import build_parser, main
from policy.cli.output import SCHEMA_VERSION
from policy.formats.job_plan import JobPlan
from policy.report.collected import COLUMNS, SEPARATOR
from policy.sharing.profiles import Measured, ProfileKey, Store
from policy.site.overview import path_of
from prolog_epilog import doctor as node_doctor
from tests.programs import python_program
from tests.unit.policy.cli.test_release import EndingJob
from tests.unit.policy.report import test_report
from topology.scores import Score, dump

ROOT = Path(__file__).parents[4]
Setup = Callable[[Path, pytest.MonkeyPatch], list[str]]
"""Makes what a command reads, and returns its arguments."""


def documented() -> dict[str, list[str]]:
    """The rows of the section, by command: the words in backticks before the first text in brackets."""
    text = (ROOT / "docs" / "develop" / "formats.md").read_text().partition("## 15. JSON of the commands")[2]
    rows = re.findall(r"^\| `berth ((?:[a-z]|-(?!-)| (?!-))+)` \| (.*) \|$", text, re.MULTILINE)
    return {name: re.findall(r"`([a-z_]+)`", re.sub(r"\([^)]*\)", "", keys)) for name, keys in rows}


def with_json(parser: argparse.ArgumentParser, name: str = "") -> Iterator[str]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for word, child in action.choices.items():
            yield from with_json(child, f"{name} {word}".strip())
    if not below and any("--json" in action.option_strings for action in parser._actions):
        yield name


def fleet(folder: Path, _: pytest.MonkeyPatch) -> list[str]:
    (folder / "berth.conf").write_text(f'[hook]\nsocket = "{folder}/s"\n[users]\nhosts = ""\n')
    found = {"schema_version": 1, "at": 1.0, "nodes": [], "jobs": [], "idle": [], "left_out": 0}
    path_of(folder / "s").write_text(json.dumps(found))
    return []


def plain_site(*arguments: str) -> Setup:
    def laid(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        (folder / "slurm.conf").write_text("ClusterName=c\nNodeName=n1 Gres=gpu:2\n")
        monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        monkeypatch.setenv("PATH", "")
        return ["--state", str(folder / "state"), *arguments]

    return laid


def decision(_: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(why, "look_up", lambda _: why.Told("RUNNING", JobPlan({"state": "placed", "gpus": "0"})))
    return ["7"]


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str) -> None:
    (folder / "bin").mkdir()
    python_program(folder / "bin" / name, code)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


def dry_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    program(folder, monkeypatch, "sbatch", "import sys\nsys.stderr.write('sbatch: berth: n1 GPU 0\\n')\n")
    return ["--", "x.sh"]


def asked_status(_: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(status, "_ask", lambda _: {"version": "1", "answers": "3"})
    return []


def checks(_: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(doctor, "examine", lambda *_: [doctor.Finding("one", ok=True, text="well")])
    return []


def node_checks(_: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(node_doctor, "examine", lambda *_: [doctor.Finding("one", ok=True, text="well")])
    return ["node"]


def trace(folder: Path, _: pytest.MonkeyPatch) -> list[str]:
    (folder / "trace.csv").write_text("job_id,num_gpus,submit_time,duration\n1,1,0,100\n2,2,10,100\n")
    return [str(folder / "trace.csv"), "--nodes", "1", "--gpus-per-node", "4", "--workers", "1", "--policy", "packed"]


def profiles(folder: Path, _: pytest.MonkeyPatch) -> list[str]:
    key = ProfileKey("ann", "lab", "train")
    (folder / "profiles").write_text(Store({key: Measured(at=0.0, runs=1, busy=0.4)}).write())
    return ["--store", str(folder / "profiles")]


def scores(folder: Path, _: pytest.MonkeyPatch) -> list[str]:
    dump([Score("n1", 0, "GPU-a", "compute", 1.02)], folder / "scores")
    return [str(folder / "scores")]


def log(folder: Path, _: pytest.MonkeyPatch) -> list[str]:
    (folder / "log").write_text("CUDA out of memory\n")
    return [str(folder / "log")]


def runs(folder: Path, _: pytest.MonkeyPatch) -> list[str]:
    (folder / "runs").write_text(f"{test_report.HEADER}\n{test_report.line(1)}\n")
    return ["--from", str(folder / "runs"), "--gpus-per-node", "8"]


def accounting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    header = SEPARATOR.join(COLUMNS)
    program(folder, monkeypatch, "sacct", f"print({header!r})\n")
    return [str(folder / "runs"), "--since", "now-1days"]


def pinned(_: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("policy.slurm.gateways.open_gateway", lambda _: EndingJob(0, {}))
    return ["--all"]


def gpus_of_a_job(_: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(job_gpus, "asked_gpus", lambda *_: (0, 3))
    return ["7", "--node", "n1"]


def words(*arguments: str) -> Setup:
    return lambda _, __: list(arguments)


COMMANDS: dict[str, Setup] = {
    "nodes": fleet,
    "queue": fleet,
    "why": decision,
    "plan": dry_run,
    "status": asked_status,
    "doctor": checks,
    "migrate plan": plain_site("advise"),
    "migrate status": plain_site(),
    "topo show": words("machine:a6000-pairs"),
    "topo sets": words("machine:a6000-pairs", "--gpus", "2", "--idle"),
    "simulate": trace,
    "profile show": profiles,
    "scores show": scores,
    "collect": accounting,
    "release": pinned,
    "job-gpus": gpus_of_a_job,
    "classify": log,
    "report": runs,
}
ELSEWHERE = {"observe"}
"""It takes a cluster (tests/hard/test_observe.py)."""
OPEN = {"status", "report", "observe"}
"""Their keys stand in other sections."""


def test_the_page_has_a_row_for_each_command_that_prints_json() -> None:
    assert set(documented()) == set(with_json(build_parser())) == {*COMMANDS, *ELSEWHERE}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_an_object_with_the_documented_keys(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BERTH_CONF", str(tmp_path / "berth.conf"))
    (tmp_path / "berth.conf").write_text("")
    arguments = COMMANDS[name](tmp_path, monkeypatch)
    json_words = ["--json", "-"] if name == "report" else ["--json"]

    code = main([*name.split(), *json_words, *arguments])

    streams = capsys.readouterr()
    assert code == 0, streams.err
    found = json.loads(streams.out)
    assert found.pop("schema_version") == SCHEMA_VERSION
    if name == "scores show":
        found["watch"] = []
    if name not in OPEN:
        assert found.keys() <= set(documented()[name])
        assert found


def test_the_checks_of_a_node_have_the_same_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--json", *node_checks(tmp_path, monkeypatch)]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema_version": 1,
        "checks": [{"name": "one", "ok": True, "text": "well"}],
    }
