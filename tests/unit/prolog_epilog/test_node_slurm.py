# SPDX-License-Identifier: Apache-2.0
"""What a node asks of Slurm: of one job alone, also where Slurm takes its number for that of a whole array."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from prolog_epilog.errors import NodeSlurmError
from prolog_epilog.job.slurm import Scontrol

AWAY = "site text [berth/1 state=placed id=00 tier=opportunistic parked=1795327596 evicted=1] more"
SEATED = "[berth/1 state=placed id=00 tier=opportunistic evicted=1]"


def scontrol(folder: Path, state: str, comment: str, name: str = "job") -> Scontrol:
    """Prints a record as Slurm does."""
    record = f"JobId=42 JobName={name}\n   UserId=alice(1001)\n   JobState={state} Reason=None\n   Restarts=1\n"
    (folder / "record").write_text(f"{record}   AdminComment={comment}\n   Comment={AWAY}\n")
    program = folder / "scontrol"
    program.write_text(f'#!/bin/sh\n[ "$*" = "show job 42" ] && cat {folder}/record\n')
    program.chmod(0o755)
    return Scontrol(str(program), seconds=60.0)


@pytest.mark.parametrize(
    ("state", "comment", "sent_away"),
    [
        ("COMPLETING", AWAY, True),
        ("PENDING", AWAY, True),
        ("RUNNING", AWAY, False),  # warned, and not put back yet
        ("COMPLETING", SEATED, False),  # its user or its time limit ends it
        ("CANCELLED", AWAY, False),
        ("COMPLETING", "", False),
    ],
)
def test_only_a_guest_that_is_put_back_was_sent_away(
    tmp_path: Path, state: str, comment: str, *, sent_away: bool
) -> None:
    assert scontrol(tmp_path, state, comment).is_sent_away(42) is sent_away


def record(job: int, task: str, state: str, comment: str = "", name: str = "sweep", gres: str = "") -> str:
    """As Slurm prints one; `task` is `ARRAY_TASK`, or empty."""
    array, _, number = task.partition("_")
    ids = f"ArrayJobId={array} ArrayTaskId={number} " if task else ""
    places = f"   Socks/Node=*\n   JOB_GRES=seat:1\n     Nodes=n1 CPU_IDs=0 Mem=1 GRES={gres}\n" if gres else ""
    lines = [f"JobId={job} {ids}JobName={name}", "   UserId=alice(1001)", f"   JobState={state} Reason=None"]
    return "\n".join([*lines, f"{places}   AdminComment={comment}", "", ""])


class Asked:
    """A scontrol that answers by its words, and writes them down."""

    def __init__(self, folder: Path, answers: Mapping[str, str]) -> None:
        self._folder = folder
        (folder / "answers").mkdir()
        for words, answer in answers.items():
            (folder / "answers" / words).write_text(answer)
        program = folder / "scontrol"
        program.write_text(
            f'#!/bin/sh\necho "$*" >>{folder}/asked\ncase "$1" in requeue) exit 0;; esac\n'
            f'cat "{folder}/answers/$*" 2>/dev/null || {{ echo "slurm_load_jobs error: Invalid job id"; exit 1; }}\n'
        )
        program.chmod(0o755)
        self.slurm = Scontrol(str(program), seconds=60.0)

    @property
    def words(self) -> list[str]:
        return (self._folder / "asked").read_text().splitlines()


LAST = record(42, "42_3", "COMPLETING", AWAY, gres="seat:g3:1(IDX:3)")
"""The last task of an array keeps the array's number as its own."""
OTHERS = [record(43, "42_1", "RUNNING", SEATED, gres="seat:g1:1(IDX:1)"), record(44, "42_2", "COMPLETED")]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine may need a second to start a shell."""
    monkeypatch.setattr("prolog_epilog.job.slurm._CHANGE_SECONDS", 60.0)


@pytest.fixture(params=["first", "last"])
def array(request: pytest.FixtureRequest, tmp_path: Path) -> Asked:
    """Three tasks; Slurm shows the one with the array's number first, and nothing says that it must."""
    whole = "".join([LAST, *OTHERS] if request.param == "first" else [*OTHERS, LAST])
    alone = {"show job 42_3": LAST, "show job 42_3 -d": LAST}
    return Asked(tmp_path, {"show job 42": whole, "show job 42 -d": whole, "show job 43": OTHERS[0], **alone})


def test_the_last_task_of_an_array_is_put_back_without_the_others(array: Asked) -> None:
    array.slurm.requeue(42)

    assert array.words == ["show job 42", "show job 42_3", "requeue 42_3"]


def test_the_last_task_of_an_array_is_put_back_without_the_others_where_it_still_runs(array: Asked) -> None:
    array.slurm.requeue(42, if_running=True)

    assert array.words[-1] == "requeue Incomplete 42_3"


def test_a_task_with_a_number_of_its_own_is_named_as_one_too(array: Asked) -> None:
    array.slurm.requeue(43)

    assert array.words == ["show job 43", "requeue 42_1"]


def test_what_is_asked_of_an_arrays_last_task_is_answered_of_no_other(array: Asked) -> None:
    assert array.slurm.is_sent_away(42)
    assert array.slurm.state(42) == "COMPLETING"
    assert array.slurm.is_there(42)
    assert array.slurm.gpus(42, "n1") == (3,)


@pytest.mark.parametrize("state", ["RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"])
def test_a_job_is_there_whatever_mark_slurm_shows_in_place_of_running(tmp_path: Path, state: str) -> None:
    # The guard took a share back between Prolog and first step, as the job was just being resized or sent a signal.
    asked = Asked(tmp_path, {"show job 42": record(42, "", state)})

    assert asked.slurm.is_there(42)


@pytest.mark.parametrize(
    ("lines", "node", "there"),
    [
        ("   NodeList=n[1-3]\n", "n2", True),
        ("   NodeList=n[1-3]\n", "n4", False),
        ("   NodeList=n[1-3]\n", "", True),
        # A user's text imitates one, or Slurm names no nodes yet.
        ("   NodeList=n1\n   NodeList=n3\n", "n2", True),
        ("   NodeList=(null)\n", "n2", True),
        ("", "n2", True),
    ],
)
def test_a_job_that_runs_on_other_nodes_alone_is_not_there(tmp_path: Path, lines: str, node: str, there: bool) -> None:
    asked = Asked(tmp_path, {"show job 42": record(42, "", "RUNNING") + lines})

    assert asked.slurm.is_there(42, node) is there


def test_a_task_that_is_over_is_not_there_whatever_the_others_do(tmp_path: Path) -> None:
    over = record(42, "42_3", "FAILED")
    asked = Asked(tmp_path, {"show job 42": over + "".join(OTHERS), "show job 42_3": over})

    assert not asked.slurm.is_there(42)
    assert asked.slurm.state(42) == "FAILED"


def test_a_task_that_slurm_has_forgotten_is_neither_there_nor_put_back(tmp_path: Path) -> None:
    asked = Asked(tmp_path, {"show job 42": "".join(OTHERS)})

    assert not asked.slurm.is_there(42)
    for ask in (asked.slurm.state, asked.slurm.is_sent_away, asked.slurm.requeue):
        with pytest.raises(NodeSlurmError, match="of array 42 Slurm has no task any more"):
            ask(42)
    assert not any(words.startswith("requeue") for words in asked.words)


def test_what_waits_of_an_array_under_its_number_is_no_task_that_runs_here(tmp_path: Path) -> None:
    asked = Asked(tmp_path, {"show job 42": record(42, "42_3-5%2", "PENDING") + OTHERS[0]})

    assert not asked.slurm.is_there(42)


@pytest.mark.parametrize("head", ["JobId=42 ArrayJobId=7 ArrayTaskId=1 ", "JobId=42 ArrayJobId=42 ArrayTaskId=2 "])
def test_no_text_of_a_user_names_another_job_in_place_of_his(tmp_path: Path, head: str) -> None:
    own = record(42, "42_3", "RUNNING", name=f"x\n\n{head}JobName=y")
    forged = record(43, "42_1", "RUNNING", name=f"x\n\n{head}JobName=y")
    # Slurm answers for the tasks that there are, and of none does a user's text come first.
    answers = {"show job 42": forged + own, "show job 42_3": own, "show job 42_2": OTHERS[1], "show job 7_1": forged}
    asked = Asked(tmp_path, answers)

    asked.slurm.requeue(42)

    assert asked.words[-1] == "requeue 42_3"


def test_a_job_of_no_array_is_named_by_its_number(tmp_path: Path) -> None:
    asked = Asked(tmp_path, {"show job 42": "scontrol: warning: a plugin\n" + record(42, "", "RUNNING")})

    asked.slurm.requeue(42)

    assert asked.words == ["show job 42", "requeue 42"]
    assert asked.slurm.is_there(42)


def test_nothing_is_put_back_under_a_number_that_slurm_does_not_explain(tmp_path: Path) -> None:
    asked = Asked(tmp_path, {})

    with pytest.raises(NodeSlurmError, match="Invalid job id"):
        asked.slurm.requeue(42)
    assert asked.words == ["show job 42"]


@pytest.mark.parametrize("answer", ["\n", OTHERS[0].replace("ArrayJobId=42", "ArrayJobId=41")])
def test_a_job_of_which_nothing_is_shown_may_be_there(tmp_path: Path, answer: str) -> None:
    asked = Asked(tmp_path, {"show job 42": answer})

    assert asked.slurm.is_there(42)
    with pytest.raises(NodeSlurmError, match="scontrol shows nothing of job 42"):
        asked.slurm.requeue(42)
