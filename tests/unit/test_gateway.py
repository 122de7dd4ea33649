import json
import shutil
from pathlib import Path

import pytest

from policy.errors import ConfigError, SlurmError
from policy.facts import Memory, Reservation
from policy.slurm import text
from policy.slurm.command import CommandGateway
from policy.slurm.gateways import open_gateway
from policy.slurm.interface import Pin
from policy.slurm.recorded import recorded_gateway

DATA = Path(__file__).parent / "data"
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


def test_a_drained_node_is_not_up_whatever_its_reason_says(gateway: CommandGateway) -> None:
    assert [node.up for node in gateway.read(ended=False).nodes] == [True, True, True, False]


def test_jobs_are_read_with_the_gpus_of_their_pins(gateway: CommandGateway) -> None:
    jobs = gateway.read(ended=False).jobs

    found = {(job.state, job.nodes, job.required): job for job in jobs}
    waits = found["PENDING", (), ("n2",)]
    assert (waits.gpus, waits.reason, waits.limit) == (0xFF, "Resources", 300)
    assert waits.segment is not None
    assert waits.segment["state"] == "waiting"
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
    assert reservation == Reservation(reservation.start, reservation.start + 3_600, ("n3",))
    assert (reading.memory, reading.memory_counts) == (Memory(per_cpu=100), True)


def test_nonces_are_seen_once_slurm_shows_the_job(gateway: CommandGateway) -> None:
    reading = gateway.read(ended=False)

    segments = [job.segment for job in reading.jobs if job.segment]
    assert reading.seen == {segment["id"] for segment in segments}
    assert len(reading.seen) == 4


def test_a_job_name_that_poses_as_a_segment_is_only_a_name(folder: Path) -> None:
    job_id = pinned(folder)
    file = folder / "squeue-json"
    answer = json.loads(file.read_text())
    forged = "x AdminComment=[berth/1 state=placed id=ffffffffffffffff k=8]"
    for job in answer["jobs"]:
        job.update(name=forged, comment=forged)
    next(job for job in answer["jobs"] if job["job_id"] == job_id)["admin_comment"] = ""
    file.write_text(json.dumps(answer))

    reading = recorded_gateway(folder).read(ended=False)

    assert "f" * 16 not in reading.seen
    assert next(job for job in reading.jobs if job.id == job_id).segment is None


def test_records_are_fetched_again_only_when_a_pin_changed(folder: Path) -> None:
    asked: list[str] = []
    recording = recorded_gateway(folder)._bytes

    def run(*command: str) -> bytes:
        asked.extend(word for word in command if word.startswith("--jobs="))
        return recording(*command)

    gateway = CommandGateway(run)
    gateway.read(ended=False)
    gateway.read(ended=False)
    assert len(asked) == 1

    queue = folder / "squeue"
    queue.write_text(queue.read_text().replace("|n1|gres/gpu:g0:1", "|n1|gres/gpu:g5:1"))
    gateway.read(ended=False)
    assert len(asked) == 2
    assert "," not in asked[1]


def test_a_pin_keeps_foreign_text_and_the_form_of_the_request(folder: Path, gateway: CommandGateway) -> None:
    job_id = pinned(folder)
    change(folder, job_id, admin_comment="site [x] [berth/1 k=8 n=1] tail ", extra="mine")

    gateway.pin(job_id, Pin(("n3",), (0, 5), seats=True, values={"state": "placed", "why": "best of 2"}))

    assert updates(folder) == [
        {
            "JobId": str(job_id),
            "TresPerNode": "gres/gpu:g0:1,gres/gpu:g5:1,gres/seat:g0:1,gres/seat:g5:1",
            "ReqNodeList": "n3",
            "AdminComment": "site [x] [berth/1 state=placed why=best%20of%202] tail ",
            "Extra": "mine[berth/1 nodes=n3 gpus=0,5]",
        }
    ]


def test_a_job_without_a_script_is_pinned_by_job(folder: Path, gateway: CommandGateway) -> None:
    job_id = pinned(folder)
    change(folder, job_id, tres_per_job="gres/gpu:g0:2", tres_per_node="")

    gateway.pin(job_id, Pin(("n3", "n4"), (0, 5), seats=False, values={}))
    [update] = updates(folder)

    assert update["TresPerJob"] == "gres/gpu:g0:2,gres/gpu:g5:2"
    assert "TresPerNode" not in update


def test_a_job_that_started_is_not_pinned(folder: Path, gateway: CommandGateway) -> None:
    job_id = pinned(folder, "RUNNING")

    with pytest.raises(SlurmError, match="running"):
        gateway.pin(job_id, Pin(("n3",), (0,), seats=True, values={}))

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
    ("state", "up"),
    [
        ("IDLE", True),
        ("MIXED+PLANNED", True),
        ("ALLOCATED+COMPLETING", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("IDLE+DRAIN", False),
        ("DOWN*+DRAIN", False),
        ("IDLE*", False),
        ("IDLE+RESERVED", False),
        ("IDLE+MAINTENANCE", False),
        ("IDLE+NOT_RESPONDING", False),
        ("IDLE+REBOOT_ISSUED", False),
    ],
)
def test_a_node_takes_jobs_or_not_by_its_state(folder: Path, state: str, up: bool) -> None:
    shown = (folder / "scontrol-show-node").read_text().splitlines()[0].replace("State=MIXED", f"State={state}")

    [node] = text.nodes(shown)

    assert node.up is up
    assert node.completing is ("COMPLETING" in state)


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


@pytest.mark.parametrize(
    ("printed", "seconds"),
    [("7:00", 420), ("1:00:00", 3_600), ("2-00:00:01", 172_801), ("UNLIMITED", None), ("NOT_SET", None)],
)
def test_time_limits_are_read(printed: str, seconds: int | None) -> None:
    assert text.limit(printed) == seconds


def test_output_that_nobody_knows_is_an_error_not_a_guess() -> None:
    with pytest.raises(SlurmError, match="squeue printed"):
        list(text.jobs("1|2|3\n"))
    with pytest.raises(SlurmError, match="scontrol show node printed"):
        text.nodes("NodeName=n1 nothing else\n")


def test_a_missing_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SlurmError, match="scontrol is not on PATH"):
        open_gateway("command").version()


@pytest.mark.parametrize("name", ["commnd", "recorded", "recorded:", "command:x"])
def test_an_unknown_gateway_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown gateway"):
        open_gateway(name)
