# SPDX-License-Identifier: Apache-2.0
"""A campaign's memory and choices, and its loop over a Slurm that is a stub."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from policy.calibrate.campaign import Campaign, begin, decode, encode
from policy.calibrate.choice import Rules, Window, measurable, next_nodes, parse_window, to_make_way
from policy.cli.calibrate.jobs import Jobs, MeasurementEnd, request
from policy.cli.calibrate.report import merged
from policy.cli.calibrate.run import CampaignProgress
from policy.cli.main import main
from policy.formats.errors import FormatError, SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, NodeFacts, PartitionFacts, Reading, Reservation
from topology.calibrate.runs import load
from topology.scores import Score
from topology.scores import load as load_scores

NOON = 12 * 60
ANY = Rules()


def node(name: str, **changes: object) -> NodeFacts:
    facts = NodeFacts(
        name,
        cpus=16,
        cpus_used=0,
        mem=64_000,
        mem_used=0,
        threads=1,
        up=True,
        completing=False,
        gpus=8,
        loose=0,
        seats=0xFF,
        gpus_used=0,
        seats_used=0,
        features=frozenset({"h100"}),
        partitions=frozenset({"gpu"}),
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def job(number: int, **changes: object) -> JobFacts:
    facts = JobFacts(
        number, "PENDING", "gpu", 1, 0, None, None, 600, 1, nodes=(), required=(), reason="Resources", count=1
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def reading(nodes: Sequence[NodeFacts], *jobs: JobFacts, at: float = 1_000.0) -> Reading:
    return Reading(at, tuple(nodes), jobs, (PartitionFacts("gpu", default=True),))


FOUR = [node(f"n{number}") for number in range(1, 5)]
NAMES = [one.name for one in FOUR]


def chosen(look: Reading, campaign: Campaign | None = None, rules: Rules = ANY, minute: int = NOON) -> list[str]:
    return list(next_nodes(campaign or begin(NAMES, 0.0), rules, look, look.at, minute, {}))


# The campaign's memory


def test_a_campaign_is_read_back_as_it_was_written() -> None:
    campaign = begin(["n1", "n2", "n3"], 1_795_000_000.4).start("n1", 5.0).done("n1", "fine")
    campaign = campaign.start("n2", 6.0).fail("n2", "no driver", 7.0, 3).start("n3", 8.0).make_way("n3", "job 7", 9.0)

    assert decode(encode(campaign)) == campaign
    assert campaign.name == "berth-calibrate-1795000000"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "move it away"),
        ("[]", "move it away"),
        ('{"format": "other", "started": 1, "nodes": {}}', "its format is other"),
        ('{"format": "berth-campaign/1", "nodes": {}}', "it lacks 'started'"),
        (
            '{"format": "berth-campaign/1", "started": 1, "nodes": {"n1": {"state": "lost"}}}',
            "node n1 has a wrong state",
        ),
        ('{"format": "berth-campaign/1", "started": 1, "nodes": {"n1": {"tries": "x"}}}', "node n1 has a wrong tries"),
        ('{"format": "berth-campaign/1", "started": 1, "nodes": {"n1": {"colour": 1}}}', "colour"),
    ],
)
def test_a_spoilt_file_is_told_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        decode(text, "runs.campaign")


def test_what_ran_when_it_was_interrupted_is_measured_again_unless_its_visit_was_kept() -> None:
    campaign = begin(NAMES, 100.0).start("n1", 110.0).start("n2", 111.0).start("n3", 112.0).done("n3", "")
    resumed = campaign.resume({"n1": 150.0, "n2": 50.0})

    assert [resumed.nodes[name].state for name in NAMES] == ["done", "waiting", "done", "waiting"]


def test_a_node_that_keeps_failing_is_given_up_and_one_that_made_way_never_is() -> None:
    campaign = begin(["n1", "n2"], 0.0)
    for number in range(3):
        campaign = campaign.start("n1", number).fail("n1", "no driver", number, 3)
        campaign = campaign.start("n2", number).make_way("n2", "for job 5", number)

    assert campaign.nodes["n1"].state == "failed"
    assert (campaign.nodes["n2"].state, campaign.nodes["n2"].tries) == ("waiting", 0)
    # 60 s, then 120 s, then 240 s.
    assert campaign.nodes["n2"].not_before == 2 + 240.0
    for _ in range(1_100):
        campaign = campaign.make_way("n2", "for job 5", 0.0)
    assert campaign.nodes["n2"].not_before == 1_800.0


# Whom to measure


@pytest.mark.parametrize(
    "changes",
    [
        {"up": False},
        {"completing": True},
        {"cpus_used": 1},
        {"gpus_used": 0b100},
        {"seats_used": 1},
        {"shared": (0, 30)},
    ],
)
def test_a_node_in_use_is_never_measured(changes: dict[str, object]) -> None:
    assert chosen(reading([node("n1", **changes), *FOUR[1:]])) == ["n2", "n3", "n4"]


def test_a_reservation_keeps_its_nodes_and_so_does_one_that_begins_before_the_measurement_would_end() -> None:
    later = Reservation(1_100, 9_000, ("n1",))
    much_later = Reservation(2_000, 9_000, ("n2",))
    over = Reservation(0, 900, ("n3",))
    look = replace(reading(FOUR), reservations=(later, much_later, over))

    assert chosen(look) == ["n2", "n3", "n4"]


def test_the_rate_is_limited() -> None:
    assert len(chosen(reading(FOUR), rules=Rules(at_once=2))) == 2
    busy = begin(NAMES, 0.0).start("n1", 900.0)
    assert len(chosen(reading(FOUR), busy, Rules(at_once=2))) == 1


def test_nodes_that_were_measured_longest_ago_come_first() -> None:
    look = reading(FOUR)
    last = {"n1": 30.0, "n2": 10.0, "n3": 20.0}

    assert next_nodes(begin(NAMES, 0.0), Rules(at_once=3), look, 0.0, NOON, last) == ("n4", "n2", "n3")


def test_a_window_may_go_over_midnight() -> None:
    night = parse_window("22:00-06:30")
    assert night == Window(22 * 60, 6 * 60 + 30)
    assert [night.holds(minute) for minute in (21 * 60, 22 * 60, 0, 6 * 60 + 29, 6 * 60 + 30)] == [0, 1, 1, 1, 0]
    assert chosen(reading(FOUR), rules=Rules(window=night)) == []
    assert chosen(reading(FOUR), rules=Rules(window=night), minute=23 * 60) == NAMES


@pytest.mark.parametrize(
    "text",
    [
        *("", "22:00", "22-06", "25:00-06:00", "24:00-06:00", "22:60-06:00", "22:00-22:00", "a:b-c:d"),
        "²2:00-06:00",
    ],
)
def test_a_wrong_window_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        parse_window(text)


def test_only_nodes_with_gpus_in_a_partition_that_is_up_are_measurable() -> None:
    nodes = [
        *FOUR[:2],
        node("cpu", gpus=0),
        node("old", partitions=frozenset({"down"})),
        node("loose", gpus=0, loose=4),
    ]
    look = replace(reading(nodes), partitions=(PartitionFacts("gpu"), PartitionFacts("down", up=False)))

    assert measurable(look) == ("loose", "n1", "n2")
    assert measurable(look, "other") == ()
    both = replace(look, nodes=(node("n1", partitions=frozenset({"gpu", "down"})),))
    assert (measurable(both), measurable(both, "down")) == (("n1",), ())


def test_a_partition_that_is_shut_meanwhile_is_waited_for() -> None:
    look = reading(FOUR)
    assert chosen(replace(look, partitions=(PartitionFacts("gpu", up=False),))) == []
    assert chosen(look) == NAMES


# Making way


OURS = {"n1": 101, "n2": 102}


def making_way(look: Reading, stuck: Sequence[int] = ()) -> dict[str, int]:
    return to_make_way(look, OURS, {101, 102}, stuck)


def test_a_job_that_waits_for_one_node_gets_the_one_whose_measurement_is_youngest() -> None:
    busy = [node(name, cpus_used=16, gpus_used=0xFF) for name in NAMES]

    assert making_way(reading(busy, job(7))) == {"n2": 7}
    assert making_way(reading(busy, job(7), job(8))) == {"n2": 7, "n1": 8}
    assert making_way(reading(busy, job(7)), stuck=[7]) == {"n1": 7, "n2": 7}


def test_an_array_gets_as_many_nodes_as_it_has_tasks() -> None:
    assert making_way(reading(FOUR, job(7, state="ARRAY", tasks="3-4,9"))) == {"n1": 7, "n2": 7}


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": "Dependency"},
        {"reason": "JobHeldUser"},
        {"partition": "other"},
        {"excluded": ("n1", "n2")},
        {"features": "v100"},
        {"required": ("n3",)},
        {"reservation": "maintenance"},
        {"state": "RUNNING"},
        {"id": 101},
    ],
)
def test_nobody_makes_way_for_a_job_that_could_not_start_there(changes: dict[str, object]) -> None:
    assert making_way(reading(FOUR, replace(job(7), **changes))) == {}  # type: ignore[arg-type]


def test_a_wide_job_gets_nodes_only_when_they_would_be_enough() -> None:
    used = [*FOUR[:2], *(node(name, cpus_used=16) for name in ("n3", "n4"))]

    assert making_way(reading(used, job(7, count=3))) == {}
    assert making_way(reading(used, job(7, count=2))) == {"n1": 7, "n2": 7}
    assert making_way(reading(FOUR, job(7, count=4))) == {"n1": 7, "n2": 7}


def test_a_place_that_berth_wrote_binds_no_job_but_is_preferred() -> None:
    pinned = job(7, required=("n1",), plan=JobPlan({"id": "a"}))
    elsewhere = job(8, required=("n3",), plan=JobPlan({"id": "b"}))

    assert making_way(reading(FOUR, pinned)) == {"n1": 7}
    assert making_way(reading(FOUR, elsewhere)) == {"n2": 8}


def test_a_request_that_is_not_understood_is_taken_to_fit() -> None:
    assert making_way(reading(FOUR, job(7, features="[v100|h100]"))) == {"n2": 7}


def test_no_measurement_begins_that_would_have_to_make_way_at_once() -> None:
    waiting = job(7, features="h100")
    assert chosen(reading(FOUR, waiting)) == ["n2", "n3", "n4"]
    assert chosen(reading(FOUR, job(7, count=4))) == []


# Jobs


def test_the_request_names_each_gpu_and_has_the_lowest_priority() -> None:
    words = request(node("n1", gpus=4, loose=0), "gpu", "berth-calibrate-1", 100)

    assert "--gres=gpu:g0:1,gpu:g1:1,gpu:g2:1,gpu:g3:1" in words
    assert {"--exclusive", "--nodelist=n1", "--time=2", "--nice=2147483645", "--cpus-per-task=8"} <= set(words)
    assert "--gres=gpu:8" in request(node("n1", gpus=0, loose=8), "gpu", "x", 60)


@pytest.mark.slow
def test_what_a_job_prints_becomes_a_visit_and_what_it_does_not_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs("test")
    good = [sys.executable, "-m", "policy.cli.main", "calibrate", "node", "--simulated", "1", "--node"]
    jobs.start("n1", [*good, "n1"])
    jobs.start("n2", [*good, "other"])
    jobs.start("n3", ["sh", "-c", "echo berth: error: no driver >&2; exit 1"])
    jobs.start("n4", ["true"])
    found: dict[str, MeasurementEnd] = {}
    while jobs.nodes:
        found |= {one.node: one for one in jobs.ended()}

    assert found["n1"].visit is not None
    assert (found["n1"].visit.node, found["n1"].told) == ("n1", "")
    assert found["n2"].visit is None
    assert "it measured other" in found["n2"].told
    assert found["n3"].told == "no driver"
    assert found["n4"].told == "the measurement printed nothing"


# The whole command, on a Slurm whose commands are scripts


SRUN = """#!/bin/sh
for word; do case $word in --nodelist=*) node=${word#--nodelist=} ;; esac; done
echo "$@" >>"$STUB/srun"
[ ! -e "$STUB/broken-$node" ] || { echo "srun: error: node $node has no driver" >&2; exit 1; }
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster of four idle nodes, whose srun runs here."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in {"srun": SRUN, "squeue": "#!/bin/sh\n", "scancel": "#!/bin/sh\n"}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    monkeypatch.setenv("STUB", str(tmp_path))
    monkeypatch.setenv("BERTH_CONF", str(tmp_path / "berth.conf"))
    (tmp_path / "berth.conf").write_text(f'[berthd]\nscores = "{tmp_path}/scores.csv"\n')

    class Gateway:
        def read(self, **_: bool) -> Reading:
            return reading(FOUR)

        def close(self) -> None:
            pass

    monkeypatch.setattr("policy.slurm.gateways.open_gateway", lambda _: Gateway())
    monkeypatch.setattr("policy.cli.calibrate.run._TICK_S", 0.05)
    program = tmp_path / "berth"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m policy.cli.main "$@"\n')
    program.chmod(0o755)
    return tmp_path


def campaign(stub: Path, *options: str) -> int:
    fixed = ["--output", str(stub / "runs"), "--program", str(stub / "berth"), "--simulated", "2"]
    return main(["calibrate", "run", *fixed, *options])


@pytest.mark.slow
def test_a_campaign_measures_all_nodes_writes_the_table_and_says_what_changed(
    stub: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert campaign(stub) == 0

    assert sorted(visit.node for visit in load(stub / "runs")) == NAMES
    assert len(load_scores(stub / "scores.csv")) == 4 * 2 * 3
    said = capsys.readouterr().out
    assert "4 nodes measured, 0 failed, 0 left" in said
    assert "scores.csv written: 24 scores" in said

    assert campaign(stub) == 0
    assert "0 nodes to be measured, 4 were measured lately" in capsys.readouterr().out


@pytest.mark.slow
def test_a_node_that_fails_is_told_and_the_rest_is_measured(
    stub: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policy.calibrate.campaign._HOLD_S", 0.0)
    (stub / "broken-n3").touch()
    assert campaign(stub) == 1

    said = capsys.readouterr().out
    assert "3 nodes measured, 1 failed, 0 left" in said
    assert "n3 failed: srun: error: node n3 has no driver" in said
    assert (stub / "srun").read_text().count("--nodelist=n3") == 3


def test_one_that_was_interrupted_goes_on_with_its_own_nodes(stub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = begin(["n1", "n2"], 1_000.0).start("n1", 1_001.0).done("n1", "").start("n2", 1_002.0)
    (stub / "runs.campaign").write_text(encode(old))
    assert campaign(stub) == 0

    assert "resumed: 1 of 2 nodes are done" in capsys.readouterr().out
    assert [visit.node for visit in load(stub / "runs")] == ["n2"]
    assert json.loads((stub / "runs.campaign").read_text())["started"] == 1_000.0


def begun(stub: Path) -> int:
    """Measurements that were begun so far."""
    return (stub / "srun").read_text().count("--nodelist=") if (stub / "srun").exists() else 0


def clocks(local: Callable[[], time.struct_time]) -> SimpleNamespace:
    """The time module with another time of day."""
    return SimpleNamespace(
        strftime=time.strftime, time=time.time, monotonic=time.monotonic, sleep=time.sleep, localtime=local
    )


@pytest.mark.slow
def test_nothing_begins_before_the_window_opens_and_all_is_measured_when_it_does(
    stub: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    local = time.localtime()
    looks: list[int] = []

    def clock() -> time.struct_time:
        looks.append(begun(stub))
        hour, minute = (21, 59) if len(looks) <= 3 else (22, 0)
        return time.struct_time((*local[:3], hour, minute, 0, *local[6:]))

    monkeypatch.setattr("policy.cli.calibrate.run.time", clocks(clock))
    assert campaign(stub, "--window", "22:00-06:00") == 0

    assert looks[:4] == [0, 0, 0, 0]
    assert begun(stub) == 4
    assert "4 nodes measured, 0 failed, 0 left" in capsys.readouterr().out


@pytest.mark.slow
def test_what_began_in_the_window_may_end_after_it_and_nothing_else_begins(
    stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = time.localtime()
    closed: list[int] = []
    """Beginnings that each look after the window's end sees, both measurements having ended."""

    def clock() -> time.struct_time:
        ended = (stub / "runs").exists() and len(load(stub / "runs")) == 2
        if ended:
            closed.append(begun(stub))
        hour = 5 if not begun(stub) else 6 if len(closed) <= 3 else 22
        return time.struct_time((*local[:3], hour, 59, 0, *local[6:]))

    monkeypatch.setattr("policy.cli.calibrate.run.time", clocks(clock))
    assert campaign(stub, "--window", "22:00-06:00", "--at-once", "2") == 0
    assert closed[:4] == [2, 2, 2, 2]
    assert len(load(stub / "runs")) == 4


def test_slurm_may_be_away_for_a_while(stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(100))

    class Gateway:
        def read(self, **_: bool) -> Reading:
            if next(looks) in {1, 2}:
                raise SlurmError("slurmctld does not answer")
            return reading(FOUR[:1])

        def close(self) -> None:
            pass

    monkeypatch.setattr("policy.slurm.gateways.open_gateway", lambda _: Gateway())
    assert campaign(stub) == 0
    assert [visit.node for visit in load(stub / "runs")] == ["n1"]


def test_a_node_that_is_down_does_not_hold_the_campaign_up(
    stub: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Gateway:
        def read(self, **_: bool) -> Reading:
            return reading([FOUR[0], node("n2", up=False)])

        def close(self) -> None:
            pass

    monkeypatch.setattr("policy.slurm.gateways.open_gateway", lambda _: Gateway())
    assert campaign(stub) == 0
    assert "1 nodes measured, 0 failed, 1 left" in capsys.readouterr().out


def test_a_dry_run_starts_nothing(stub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign(stub, "--dry-run", "--nodes", "n[2-3]") == 0

    assert capsys.readouterr().out.splitlines()[1:] == ["n2", "n3"]
    assert not (stub / "srun").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nodes", "n9"], "n9 has no GPUs"),
        (["--at-once", "0"], "--at-once is at least 1"),
        (["--window", "22"], "is no window"),
        (["--limit", "soon"], "--limit"),
        (["--output", "/nowhere/runs"], "/nowhere does not exist"),
    ],
)
def test_a_wrong_call_is_told_what_is_right(
    stub: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert campaign(stub, *options) in {1, 2}
    assert said in capsys.readouterr().err


def test_two_campaigns_on_one_file_are_one_too_many(stub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fcntl  # noqa: PLC0415

    with (stub / "runs.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert campaign(stub) == 1
    assert "another campaign" in capsys.readouterr().err


# Its end


def test_a_table_keeps_scores_of_gpus_without_runs_but_not_of_a_gpu_that_was_changed() -> None:
    old = [
        Score("n1", 0, "GPU-old", "compute", 1.1),
        Score("n9", 0, "", "compute", 1.2),
        Score("n2", 1, "b", "compute", 1.0),
    ]
    new = [Score("n1", 0, "GPU-new", "compute", 1.0, 3), Score("n3", 0, "b", "compute", 1.05, 3)]

    assert merged(old, new) == [*new, old[1]]


def test_events_are_lines_and_what_is_waited_for_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    campaign = begin(["n1", "n7"], 0.0).start("n1", 1.0).done("n1", "8 GPUs").start("n7", 2.0)
    progress = CampaignProgress()
    for name, now in (("n1", campaign), ("n7", campaign), ("n7", campaign.make_way("n7", "for job 12", 4.0))):
        progress.event(now, name)
    for why in ("waiting for the window 22:00-06:00", "waiting for the window 22:00-06:00", ""):
        progress.waits(why)

    assert [line[9:] for line in capsys.readouterr().out.splitlines()] == [
        "n1 done: 8 GPUs (1 of 2 done)",
        "n7 running (1 of 2 done)",
        "n7 made way: for job 12 (1 of 2 done)",
        "waiting for the window 22:00-06:00",
    ]
