# SPDX-License-Identifier: Apache-2.0
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from policy.formats import segment
from policy.formats.errors import ConfigError, SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import Memory, Reservation
from policy.plan.jobs.waiting_jobs import ours
from policy.slurm import changes, fields
from policy.slurm.by_command import text
from policy.slurm.by_command.command import CommandGateway
from policy.slurm.by_command.recorded import recorded_gateway
from policy.slurm.gateways import open_gateway
from policy.slurm.interface import Pin
from tests.unit.policy_world import waiting

DATA = Path(__file__).parents[2] / "data"
VERSIONS = ("24.11", "26.05")


@pytest.fixture(params=VERSIONS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / f"slurm-{request.param}", tmp_path / "recording"))


@pytest.fixture
def gateway(folder: Path) -> CommandGateway:
    return recorded_gateway(folder)


def updates(folder: Path) -> list[dict[str, str]]:
    lines = (folder / "updates").read_text().splitlines()
    return [dict(word.split("=", 1) for word in json.loads(line)) for line in lines]


def pinned(folder: Path, state: str = "PENDING") -> int:
    """A job of the recording that waits with a pin; made to look otherwise where asked."""
    file = folder / "squeue-json"
    answer = json.loads(file.read_text())
    waits = next(job for job in answer["jobs"] if job["job_state"] == ["PENDING"])
    waits["job_state"] = [state]
    file.write_text(json.dumps(answer))
    shutil.copy(file, folder / "scontrol-json")
    return int(waits["job_id"])


def change(folder: Path, job_id: int, **values: str) -> None:
    file = folder / "scontrol-json"
    answer = json.loads(file.read_text())
    next(job for job in answer["jobs"] if job["job_id"] == job_id).update(values)
    file.write_text(json.dumps(answer))


def test_nodes_are_read_with_the_gpus_that_are_in_use(gateway: CommandGateway) -> None:
    nodes = {node.name: node for node in gateway.read(ended=False).nodes}

    assert list(nodes) == ["n1", "n2", "n3", "n4"]
    # n1: a pinned job on 0-3, an untyped one on 4, a shard of 7; only the pinned one holds seats.
    assert (nodes["n1"].gpus_used, nodes["n1"].seats_used) == (0b1001_1111, 0b0000_1111)
    assert (nodes["n2"].gpus_used, nodes["n2"].gpus, nodes["n2"].seats, nodes["n2"].loose) == (0xFF, 8, 8, 0)
    assert (nodes["n1"].cpus, nodes["n1"].cpus_used, nodes["n1"].mem, nodes["n1"].mem_used) == (32, 3, 64_000, 300)
    assert nodes["n1"].features == {"v100", "rack1"}
    assert nodes["n1"].partitions == {"gpu", "plain"}


@pytest.mark.parametrize(
    ("shown", "mem"),
    [
        ("MemSpecLimit=4000", 60_000),
        ("CoreSpecCount=2 CPUSpecList=0-1 MemSpecLimit=4000", 60_000),
        ("CoreSpecCount=2 ", 64_000),
        ("MemSpecLimit=70000", 0),
    ],
)
def test_what_slurm_keeps_for_the_system_is_no_memory_for_jobs(folder: Path, shown: str, mem: int) -> None:
    lines = (folder / "scontrol-show-node").read_text().splitlines()
    with_gpus = lines[0].replace(" State=", f" {shown} State=")
    without = re.sub("Gres=.*? NodeAddr", "NodeAddr", with_gpus)

    assert [node.mem for node in text.nodes(f"{with_gpus}\n{without}\n")] == [mem, mem]


def test_cores_kept_for_gpus_are_counted_in_cpus(folder: Path) -> None:
    line = (folder / "scontrol-show-node").read_text().splitlines()[0]
    kept = re.sub(r"State=(\S+) ThreadsPerCore=\d+", r"RestrictedCoresPerGPU=3(0-11) State=\1 ThreadsPerCore=2", line)

    assert [node.cpus_kept for node in text.nodes(f"{line}\n{kept}\n")] == [0, 6]


def test_an_admins_comment_keeps_no_memory_for_the_system(folder: Path) -> None:
    line = (folder / "scontrol-show-node").read_text().splitlines()[0]

    [node] = text.nodes(f"{line} Comment=MemSpecLimit=4000 State=IDLE")

    assert node.mem == 64_000


def test_a_drained_node_is_not_up_whatever_its_reason_says(gateway: CommandGateway) -> None:
    assert [node.up for node in gateway.read(ended=False).nodes] == [True, True, True, False]


def test_jobs_are_read_with_the_gpus_of_their_pins(gateway: CommandGateway) -> None:
    jobs = gateway.read(ended=False).jobs

    found = {(job.state, job.nodes, job.required): job for job in jobs}
    waits = found["PENDING", (), ("n2",)]
    assert (waits.gpus, waits.reason, waits.limit) == (0xFF, "Resources", 300)
    assert waits.plan is not None
    assert waits.known.texts["state"] == "waiting"
    # salloc's job is pinned by job, not by node.
    assert found["RUNNING", ("n3",), ("n3",)].gpus == 0b11
    array = next(job for job in jobs if job.state == "ARRAY")
    assert array.features == "v100|rack1"


def test_partitions_reservations_and_defaults_are_read(gateway: CommandGateway) -> None:
    reading = gateway.read(ended=False)

    assert [(one.name, one.default, one.time_limit) for one in reading.partitions] == [
        ("gpu", True, 3_600),
        ("plain", False, 3_600),
    ]
    [reservation] = reading.reservations
    begin, end = reservation.start, reservation.start + 3_600
    flags = frozenset({"SPEC_NODES"})
    assert reservation == Reservation(begin, end, ("n3",), reservation.name, flags=flags, users=("root",))
    assert (reading.memory, reading.memory_counts) == (Memory(per_cpu=100), True)


def test_an_admins_comment_on_a_reservation_changes_nothing(folder: Path) -> None:
    shown = folder / "scontrol-show-reservation"
    shown.write_text(shown.read_text().rstrip("\n") + " Comment=moved to Nodes=n1 StartTime=5\n")

    [reservation] = recorded_gateway(folder).read(ended=False).reservations

    assert reservation.nodes == ("n3",)
    assert reservation.start > 5


ODD_NAMES = [
    "a|b PENDING,(null)",
    *("\nx", "x\n", "\n", "a\nb", "\n\n", "\r", "\r\nx", "a\rb\r", "\0", "\\0"),
    *("\v\f\x1c\x1d\x1e\x85\u2028\u2029", "\n77|PENDING|", "|\n1|\n", "|", "\t", " ", "\udcff\udcfe", "n" * 1_000_000),
]


def name_one(folder: Path, name: str) -> int:
    """Give the first job of the recorded queue an account and another name; its number."""
    queue = folder / "squeue"
    first, _, rest = queue.read_text().partition("\n")
    values = first.split("|~")
    values[-4:-2] = ["lab", name]
    queue.write_bytes(f"{'|~'.join(values)}\n{rest}".encode("utf-8", "surrogateescape"))
    return int(values[0])


@pytest.mark.parametrize("name", ODD_NAMES, ids=lambda name: repr(name[:20]))
def test_a_job_is_known_by_its_account_and_by_its_name_as_its_user_wrote_it(folder: Path, name: str) -> None:
    before = recorded_gateway(folder).read(ended=False).jobs
    number = name_one(folder, name)

    after = {job.id: job for job in recorded_gateway(folder).read(ended=False).jobs}

    assert (after[number].account, after[number].name) == ("lab", name)
    assert [job for job in before if job.id != number] == [job for job in after.values() if job.id != number]


@pytest.mark.parametrize("name", ["\nx", "x\n", "\n"], ids=repr)
def test_what_is_pinned_is_found_whatever_a_job_is_called(folder: Path, name: str) -> None:
    pins = recorded_gateway(folder).pinned_jobs()
    assert pins
    name_one(folder, name)
    assert recorded_gateway(folder).pinned_jobs() == pins


def test_nonces_are_seen_once_slurm_shows_the_job(gateway: CommandGateway) -> None:
    reading = gateway.read(ended=False)

    plans = [job.plan for job in reading.jobs if job.plan]
    assert reading.seen == {plan.texts["id"] for plan in plans}
    assert len(reading.seen) == 4


def test_an_array_is_one_record_whose_tasks_split_off_one_by_one(folder: Path) -> None:
    queue = folder / "squeue"
    first = next(line for line in queue.read_text().splitlines() if "_1|~" in line)
    array = int(first.partition("|~")[0])
    # Task 2 waits with a place of its own; squeue shows it in the array's record all the same.
    with queue.open("a") as more:
        more.write(first.replace(f"{array}|~", "500|~", 1).replace(f"{array}_1|~", f"{array}_2|~") + "\n")
    (folder / "squeue-arrays").write_text(f"{array}|{array}_[1-3%2]|\n")
    lines = [line for line in queue.read_text().splitlines() if f"{array}_2|~" not in line or line.startswith("500")]
    queue.write_text("".join(f"{line}\n" for line in lines))

    jobs = {job.id: job for job in recorded_gateway(folder).read(ended=False).jobs}

    assert (jobs[array].state, jobs[array].array, jobs[array].task, jobs[array].tasks) == ("ARRAY", array, None, "1,3")
    assert jobs[array].at_once == 2
    assert (jobs[500].state, jobs[500].array, jobs[500].task, jobs[500].tasks) == ("PENDING", array, 2, "")


def test_the_lines_of_an_arrays_tasks_are_one_record_where_its_own_line_is_missing(folder: Path) -> None:
    lines = (folder / "squeue").read_text().splitlines()
    array = int(next(line for line in lines if "_1|~" in line).partition("|~")[0])
    (folder / "squeue-arrays").write_text("")

    jobs = {job.id: job for job in recorded_gateway(folder).read(ended=False).jobs}

    assert (jobs[array].state, jobs[array].task, jobs[array].tasks) == ("ARRAY", None, "1-3")


def test_the_gpus_of_running_jobs_are_known_typed_or_not(gateway: CommandGateway) -> None:
    held = sorted((job.nodes, job.holds) for job in gateway.read(ended=False).jobs if job.nodes)

    assert held == [
        (("n1",), (0b1111,)),
        (("n1",), (0b1_0000,)),
        (("n1",), (0b1000_0000,)),
        (("n2",), (0xFF,)),
        (("n3",), (0b11,)),
    ]


def test_an_unchanged_record_is_the_same_object(folder: Path, gateway: CommandGateway) -> None:
    first = gateway.read(ended=False)
    queue = folder / "squeue"
    queue.write_text(queue.read_text().replace("|~n1|~n1|~", "|~n1|~n1,n4|~", 1))

    second = gateway.read(ended=False)

    assert [old is new for old, new in zip(first.nodes, second.nodes, strict=True)] == [True] * 4
    assert sum(old is not new for old, new in zip(first.jobs, second.jobs, strict=True)) == 1
    assert [old is new for old, new in zip(first.partitions, second.partitions, strict=True)] == [True] * 2


def test_an_admin_comment_that_poses_as_a_job_is_only_a_comment(folder: Path) -> None:
    queue = folder / "squeue"
    lines = queue.read_text().splitlines()
    forged = "x|\n" + lines[0].replace("|~", "|") + "|\n"
    queue.write_text("\n".join([lines[0].replace("[berth/1", forged + "[berth/1", 1), *lines[1:]]) + "\n")

    jobs = recorded_gateway(folder).read(ended=False).jobs

    assert len(jobs) == len({line.partition("|~")[0] for line in lines})
    assert all(job.plan is None or job.known.texts["id"] for job in jobs)


def test_texts_with_bytes_that_are_no_text_come_back_as_they_were(folder: Path, gateway: CommandGateway) -> None:
    job_id = pinned(folder)
    file = folder / "scontrol-json"
    change(folder, job_id, admin_comment="a OOPS", extra="b OOPS", name="c OOPS")
    file.write_bytes(file.read_bytes().replace(b"OOPS", b"\xff\xfe"))

    gateway.annotate(job_id, JobPlan({"state": "noted"}))

    assert updates(folder)[0]["AdminComment"] == "a \udcff\udcfe[berth/1 state=noted]"


@pytest.mark.parametrize("record", ['{"extra": "OOPS", "job_id": "one"}', '{"extra": "OOPS", "job_id": 1'])
def test_nor_do_they_hide_that_the_json_is_of_another_form(folder: Path, record: str) -> None:
    (folder / "scontrol-json").write_bytes(f'{{"jobs": [{record}]}}'.encode().replace(b"OOPS", b"\xff"))

    with pytest.raises(SlurmError, match="another form than Berth knows"):
        recorded_gateway(folder).job(1)


@pytest.mark.parametrize("name", ["\nx", "\r\n\v", "\0", "\u2028", "n" * 1_000_000], ids=lambda name: repr(name[:9]))
def test_a_jobs_own_record_keeps_its_odd_texts(folder: Path, name: str) -> None:
    job_id = pinned(folder)
    change(folder, job_id, name=name, extra=name)

    assert recorded_gateway(folder).job(job_id).extra == name


def test_in_a_hurry_texts_are_asked_for_once_and_again_when_they_changed(folder: Path) -> None:
    job_id = pinned(folder)
    asked: list[str] = []
    recording = recorded_gateway(folder)._bytes

    def run(*command: str) -> bytes:
        asked.extend(command[3:4] if command[:3] == ("scontrol", "show", "job") else [])
        return recording(*command)

    def slurm_shows(old: str, new: str) -> None:
        queue = folder / "squeue"
        queue.write_text(queue.read_text().replace(old, new))

    gateway = CommandGateway(run)
    gateway.read(ended=False)
    gateway.pin(job_id, place("placed"), hurry=True)
    assert asked == [str(job_id)]

    # What was written is what Slurm shows now; what another writes later is not known.
    line = next(line for line in (folder / "squeue").read_text().splitlines() if line.startswith(f"{job_id}|~"))
    comment = line.split("|~")[-2]
    tres = next(word for word in line.split("|~") if word.startswith("gres/gpu:g"))
    slurm_shows(comment, "[berth/1 state=placed]")
    slurm_shows(tres, "gres/gpu:g0:1")
    gateway.read(ended=False)
    gateway.pin(job_id, place("placed again"), hurry=True)
    assert asked == [str(job_id)]

    slurm_shows("[berth/1 state=placed]", "by hand [berth/1 state=placed]")
    change(folder, job_id, admin_comment="by hand [berth/1 state=placed]")
    gateway.read(ended=False)
    gateway.pin(job_id, place("noted"), hurry=True)
    assert asked == [str(job_id)] * 2
    assert updates(folder)[-1]["AdminComment"] == "by hand [berth/1 state=noted]"


def test_a_pin_of_a_job_that_may_be_split_says_its_nodes_and_cpus(folder: Path, gateway: CommandGateway) -> None:
    """Slurm would keep the number of nodes, and on fewer nodes the CPUs of all."""
    job_id = pinned(folder)
    values = {"state": "placed", "n": "2", "k": "1", "cpus": "3", "mem": "500", "splits": "1:1000,2:500"}

    gateway.pin(job_id, Pin(("n1", "n2"), (0,), seats=False, plan=JobPlan(values)))
    assert updates(folder)[-1]["NumNodes"] == "2-2"
    assert updates(folder)[-1]["NumCPUs"] == "6"

    change(folder, job_id, admin_comment=segment.put("", values))
    gateway.release(job_id, "test")
    assert (updates(folder)[-1]["NumNodes"], updates(folder)[-1]["NumCPUs"]) == ("1-1", "3")
    assert updates(folder)[-1]["TresPerNode"] == "gres/gpu:2"


def test_a_job_that_may_start_on_several_nodes_has_its_users_request_again(
    folder: Path, gateway: CommandGateway
) -> None:
    """For scontrol, 0 as the most nodes stands for no bound."""
    job_id = pinned(folder)
    values = {"state": "waiting", "n": "2", "k": "8", "cpus": "3", "mem": "500", "spread": "3:500:0"}
    change(folder, job_id, admin_comment=segment.put("", values))

    gateway.release(job_id, "test", for_now=True)

    words = ("NumNodes", "NumCPUs", "TresPerNode", "TresPerJob")
    assert [updates(folder)[-1][word] for word in words] == ["1-0", "3", "", "gres/gpu:16"]


def test_what_another_writes_after_the_reading_stays(folder: Path, gateway: CommandGateway) -> None:
    job_id = pinned(folder)
    gateway.read(ended=False)
    # The queue that was read, and is read again, still shows the former text: only the job's own record is new.
    for state in ("placed", "noted", "later"):
        change(folder, job_id, admin_comment=f"not {state} [berth/1 state=waiting]", extra="theirs")
        if state == "placed":
            gateway.pin(job_id, place(state))
        elif state == "noted":
            gateway.annotate(job_id, JobPlan({"state": state}))
        else:
            gateway.park(job_id, JobPlan({"state": state}), 60)
        assert updates(folder)[-1]["AdminComment"] == f"not {state} [berth/1 state={state}]"
    assert updates(folder)[0]["Extra"] == "theirs[berth/1 nodes=n3 gpus=0]"


def place(state: str) -> Pin:
    return Pin(("n3",), (0,), seats=False, plan=JobPlan({"state": state}))


def test_a_task_is_written_to_by_its_name_because_its_number_may_be_the_arrays(folder: Path) -> None:
    job_id = pinned(folder)
    file = folder / "scontrol-json"
    answer = json.loads(file.read_text())
    for job in answer["jobs"]:
        job.update(array_job_id={"set": True, "number": 50}, array_task_id={"set": True, "number": 4})
    file.write_text(json.dumps(answer))
    gateway = recorded_gateway(folder)

    gateway.annotate(job_id, JobPlan({"state": "noted"}))
    gateway.requeue(job_id)
    gateway.requeue("50_7")
    gateway.delay(job_id, JobPlan({"state": "noted"}), 60)

    lines = [json.loads(line) for line in (folder / "updates").read_text().splitlines()]
    assert [line[0] for line in lines] == ["JobId=50_4", "50_4", "50_7", "JobId=50_4"]
    assert lines[-1][-1] == "StartTime=now+60"


def test_a_pin_keeps_foreign_text_and_the_form_of_the_request(folder: Path, gateway: CommandGateway) -> None:
    job_id = pinned(folder)
    change(folder, job_id, admin_comment="site [x] [berth/1 k=8 n=1] tail ", extra="mine")

    gateway.pin(job_id, Pin(("n3",), (0, 5), seats=True, plan=JobPlan({"state": "placed", "why": "best of 2"})))

    assert updates(folder) == [
        {
            "JobId": str(job_id),
            "TresPerNode": "gres/gpu:g0:1,gres/gpu:g5:1,gres/seat:g0:1,gres/seat:g5:1",
            "ReqNodeList": "n3",
            "AdminComment": "site [x] [berth/1 state=placed why=best%20of%202] tail ",
            "Extra": "mine[berth/1 nodes=n3 gpus=0,5]",
        }
    ]


def test_a_later_pin_in_a_hurry_knows_what_the_first_one_excluded(folder: Path, gateway: CommandGateway) -> None:
    job_id = pinned(folder)
    change(folder, job_id, admin_comment="", extra="")

    gateway.pin(job_id, Pin(("n3",), (0,), seats=False, plan=JobPlan({"state": "placed"}), others="n[1-2,4]"))
    gateway.pin(job_id, Pin(("n4",), (0,), seats=False, plan=JobPlan({"state": "placed"}), others="n[1-3]"))
    assert [update["ExcNodeList"] for update in updates(folder)] == ["n[1-2,4]", "n[1-3]"]


def test_a_job_without_a_script_is_pinned_by_job(folder: Path, gateway: CommandGateway) -> None:
    job_id = pinned(folder)
    change(folder, job_id, tres_per_job="gres/gpu:g0:2", tres_per_node="")

    gateway.pin(job_id, Pin(("n3", "n4"), (0, 5), seats=False, plan=JobPlan({})))
    [update] = updates(folder)

    assert update["TresPerJob"] == "gres/gpu:g0:2,gres/gpu:g5:2"
    assert "TresPerNode" not in update


def test_a_job_that_no_plugin_saw_is_pinned_by_node(folder: Path, gateway: CommandGateway) -> None:
    job_id = pinned(folder)
    change(folder, job_id, tres_per_job="gres/gpu:2", tres_per_node="")

    gateway.pin(job_id, Pin(("n3",), (0, 5), seats=False, plan=JobPlan({})))
    [update] = updates(folder)

    assert (update["TresPerNode"], update["TresPerJob"]) == ("gres/gpu:g0:1,gres/gpu:g5:1", "")


def test_a_job_that_started_is_not_pinned(folder: Path, gateway: CommandGateway) -> None:
    job_id = pinned(folder, "RUNNING")

    with pytest.raises(SlurmError, match="running"):
        gateway.pin(job_id, Pin(("n3",), (0,), seats=True, plan=JobPlan({})))

    assert not (folder / "updates").exists()


def test_a_release_restores_an_equal_request(folder: Path, gateway: CommandGateway) -> None:
    job_id = pinned(folder)
    body = "state=waiting id=00 asked=tres_per_job:gres/gpu:2;req_nodes:n%5B1-2%5D n=1 k=2 nodes=n2 gpus=0,1 seats=1"
    change(folder, job_id, admin_comment=f"a[berth/1 {body}]", extra="[berth/1 nodes=n2 gpus=0,1]mine")

    assert gateway.release(job_id, "because")

    [update] = updates(folder)
    assert update["TresPerNode"] == "gres/gpu:2"
    assert update["ReqNodeList"] == "n[1-2]"
    assert update["Extra"] == "mine"
    assert update["AdminComment"].startswith("a[berth/1 state=released ")
    assert "nodes=" not in update["AdminComment"].replace("req_nodes", "")


def test_gpus_of_each_task_are_asked_for_as_their_user_did(folder: Path, gateway: CommandGateway) -> None:
    told = "asked=tres_per_task:gres/gpu=1 n=1 k=2 spread=1:9:0:2:1:9:1:0:0 nodes=n2 gpus=0,1"
    change(folder, job_id := pinned(folder), admin_comment=f"[berth/1 state=waiting id=00 {told}]")

    assert gateway.release(job_id, "because", for_now=True)

    [update] = updates(folder)
    asked = {key: update[key] for key in ("TresPerNode", "TresPerJob", "TresPerTask", "NumNodes")}
    assert asked == {"TresPerNode": "", "TresPerJob": "", "TresPerTask": "gres/gpu=1", "NumNodes": "1-2"}


def test_a_release_for_now_leaves_all_that_the_next_plan_has_to_know(folder: Path, gateway: CommandGateway) -> None:
    job_id = pinned(folder)
    body = "state=waiting id=00 asked=gpus:1 n=1 k=1 share=30 gpu_mem=12 way=mps f.retry=auto nodes=n2 gpus=0 seats=0"
    change(folder, job_id, admin_comment=f"[berth/1 {body}]", extra="[berth/1 nodes=n2 gpus=0 share=30]")

    assert gateway.release(job_id, "because", for_now=True)

    [update] = updates(folder)
    assert (update["TresPerNode"], update["ReqNodeList"], update["Extra"]) == ("gres/gpu:1", "", "")
    values = segment.fields(update["AdminComment"]) or {}
    assert values == {
        "state": "later", "id": "00", "asked": "gpus:1", "n": "1", "k": "1", "share": "30", "gpu_mem": "12",
        "way": "mps", "f.retry": "auto", "why": "because [BERTH-106]",
    }  # fmt: skip


def test_a_job_without_a_script_is_left_to_slurm_for_good_as_its_first_step_has_its_request(
    folder: Path, gateway: CommandGateway
) -> None:
    job_id = pinned(folder)
    change(folder, job_id, tres_per_job="gres/gpu:g0:1,gres/gpu:g1:1")
    change(folder, job_id, admin_comment="[berth/1 state=waiting id=00 n=1 k=2 nodes=n2 gpus=0,1 seats=1]")

    assert gateway.release(job_id, "because", for_now=True)

    [update] = updates(folder)
    assert "state=released" in update["AdminComment"]


def test_a_job_without_a_pin_is_not_released(folder: Path, gateway: CommandGateway) -> None:
    job_id = pinned(folder)
    change(folder, job_id, admin_comment="[berth/1 state=passed id=00 why=x]")

    assert not gateway.release(job_id, "because")
    assert not (folder / "updates").exists()


def test_a_job_that_is_gone_is_named(folder: Path, gateway: CommandGateway) -> None:
    pinned(folder)

    with pytest.raises(SlurmError, match="job 99999 is not known"):
        gateway.job(99_999)


@pytest.mark.parametrize(
    ("gres", "gpus", "loose"),
    [
        ("gpu:g0:1,gpu:g1:1,seat:g0:1", 2, 0),
        ("gpu:g0:1(S:0-1),gpu:g1:1(S:0-1)", 2, 0),
        ("gpu:8", 0, 8),
        ("gpu:a100:4", 0, 4),
        ("gpu:a100:4(S:0),shard:100", 0, 4),
        ("(null)", 0, 0),
    ],
)
def test_gpus_with_a_type_of_their_own_are_told_from_others(folder: Path, gres: str, gpus: int, loose: int) -> None:
    line = (folder / "scontrol-show-node").read_text().splitlines()[0]
    before, _, rest = line.partition(" Gres=")

    [node] = text.nodes(f"{before} Gres={gres} {rest.partition(' ')[2]}")

    assert (node.gpus, node.loose) == (gpus, loose)


@pytest.mark.parametrize("name", ["commnd", "recorded", "recorded:", "command:x"])
def test_an_unknown_gateway_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown gateway"):
        open_gateway(name)


@pytest.mark.parametrize("state", ["REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"])
def test_a_job_that_was_put_back_on_hold_and_released_waits_as_any_other(folder: Path, state: str) -> None:
    job_id = pinned(folder)
    queue, recording = folder / "squeue", recorded_gateway(folder)._bytes
    queue.write_text(queue.read_text().replace(f"{job_id}|~PENDING|~", f"{job_id}|~{state}|~"))
    states: list[str] = []

    def run(*command: str) -> bytes:
        states.extend(command[command.index("-t") + 1].split(",") if command[0] == "squeue" else [])
        return recording(*command)

    gateway = CommandGateway(run)
    job = next(job for job in gateway.read(ended=False).jobs if job.id == job_id)

    assert (job.state, job.may_start, ours(job)) == ("PENDING", True, True)
    assert job_id in gateway.pinned_jobs()
    gateway.pin(job_id, place("placed"), hurry=True)
    assert updates(folder)[0]["ReqNodeList"] == "n3"
    # By PENDING squeue means a job without any such mark.
    assert states.count(state) == states.count("PENDING") > 0


@pytest.mark.parametrize("state", ["REQUEUED", "COMPLETING"])
def test_a_job_that_still_ends_does_not_wait_yet(folder: Path, state: str) -> None:
    queue = folder / "squeue"
    queue.write_text(queue.read_text().replace("|~PENDING|~", f"|~{state}|~", 1))

    assert [job.state for job in recorded_gateway(folder).read(ended=False).jobs].count(state) == 1


@pytest.mark.parametrize("state", ["PENDING", "ARRAY"])
def test_a_waiting_job_and_an_arrays_record_may_hold_a_pin(state: str) -> None:
    assert changes.may_hold_pin(waiting(6, "n1", 0b11, state=state))
    assert not changes.may_hold_pin(waiting(6, "n1", 0b11, state=state, required=()))


def test_whom_slurm_refused_at_the_submission_is_told_by_its_record() -> None:
    jobs = [
        waiting(1, "n1", 1, state="FAILED", reason="BadConstraints"),
        waiting(2, "n1", 1, state="FAILED", reason="NonZeroExitCode"),
        waiting(3, "n1", 1, reason="BadConstraints"),
        replace(waiting(4, "n1", 1, state="FAILED", reason="BadConstraints"), plan=None),
    ]

    assert fields.refused(jobs) == {f"{1:016x}"}
