# SPDX-License-Identifier: Apache-2.0
import doctest
import importlib
import json
import os
import signal
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest

from policy.formats import segment
from policy.formats.errors import ConfigError, SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, Memory, Reading
from policy.slurm.by_library.libslurm import LibslurmGateway
from policy.slurm.by_library.program import JobRecord, Program
from policy.slurm.changes import target
from policy.slurm.gateways import open_gateway, program_path
from policy.slurm.interface import Pin
from tests.bench.load.slurm import PaperJob
from tests.unit.policy.daemon.test_notices import raise_file_limit
from tests.unit.policy.slurm.stand_in import StandIn

DATA = Path(__file__).parents[2] / "data"
VERSIONS = ("24.11", "26.05")
PLACE = Pin(("n3", "n4"), (0, 5), seats=True, plan=JobPlan({"state": "placed", "why": "50 % [x]"}))


@pytest.fixture(params=VERSIONS)
def recorded(request: pytest.FixtureRequest) -> str:
    return (DATA / f"slurm-{request.param}" / "berth-slurm-read").read_text().rpartition('["ok"]')[0].partition("\n")[2]


def lines(text: str, kind: str) -> list[list[object]]:
    return [record for line in text.splitlines() if (record := json.loads(line))[0] == kind]


def job(reading: Reading, **wanted: object) -> JobFacts:
    [found] = [job for job in reading.jobs if all(getattr(job, key) == value for key, value in wanted.items())]
    return found


def test_a_recorded_answer_is_read_as_facts(gateway: LibslurmGateway, stand_in: StandIn, recorded: str) -> None:
    stand_in.answers("read", recorded)

    reading = gateway.read(ended=False)

    typed, whole, untyped = (job(reading, state="RUNNING", nodes=(node,)) for node in ("n1", "n4", "n2"))
    assert (typed.gpus, typed.holds, typed.mem, typed.limit) == (0b101, (0b101,), 300, 1_800)
    assert (whole.gpus, whole.holds, whole.cpus) == (None, (0xFF,), 16)
    assert (untyped.gpus, untyped.holds, untyped.wants_gpus, untyped.user) == (None, (0b11,), True, 1000)
    array = job(reading, state="ARRAY")
    assert (array.array, array.task, array.tasks, array.at_once) == (array.id, None, "1,3,5,7,9", 2)
    assert (array.reason, array.required, array.may_start) == ("Resources", ("n4",), True)
    waits = job(reading, state="PENDING")
    assert waits.known.texts == {"state": "waiting", "id": "0123456789abcdef", "n": "1", "k": "2"}
    assert reading.seen == {"0123456789abcdef"}
    assert [node.gpus_used for node in reading.nodes] == [0b101, 0b11, 0, 0xFF]
    assert [(node.gpus, node.loose, node.seats, node.up) for node in reading.nodes] == [(8, 0, 8, True)] * 4
    assert {one.name: one.default for one in reading.partitions} == {"gpu": True, "plain": False}
    assert [(one.max_time, one.max_nodes, one.tier, one.starts) for one in reading.partitions] == [
        (None, None, 1, True)
    ] * 2
    assert not reading.in_all_partitions
    [reservation] = reading.reservations
    assert (reservation.name, reservation.nodes, reservation.end - reservation.start) == ("later", ("n3", "n4"), 3_600)
    assert (reading.memory, reading.memory_counts, reading.version) == (Memory(per_cpu=100), True, "24.11.5")
    assert (reading.in_control, reading.federated) == (True, False)


def test_only_what_changed_becomes_a_new_object(gateway: LibslurmGateway, stand_in: StandIn, recorded: str) -> None:
    changed, noise, gone = lines(recorded, "job")[:3]
    changed[6] = 5  # its priority
    noise[-1] = "[berth/1%20nodes=n9]"  # what Berth writes into Extra is no fact
    changed += ["lab", "my%20train"]
    more = [json.dumps(one, separators=(",", ":")) for one in (changed, noise, ["gone", "job", gone[1]])]
    stand_in.answers("read", recorded, "\n".join(more), "")

    first = gateway.read(ended=False)
    second = gateway.read(ended=False)

    before, after = ({one.id: one for one in reading.jobs} for reading in (first, second))
    assert set(before) - set(after) == {gone[1]}
    assert [key for key in after if after[key] is not before[key]] == [changed[1]]
    assert after[int(str(changed[1]))].priority == 5
    assert (after[int(str(changed[1]))].account, after[int(str(changed[1]))].name) == ("lab", "my train")
    assert all(old is new for old, new in zip(first.nodes, second.nodes, strict=True))
    assert all(old is new for old, new in zip(second.jobs, gateway.read(ended=False).jobs, strict=True))


def test_ended_jobs_come_only_when_asked_for(gateway: LibslurmGateway, stand_in: StandIn, recorded: str) -> None:
    ended = lines(recorded, "job")[0]
    ended[2:4] = ["COMPLETED", 1]
    stand_in.answers("read", recorded, json.dumps(ended), "")
    gateway.read(ended=False)

    assert ended[1] not in [one.id for one in gateway.read(ended=False).jobs]
    assert ended[1] in [one.id for one in gateway.read(ended=True).jobs]


def test_a_program_that_ended_is_started_again_and_tells_everything(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    without_one = "".join(line for line in recorded.splitlines(keepends=True) if '"RUNNING",0,1000' not in line)
    stand_in.answers("read", recorded, "die", without_one, "")
    first = gateway.read(ended=False)

    with pytest.raises(SlurmError, match="berth-slurm ended: slurm went away"):
        gateway.read(ended=False)
    second = gateway.read(ended=False)

    assert len(second.jobs) == len(first.jobs) - 1
    assert {id(one) for one in second.jobs} < {id(one) for one in first.jobs}
    assert [line for line in stand_in.asked if line.startswith("read")] == ["read all", "read", "read all"]
    assert gateway.read(ended=False).jobs == second.jobs


def test_after_an_error_in_the_midst_everything_is_told_again(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    half = recorded.splitlines(keepends=True)[:4]
    stand_in.answers(
        "read", "".join(half) + '["error","Unable to contact slurm controller (connect failure)"]', recorded
    )

    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        gateway.read(ended=False)

    assert len(gateway.read(ended=False).jobs) == 5
    assert [line for line in stand_in.asked if line.startswith("read")] == ["read all", "read all"]


def test_a_program_that_hangs_is_ended_in_time(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.answers("read", "hang", "")
    program = Program(stand_in.path)
    # Whoever starts or answers has its time; only the one that hangs is given up soon.
    program.ask("ping")
    hangs = program._process
    with monkeypatch.context() as soon:
        soon.setattr(program, "_seconds", 0.3)
        with pytest.raises(SlurmError, match=r"did not answer within 0\.3 s; is slurmctld up"):
            program.ask("read")

    assert hangs is not None
    assert hangs.poll() == -signal.SIGKILL
    assert program.ask("read") == []
    program.close()


def test_an_answer_that_nobody_knows_is_an_error_not_a_guess(gateway: LibslurmGateway, stand_in: StandIn) -> None:
    for text in ('["job",1]', "nonsense", '["weather",1]'):
        stand_in.answers("read", text)
        with pytest.raises(SlurmError, match="a form that Berth does not know"):
            gateway.read(ended=False)


def test_a_pin_in_a_hurry_is_one_command_based_on_the_texts_of_the_reading(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    stand_in.answers("read", recorded)
    waits = job(gateway.read(ended=False), state="PENDING")

    gateway.pin(waits.id, PLACE, hurry=True)

    [update] = [line for line in stand_in.asked if line.startswith("update")]
    _, job_id, *words = update.split(" ")
    assert int(job_id) == waits.id
    assert dict(word.split("=", 1) for word in words) == {
        "tres_per_node": "gres/gpu:g0:1,gres/gpu:g5:1,gres/seat:g0:1,gres/seat:g5:1",
        "req_nodes": "n3,n4",
        # The admin's own text stands before it, byte for byte.
        "admin_comment": "a|%22b\\%0Ac%FF%2520%5Bberth/1%20state=placed%20why=50%2520%2525%2520%255Bx%255D%5D".replace(
            "%22", '"'
        ),
        "extra": "%5Bberth/1%20nodes=n3,n4%20gpus=0,5%5D",
    }
    assert not [line for line in stand_in.asked if line.startswith("job")]


def test_what_another_writes_after_the_reading_stays(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    stand_in.answers("read", recorded)
    reading = gateway.read(ended=False)
    waits, array = job(reading, state="PENDING"), job(reading, state="ARRAY")
    for one in (waits, array):
        record = next(record for record in lines(recorded, "job") if record[1] == one.id)
        record[-2:] = ["billed [berth/1 state=waiting n=1 k=2] to 7", "theirs"]
        stand_in.answers("job", json.dumps(record))
        gateway.pin(one.id if one is waits else f"{array.id}_3", PLACE)
        gateway.annotate(one.id, JobPlan({"state": "noted"}))

    pins = [line for line in stand_in.asked if line.startswith("update")]
    assert ["admin_comment=billed%20%5Bberth/1%20state=" in line and "%5D%20to%207" in line for line in pins] == [
        True
    ] * 4
    assert ["extra=theirs%5Bberth/1" in line for line in pins] == [True, False, True, False]


def test_a_job_that_started_after_the_reading_is_left_alone(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    stand_in.answers("read", recorded)
    waits = job(gateway.read(ended=False), state="PENDING")
    record = next(record for record in lines(recorded, "job") if record[1] == waits.id)
    record[2] = "RUNNING"
    stand_in.answers("job", json.dumps(record))

    with pytest.raises(SlurmError, match="only the place of a waiting job"):
        gateway.pin(waits.id, PLACE)

    assert not [line for line in stand_in.asked if line.startswith("update")]


@pytest.mark.parametrize("state", ["REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "EXPEDITING"])
def test_a_job_that_was_put_back_on_hold_and_released_waits_as_any_other(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str, state: str
) -> None:
    stand_in.answers("read", recorded.replace('"PENDING"', f'"{state}"'))
    waits = job(gateway.read(ended=False), state="PENDING")

    gateway.pin(waits.id, PLACE, hurry=True)
    gateway.pin(waits.id, PLACE)

    assert len([line for line in stand_in.asked if line.startswith("update")]) == 2
    assert gateway.job(waits.id).state == "PENDING"


def test_a_job_that_ends_to_wait_again_is_given_back_and_one_that_is_over_is_not(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    names = JobRecord.__struct_fields__
    runs = next(dict(zip(names, one[1:], strict=False)) for one in lines(recorded, "job") if one[2] == "RUNNING")
    values = {"state": "placed", "id": "1", "n": "1", "k": "2", "nodes": "n1", "gpus": "0,2"}
    pinned = {"required": "n1", "tres_per_node": "gres/gpu:g0:1,gres/gpu:g2:1"}
    runs |= {
        "account": "",
        "name": "",
        "planned": "",
        "state": "COMPLETING",
        "admin_comment": segment.put("", values),
        **pinned,
    }
    for base in ("PENDING", "FAILED"):
        runs["base"] = base
        stand_in.answers("read", json.dumps(["job", *(runs[name] for name in names)]))
        [found] = gateway.pinned_jobs()
        if base == "PENDING":
            assert gateway.release(found, "because")
        else:
            with pytest.raises(SlurmError, match="is failed, only the place of a waiting job"):
                gateway.release(found, "because")

    [update] = [line for line in stand_in.asked if line.startswith("update")]
    assert "req_nodes= " in update


def test_a_task_is_pinned_by_its_name_with_the_texts_of_its_array(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    array = next(record for record in lines(recorded, "job") if record[27])
    array[-1] = "mine"
    others = [line for line in recorded.splitlines() if json.loads(line)[:2] != array[:2]]
    stand_in.answers("read", "\n".join([*others, json.dumps(array)]))
    gateway.read(ended=False)

    gateway.pin(f"{array[25]}_3", PLACE)
    with pytest.raises(SlurmError, match="task 4000_3 is not known"):
        gateway.pin("4000_3", PLACE)

    [update] = [line for line in stand_in.asked if line.startswith("update")]
    assert update.startswith(f"update {array[25]}_3 ")
    assert "extra=mine%5Bberth/1" in update


def test_the_tasks_of_an_array_that_have_not_split_off_are_pinned_by_number(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    stand_in.answers("read", recorded)
    rest = next(job for job in gateway.read(ended=False).jobs if job.tasks)

    gateway.pin(target(rest), PLACE)

    [update] = [line for line in stand_in.asked if line.startswith("update")]
    assert update.startswith(f"update {rest.array} ")


def test_a_job_that_runs_or_is_gone_is_not_pinned(gateway: LibslurmGateway, stand_in: StandIn, recorded: str) -> None:
    stand_in.answers("read", recorded)
    runs = job(gateway.read(ended=False), state="RUNNING", nodes=("n1",))

    with pytest.raises(SlurmError, match="is running, only the place of a waiting job"):
        gateway.pin(runs.id, PLACE)
    stand_in.answers("job", '["error","Invalid job id specified"]')
    with pytest.raises(SlurmError, match="job 99999 is not known"):
        gateway.pin(99_999, PLACE)

    assert not [line for line in stand_in.asked if line.startswith("update")]


def test_what_slurm_refuses_is_said_with_the_job(gateway: LibslurmGateway, stand_in: StandIn, recorded: str) -> None:
    stand_in.answers("read", recorded)
    stand_in.answers("update", '["error","Invalid node name specified"]')
    waits = job(gateway.read(ended=False), state="PENDING")

    with pytest.raises(SlurmError, match=f"job {waits.id} could not be changed: Slurm said: Invalid node name"):
        gateway.pin(waits.id, PLACE)


def test_nodes_that_slurm_wrote_before_it_refused_the_rest_are_taken_back(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    stand_in.answers("read", recorded)
    stand_in.answers("update", '["error","Invalid license specification"]')
    waits = job(gateway.read(ended=False), state="PENDING")

    with pytest.raises(SlurmError, match="Invalid license"):
        gateway.pin(waits.id, PLACE)

    first, second = (line for line in stand_in.asked if line.startswith("update"))
    assert "req_nodes=n3,n4" in first
    assert second.split() == ["update", str(waits.id), f"req_nodes={','.join(waits.required)}"]


def test_a_release_goes_by_the_request_that_a_job_has_by_now(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    # What an administrator changed between the look and the change is theirs.
    stand_in.answers("read", recorded)
    waits = job(gateway.read(ended=False), state="PENDING")
    now = next(line for line in recorded.splitlines() if line.startswith(f'["job",{waits.id},'))
    stand_in.answers("job", now.replace('"gres/gpu:2"', '"gres/gpu:g0:1,gres/gpu:g1:1"'), now)
    stand_in.answers("update", '["error","Invalid generic resource (gres) specification"]', "")

    assert gateway.release(waits.id, "because")

    first, back = (line for line in stand_in.asked if line.startswith("update"))
    assert "tres_per_node=gres/gpu:2" in first
    assert back.split() == ["update", str(waits.id), "req_nodes="]


def test_a_change_in_an_inactive_partition_is_written_though_slurm_reports_an_error(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    stand_in.answers("read", recorded)
    stand_in.answers("update", '["error","Requested partition configuration not available now"]')
    waits = job(gateway.read(ended=False), state="PENDING")

    gateway.pin(waits.id, PLACE)

    assert len([line for line in stand_in.asked if line.startswith("update")]) == 1


def test_release_annotate_and_requeue(gateway: LibslurmGateway, stand_in: StandIn, recorded: str) -> None:
    stand_in.answers("read", recorded.replace('"","gres/gpu:2",""', '"","gres/gpu:g0:1,gres/gpu:g1:1",""'))
    reading = gateway.read(ended=False)
    waits, runs = job(reading, state="PENDING"), job(reading, state="RUNNING", nodes=("n1",))
    array = job(reading, state="ARRAY")

    assert gateway.release(waits.id, "because")
    assert not gateway.release(array.id, "because")
    gateway.annotate(runs.id, JobPlan({"state": "noted"}))
    gateway.requeue(runs.id)
    gateway.requeue("50_7")
    gateway.delay(runs.id, JobPlan({"state": "noted"}), 60)

    changed = [line for line in stand_in.asked if line.startswith(("update", "requeue"))]
    released, noted, requeued, by_name, delayed = changed
    assert by_name == "requeue 50_7"
    assert delayed == f"{noted} begin=+60"
    assert f"update {waits.id} tres_per_node=gres/gpu:2 req_nodes= " in released
    assert noted == f"update {runs.id} admin_comment=%5Bberth/1%20state=noted%5D"
    assert requeued == f"requeue {runs.id}"


def test_a_task_that_bears_its_arrays_number_is_named_alone(
    gateway: LibslurmGateway, stand_in: StandIn, recorded: str
) -> None:
    # By its number slurmctld would requeue, signal or end all tasks of the array.
    stand_in.answers("read", recorded)
    gateway.read(ended=False)
    one = next(record for record in gateway._records.values() if record.task is None and not record.tasks)
    gateway._records[one.id] = msgspec.structs.replace(one, array=one.id, task=3)

    gateway.evict(one.id)
    gateway.cancel(one.id)
    gateway.warn(one.id, "USR1")
    gateway.requeue(one.id)
    gateway.annotate(one.id, JobPlan({"state": "noted"}), requeue=True)

    name = f"{one.id}_3"
    asked = [line for line in stand_in.asked if not line.startswith(("read", "job", "config", "ping"))]
    assert asked[:4] == [f"evict {name}", f"cancel {name}", f"signal {name} 10", f"requeue {name}"]
    assert asked[4].startswith(f"update {one.id} admin_comment=")
    assert asked[4].endswith(" requeue=1")


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match="berth-slurm cannot be started: No such file"):
        LibslurmGateway(tmp_path / "berth-slurm").version()


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm installed under a prefix of its own, with no pyslurm that fits."""
    for name, script in (("bin/scontrol", "echo slurm 22.05.8"), ("libexec/berth/berth-slurm", "echo 24.11.5")):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def test_the_fastest_gateway_that_fits_is_taken_and_says_why(prefix: Path) -> None:
    said: list[str] = []

    assert program_path() == prefix / "libexec/berth/berth-slurm"
    assert open_gateway("auto", said.append).name == "libslurm"
    assert said[0].startswith("Slurm is reached through libslurm")

    program_path().write_text("#!/bin/sh\necho built for another Slurm >&2\nexit 1\n")
    assert open_gateway("auto", said.append).name == "command"
    assert "the gateway libslurm does not fit: built for another Slurm" in said[1]

    program_path().unlink()
    assert open_gateway("auto", said.append).name == "command"
    assert "make -C slurm_plugins install" in said[2]


def test_a_gateway_that_was_asked_for_and_does_not_fit_is_refused(prefix: Path) -> None:
    program_path().unlink()

    for name in ("pyslurm", "libslurm"):
        with pytest.raises(ConfigError, match=f"the gateway {name} does not fit: "):
            open_gateway(name)


def test_the_examples_of_the_fields_hold() -> None:
    fields = importlib.import_module("policy.slurm.fields")

    assert doctest.testmod(fields, raise_on_error=True).attempted >= 6


def test_of_jobs_that_are_over_no_record_is_kept(stand_in: StandIn, gateway: LibslurmGateway) -> None:
    """Slurm keeps ended jobs for minutes, and a busy site ends hundreds a second."""
    lines = [_job_line(number, "RUNNING") for number in (1, 2)]
    over = [_job_line(number, "COMPLETED") for number in range(3, 40)]
    stand_in.answers("read", "".join([*lines, *over]), _job_line(1, "COMPLETED"), '["gone","job",1]\n')

    assert [job.id for job in gateway.read(ended=True).jobs] == list(range(1, 40))
    assert set(gateway._records) == {1, 2}
    assert [job.id for job in gateway.read(ended=False).jobs] == [2]
    assert set(gateway._records) == {2}
    assert [job.id for job in gateway.read(ended=True).jobs] == list(range(2, 40))


def _job_line(number: int, state: str) -> str:
    job = PaperJob(number, 1_000, 1, 1, 100, state=state)
    return f"{job.line()}\n"


def test_it_is_heard_where_a_thousand_files_are_open(stand_in: StandIn) -> None:
    raise_file_limit()
    with ExitStack() as files, closing(Program(stand_in.path)) as program:
        for _ in range(1_100):
            files.enter_context(Path(os.devnull).open("rb"))
        assert program.ask("ping")
