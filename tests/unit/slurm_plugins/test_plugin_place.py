# SPDX-License-Identifier: Apache-2.0
"""What the whole plugin asks berthd, and what a place, a share or a later start make of each field of a job."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from policy.daemon.write.pinned import PINNED
from policy.formats import segment, wire
from tests.unit.plugin_whole import USER, Plugin, Said, each_slurm, loaded, place, refused, reply

pytestmark = each_slurm
SHARE = {"gpu-share": "30"}
NO_SCRIPT = {"script": ""}
MEM_PER_CPU = 1 << 63
NO_LIMIT = str(0xFFFFFFFF)
ENFORCE_BINDING, USE_MIN_NODES, CRON_JOB = str(1 << 4), str(1 << 9), str(1 << 22)
ON_SEVEN = {"tres_per_node": "gres/gpu:1", "min_nodes": "7", "max_nodes": "7"}


@pytest.fixture
def plugin(headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    with loaded(headers, tmp_path, monkeypatch) as made:
        yield made


def asked_by(plugin: Plugin, flags: dict[str, str] | None = None, /, **fields: str) -> dict[str, str]:
    """What berthd hears of a submission."""
    heard: list[wire.Message] = []
    with plugin.berthd(heard.append):
        assert plugin.submit(USER, flags, **fields).rc == 0
    assert len(heard) == 1
    return dict(heard[0].fields)


def placed(plugin: Plugin, flags: dict[str, str] | None, said: dict[str, str], /, **fields: str) -> Said:
    """A submission whose place has these words beside the usual ones."""
    with plugin.berthd(lambda request: place(request, **said)):
        done = plugin.submit(USER, flags, **fields)
    assert (done.rc, done.fields["req_nodes"]) == (0, said.get("nodes", "n1")), done
    return done


# What berthd is asked


@pytest.mark.parametrize(
    ("fields", "gpus"),
    [
        ({"tres_per_node": "gres/gpu:2"}, "2"),
        ({"tres_per_node": "gres/gpu:2", "min_nodes": "3", "max_nodes": "3"}, "6"),
        ({"tres_per_node": "gres/gpu:2", "min_nodes": "3"}, None),
        ({"tres_per_task": "gres/gpu:2", "num_tasks": "3"}, "6"),
        ({"tres_per_task": "gres/gpu:2"}, "2"),
        ({"tres_per_task": "gres/gpu:2", "min_nodes": "2", "max_nodes": "2"}, None),
        ({"ntasks_per_tres": "2", "num_tasks": "6"}, "3"),
        ({"ntasks_per_tres": "2", "num_tasks": "5"}, None),
        ({"tres_per_socket": "gres/gpu:1"}, None),
    ],
)
def test_gpus_are_counted_where_they_can_be(plugin: Plugin, fields: dict[str, str], gpus: str | None) -> None:
    assert asked_by(plugin, **fields).get("gpus") == gpus


@pytest.mark.parametrize(
    ("fields", "heard"),
    [
        ({"pn_min_memory": "4096"}, {"mem_per_node": "4096"}),
        ({"pn_min_memory": "0"}, {"mem_per_node": "0"}),
        ({"pn_min_memory": str(MEM_PER_CPU + 512)}, {"mem_per_cpu": "512"}),
        ({"pn_min_memory": str(MEM_PER_CPU)}, {"mem_per_node": "0", "mem_per_cpu": None}),
        ({"bitflags": CRON_JOB}, {"slurms_own": "scrontab"}),
        ({"task_dist": "3", "req_nodes": "n2,n1,n1", "num_tasks": "3"}, {"slurms_own": "-m arbitrary"}),
        ({"task_dist": "8193", "num_tasks": "3"}, {"slurms_own": None}),
        ({"time_limit": "600", "time_min": "30"}, {"slurms_own": "--time-min"}),
        ({"req_switch": "2"}, {"switches": "2"}),
        ({"req_switch": "2", "wait4switch": "60"}, {"switches": "2", "switch_wait": "60"}),
        ({"threads_per_core": "1", "ntasks_per_core": "2"}, {"threads_per_core": "1", "ntasks_per_core": "2"}),
        ({"begin_time": "1900000000"}, {"begin": "1900000000"}),
        ({"ntasks_per_tres": "2", "num_tasks": "2"}, {"ntasks_per_tres": "2"}),
        ({"contiguous": "1", "overcommit": "1"}, {"slurms_own": "--overcommit,--contiguous"}),
        ({"job_size_str": "1,4", "min_nodes": "1", "max_nodes": "4"}, {"slurms_own": "-N LIST"}),
        ({"job_size_str": "2", "min_nodes": "2", "max_nodes": "2"}, {"slurms_own": None, "min_nodes": "2"}),
        ({"bitflags": USE_MIN_NODES, "min_nodes": "1", "max_nodes": "4"}, {"slurms_own": "--use-min-nodes"}),
        ({"bitflags": USE_MIN_NODES, "min_nodes": "2", "max_nodes": "2"}, {"slurms_own": None}),
        ({"bitflags": ENFORCE_BINDING}, {"enforce_binding": "1"}),
        ({"time_limit": "30"}, {"time_limit": "30"}),
        ({"time_limit": NO_LIMIT}, {"time_limit": "525600"}),
        ({}, {"time_limit": None}),
        ({"exc_nodes": "n9"}, {"exc_nodes": "n9"}),
        ({"submit_line": "sbatch --test-onlyx --test-only x"}, {"test": "1"}),
        (NO_SCRIPT, {"client": "alloc"}),
    ],
)
def test_berthd_hears_what_a_place_hangs_on(plugin: Plugin, fields: dict[str, str], heard: dict[str, str]) -> None:
    asked = asked_by(plugin, tres_per_job="gres/gpu:1", **fields)
    assert {name: asked.get(name) for name in heard} == heard


@pytest.mark.parametrize(
    ("flags", "fields", "signal"),
    [
        ({"movable": "1"}, {"warn_signal": "10"}, "10"),
        ({"movable": "1"}, {"warn_signal": "10", "warn_flags": "1"}, "B:10"),
        ({"movable": "1"}, {}, None),
        ({"locality": "any"}, {"warn_signal": "10"}, None),
    ],
)
def test_a_movable_job_says_how_it_is_warned(
    plugin: Plugin, flags: dict[str, str], fields: dict[str, str], signal: str | None
) -> None:
    assert asked_by(plugin, flags, tres_per_job="gres/gpu:1", **fields).get("signal") == signal


@pytest.mark.parametrize(
    ("fields", "field", "tres"),
    [
        ({}, "tres_per_job", "gres/gpu:1"),
        ({"tres_per_job": "gres/nic:1"}, "tres_per_job", "gres/gpu:1,gres/nic:1"),
        ({"min_nodes": "2", "max_nodes": "2"}, "tres_per_node", "gres/gpu:1"),
    ],
)
def test_a_share_alone_asks_for_one_gpu(plugin: Plugin, fields: dict[str, str], field: str, tres: str) -> None:
    asked = asked_by(plugin, SHARE, **fields)
    assert (asked[field], asked["flag.gpu-share"]) == (tres, "30")


def test_flags_come_by_a_rest_clients_environment_too(plugin: Plugin) -> None:
    for prefix in ("", "SLURM_SPANK_"):
        variable = f"{prefix}_SLURM_SPANK_OPTION_berth_locality=any"
        assert asked_by(plugin, tres_per_job="gres/gpu:1", environment=variable)["flag.locality"] == "any"


@pytest.mark.parametrize(("share", "per_gpu"), [(None, "6"), ({"gpu-share": "30"}, "2"), ({"gpu-share": "100"}, "6")])
def test_a_site_says_how_many_cpus_come_with_a_gpu(
    headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: dict[str, str] | None, per_gpu: str
) -> None:
    with loaded(headers, tmp_path, monkeypatch, "def_cpu_per_gpu = 6") as made:
        assert asked_by(made, share, tres_per_job="gres/gpu:1")["cpus_per_tres"] == f"gres/gpu:{per_gpu}"
        for own in ({"cpus_per_task": "2"}, {"pn_min_cpus": "2"}):
            assert "cpus_per_tres" not in asked_by(made, share, tres_per_job="gres/gpu:1", **own)


# What a place makes of the job


@pytest.mark.parametrize(
    ("fields", "job", "node"),
    [
        ({"tres_per_job": "gres/gpu:2"}, "", "gres/gpu:g2:1,gres/gpu:g3:1,gres/seat:g2:1,gres/seat:g3:1"),
        ({**NO_SCRIPT, "tres_per_node": "gres/gpu:2"}, "gres/gpu:g2:1,gres/gpu:g3:1,gres/seat:g2:1,gres/seat:g3:1", ""),
        # A step of salloc's that asks for no GPUs has what the job asks for, and may be on fewer nodes.
        *(
            (
                {**NO_SCRIPT, "tres_per_node": "gres/gpu:2", "submit_line": line},
                "",
                "gres/gpu:g2:1,gres/gpu:g3:1,gres/seat:g2:1,gres/seat:g3:1",
            )
            for line in ("salloc -N1 --gres=gpu:2", "/opt/slurm/bin/salloc", "salloc")
        ),
        *(
            (
                {**NO_SCRIPT, "tres_per_node": "gres/gpu:2", "submit_line": line},
                "gres/gpu:g2:1,gres/gpu:g3:1,gres/seat:g2:1,gres/seat:g3:1",
                "",
            )
            for line in ("srun salloc", "mysalloc x", "alloc", "")
        ),
        # Beside another GRES the step would lose its GPUs.
        (
            {**NO_SCRIPT, "tres_per_node": "gres/gpu:2,gres/nic:1"},
            "",
            "gres/gpu:g2:1,gres/gpu:g3:1,gres/seat:g2:1,gres/seat:g3:1,gres/nic:1",
        ),
    ],
)
def test_a_pin_stands_where_steps_find_it(plugin: Plugin, fields: dict[str, str], job: str, node: str) -> None:
    done = placed(plugin, None, {"gpus": "2,3"}, **fields).fields
    assert (done.get("tres_per_job", ""), done.get("tres_per_node", "")) == (job, node)


@pytest.mark.parametrize(
    ("tres", "left", "cpus"),
    [
        ("gres/gpu:2", None, None),
        ("cpu=2,gres/gpu:2", None, "2"),
        ("gres/gpu:2,gres/nic:1", "gres/nic:1", None),
        ("cpu=2,gres/gpu:2,gres/nic:1", "cpu=2,gres/nic:1", None),
    ],
)
def test_steps_still_hear_how_many_gpus_a_task_has(
    plugin: Plugin, tres: str, left: str | None, cpus: str | None
) -> None:
    """slurmctld writes the variable anew from a job that has `tres_per_task`."""
    variables = f"A=1\nSLURM_TRES_PER_TASK={tres}"
    done = placed(plugin, None, {"gpus": "2,3"}, tres_per_task=tres, num_tasks="1", environment=variables)

    assert done.fields["environment"] == variables
    assert (done.fields.get("tres_per_task"), done.fields.get("cpus_per_task")) == (left, cpus)


def test_cpus_of_a_batch_job_stay_where_they_were_asked(plugin: Plugin) -> None:
    fields = {"tres_per_task": "cpu=2", "environment": "SLURM_TRES_PER_TASK=cpu=2"}
    done = placed(plugin, None, {"gpus": "2,3"}, tres_per_job="gres/gpu:2", num_tasks="1", **fields)

    assert (done.fields["tres_per_task"], done.fields["environment"]) == ("cpu=2", fields["environment"])


def test_models_leave_the_environment_with_the_request(plugin: Plugin) -> None:
    done = placed(plugin, None, {}, tres_per_job="gres/gpu:a100:1", environment="SLURM_GPUS=a100:1\nA=a100:1")
    assert (done.fields["environment"], done.fields["features"]) == ("SLURM_GPUS=1\nA=a100:1", "a100")


@pytest.mark.parametrize(
    ("flags", "said", "fields", "memory"),
    [
        (None, {"mem_per_node": "8192"}, {"mem_per_tres": "gres/gpu:4096"}, ("8192", None)),
        (None, {}, {"mem_per_tres": "gres/gpu:4096"}, (None, "gres/gpu:4096")),
        (SHARE, {"share": "30", "way": "mps"}, {"mem_per_tres": "gres/gpu:4096"}, ("4096", None)),
        (SHARE, {"share": "30", "way": "mps"}, {"pn_min_memory": "100"}, ("100", None)),
    ],
)
def test_memory_is_said_by_node_where_slurm_could_not_count_it(
    plugin: Plugin, flags: dict[str, str] | None, said: dict[str, str], fields: dict[str, str],
    memory: tuple[str | None, str | None],
) -> None:  # fmt: skip
    done = placed(plugin, flags, said, tres_per_job="gres/gpu:1", **fields).fields
    assert (done.get("pn_min_memory"), done.get("mem_per_tres")) == memory


def test_a_share_is_shards_of_its_gpu(plugin: Plugin) -> None:
    done = placed(plugin, SHARE, {"share": "40", "way": "mps", "mem": "9000"}, tres_per_job="gres/gpu:1").fields
    assert done["tres_per_node"] == "gres/shard:g3:40"
    assert done["extra"] == "[berth/1 nodes=n1 gpus=3 share=40 asked_share=30 mem=9000 way=mps]"


def test_a_guest_gets_a_seat_and_can_be_put_back(plugin: Plugin) -> None:
    tier = {"gpu-tier": "opportunistic"}
    done = placed(plugin, tier, {"guest": "1", "way": "time"}, tres_per_job="gres/gpu:1").fields
    assert (done["tres_per_node"], done["requeue"]) == ("gres/seat:g3:1", "1")
    assert done["extra"] == "[berth/1 nodes=n1 gpus=3 tier=opportunistic way=time]"


def test_a_host_takes_no_seats(plugin: Plugin) -> None:
    done = placed(plugin, None, {"way": "mps"}, tres_per_job="gres/gpu:1").fields
    assert done["tres_per_node"] == "gres/gpu:g3:1"
    assert done["extra"] == "[berth/1 nodes=n1 gpus=3 tier=guaranteed way=mps]"


@pytest.mark.parametrize(("bind", "left"), [("gres/gpu:per_task:1", None), ("gres/gpu:closest", "gres/gpu:closest")])
def test_gpus_of_a_pin_are_not_counted_out_to_tasks(plugin: Plugin, bind: str, left: str | None) -> None:
    assert placed(plugin, None, {}, tres_per_job="gres/gpu:1", tres_bind=bind).fields.get("tres_bind") == left


def test_nodes_are_excluded_as_berthd_says(plugin: Plugin) -> None:
    said = {"exc_nodes": "n[2-9]", "pn_min_cpus": "4"}
    done = placed(plugin, None, said, tres_per_job="gres/gpu:1", pn_min_cpus="2").fields
    assert (done["exc_nodes"], done["pn_min_cpus"]) == ("n[2-9]", "4")
    assert (done["min_nodes"], done["max_nodes"]) == ("1", "1")


def test_components_of_one_job_get_different_nodes(plugin: Plugin) -> None:
    heard: list[str] = []

    def answer(request: wire.Message) -> bytes:
        heard.append(request.fields.get("exc_nodes", ""))
        return place(request, nodes=f"n{len(heard)}")

    with plugin.berthd(answer):
        for component in range(3):
            plugin.submit(tres_per_job="gres/gpu:1", het_job_offset=str(component))
        plugin.submit(tres_per_job="gres/gpu:1", het_job_offset="3", exc_nodes="n9")
        # Another job has nothing to do with them.
        plugin.submit(tres_per_job="gres/gpu:1", het_job_offset="0")
        plugin.submit(tres_per_job="gres/gpu:1")
    assert heard == ["", "n1", "n1,n2", "n9,n1,n2,n3", "", ""]


def test_later_asks_for_gpus_in_the_form_that_every_pin_replaces(plugin: Plugin) -> None:
    def later(request: wire.Message) -> bytes:
        return reply("later", request, n="2", k="1", segment=wire.words({"state": "later"}))

    with plugin.berthd(later):
        done = plugin.submit(tres_per_job="gres/gpu:2,gres/nic:1", ntasks_per_tres="1", num_tasks="2").fields
    assert (done["tres_per_node"], done["tres_per_job"], done["min_nodes"]) == ("gres/gpu:1", "gres/nic:1", "2")
    assert "ntasks_per_tres" not in done
    assert "req_nodes" not in done


# What is refused, and where no berthd is there


@pytest.mark.parametrize(
    ("flags", "fields", "words"),
    [
        ({"locality": "moon"}, {}, "--locality wants"),
        ({"gpu-share": "0"}, {}, "--gpu-share wants"),
        (None, {"tres_per_job": "gres/gpu:a100:1,gres/gpu:h100:1"}, "GPUs of one model only"),
        (None, {"tres_per_job": "gres/gpu:a|b:1"}, "a GPU model is a word of letters"),
        (None, {"tres_per_job": "gres/gpu:a100:1", "features": "rack1*2"}, "cannot be added to this --constraint"),
        (None, {"tres_per_job": "gres/gpu:1", "extra": "[berth/1 gpus=0]"}, "is written by Berth alone"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(
    plugin: Plugin, flags: dict[str, str] | None, fields: dict[str, str], words: str
) -> None:
    said = plugin.submit(USER, flags, **fields)
    assert (refused(said), words in said.text) == (True, True), said


@pytest.mark.parametrize("fields", [{"extra": "[berth/1 gpus=0]"}, {"tres_per_job": "gres/gpu:g0:1"}])
def test_a_job_from_another_cluster_of_a_federation_may_what_its_user_may(
    plugin: Plugin, fields: dict[str, str]
) -> None:
    """Slurm submits it as root, as its user wrote it, and the other cluster may have no Berth."""
    siblings = {"fed_siblings_viable": "3"}
    assert refused(plugin.submit(0, user_id=str(USER), **siblings, **fields))
    assert [plugin.submit(0, user_id=user, **fields).rc for user in ("0", str(USER))] == [0, 0]
    assert refused(plugin.submit(USER, user_id="0", **siblings, **fields))


def test_a_model_in_a_change_needs_the_constraint_beside_it(plugin: Plugin) -> None:
    said = plugin.modify("JobId=18", tres_per_node="gres/gpu:a100:2")
    assert (refused(said), "Features=MODEL" in said.text) == (True, True)
    said = plugin.modify("JobId=18", tres_per_node="gres/gpu:a100:2", features="ib")
    assert (said.rc, said.fields["tres_per_node"], said.fields["features"]) == (0, "gres/gpu:2", "ib&a100")


def test_a_closed_site_takes_no_gpu_job_without_berthd(
    headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loaded(headers, tmp_path, monkeypatch, 'fail = "closed"') as made:
        said = made.submit(tres_per_job="gres/gpu:1")
        assert (refused(said), "berthd does not answer" in said.text) == (True, True)
        assert made.submit().rc == 0


def test_a_log_has_a_line_for_each_gpu_job(headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "hook.log"
    with loaded(headers, tmp_path, monkeypatch, f'hook_log = "{log}"') as made:
        made.submit(tres_per_job="gres/gpu:1")
        made.submit()
        with made.berthd(place):
            made.submit(tres_per_job="gres/gpu:1")
    assert [line.split()[2:] for line in log.read_text().splitlines()] == [["dead", str(USER)], ["place", str(USER)]]


@pytest.mark.parametrize("hook", ['hook_log = "/nowhere/at/all"', "deadline_ms = 0"])
def test_a_site_file_that_is_wrong_costs_no_submission(
    headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    with loaded(headers, tmp_path, monkeypatch, hook) as made:
        assert made.submit(tres_per_job="gres/gpu:1").rc == 0


def test_a_berthd_that_is_silent_is_waited_for_until_the_deadline_alone(
    headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "hook.log"
    with (
        loaded(headers, tmp_path, monkeypatch, f'hook_log = "{log}"', deadline_ms=20) as made,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent,
    ):
        silent.bind(str(tmp_path / "sock"))
        silent.listen()
        said = made.submit(tres_per_job="gres/gpu:1")
    assert (said.rc, said.fields["tres_per_job"]) == (0, "gres/gpu:1")
    assert "berthd%20did%20not%20answer" in said.fields["admin_comment"]
    waited, outcome = log.read_text().split()[1:3]
    assert outcome == "timeout"
    assert int(waited) >= 20_000


def test_an_answer_that_is_longer_than_any_right_one_is_dropped(plugin: Plugin) -> None:
    with plugin.berthd(lambda request: place(request) + b"x" * 16_384):
        said = plugin.submit(tres_per_job="gres/gpu:1")
    assert (said.rc, "req_nodes" in said.fields) == (0, False)


def test_a_request_of_many_long_fields_is_left_to_slurm(plugin: Plugin) -> None:
    long = {"req_nodes": "n1," * 10_900, "exc_nodes": "n2," * 10_900, "features": "f" * 4_000}
    with plugin.berthd(place) as came:
        said = plugin.submit(USER, {"locality": "any"}, tres_per_job="gres/gpu:1", **long)
    assert (said.rc, said.text, came) == (
        0,
        "berth: left to Slurm: its request is longer than 65536 bytes [BERTH-212]",
        [],
    )


def test_nodes_are_folded_where_their_names_have_no_room(plugin: Plugin) -> None:
    nodes = "n1,n3,n4,n5,n7,n8,n9"
    room = 1_024 - len(f"[berth/1 nodes={nodes} gpus=3]")
    for own, shown in ((room, nodes), (room + 1, "n%5B1,3-5,7-9%5D")):
        done = placed(plugin, None, {"nodes": nodes}, extra="x" * own, **ON_SEVEN).fields
        assert done["extra"] == "x" * own + f"[berth/1 nodes={shown} gpus=3]"


def test_a_change_of_a_record_without_a_readable_name_is_known_by_what_it_says(plugin: Plugin) -> None:
    plugin.list({18: PINNED})
    for named in ("18", "18_*"):
        said = plugin.modify("-", job_id_str=named, req_nodes="n2")
        assert (refused(said), f"job {named} has a planned place" in said.text) == (True, True)
    assert plugin.modify("-", req_nodes="n2").rc == 0


def test_what_a_user_of_the_preflight_asks_is_kept_without_berthd(plugin: Plugin) -> None:
    said = plugin.submit(USER, {"locality": "any"}, tres_per_job="gres/gpu:1", tres_per_node="gres/nic:1")
    values = segment.fields(said.fields["admin_comment"]) or {}
    assert (values["f.locality"], values["asked"]) == ("any", "tres_per_job:gres/gpu:1;tres_per_node:gres/nic:1")


ONE_NODE = {"tres_per_job": "gres/gpu:2", "min_nodes": "1", "max_nodes": "1"}


@pytest.mark.parametrize(
    "fields",
    [
        ONE_NODE | NO_SCRIPT,
        {"tres_per_job": "gres/gpu:2"},
        {"tres_per_node": "gres/gpu:1", "num_tasks": "4"},
        {"tres_per_job": "gres/gpu:2", "min_nodes": "2", "max_nodes": "2"},
        *(
            ONE_NODE | {name: value}
            for name, value in {
                "cpus_per_tres": "gres/gpu:4",
                "ntasks_per_tres": "1",
                "prefer": "rack1",
                "reservation": "r1",
                "req_switch": "1",
                "sockets_per_node": "2",
                "contiguous": "1",
                "bitflags": ENFORCE_BINDING,
                "shared": "0",
                "pn_min_memory": str(MEM_PER_CPU),
                "features": "rack1*2",
            }.items()
        ),
    ],
    ids=str,
)
def test_berthd_takes_over_no_job_whose_record_does_not_tell_what_a_pin_would_break(
    plugin: Plugin, fields: dict[str, str]
) -> None:
    def kept(fields: dict[str, str]) -> Mapping[str, str]:
        return segment.fields(plugin.submit(USER, {"locality": "any"}, **fields).fields["admin_comment"]) or {}

    assert kept(ONE_NODE)["asked"] == "tres_per_job:gres/gpu:2"
    assert kept({"tres_per_node": "gres/gpu:2"})["asked"] == "tres_per_node:gres/gpu:2"
    found = kept(fields)
    assert (found["state"], found["f.locality"], "asked" in found) == ("passed", "any", False)


@pytest.mark.parametrize(
    ("script", "asked", "cpus", "left"),
    [
        ("", {"tres_per_task": "cpu:2,gres/gpu:1", "cpus_per_task": "2"}, "2", None),
        ("", {"tres_per_task": "gres/gpu=1,cpu=3"}, "3", None),
        # What is more than CPUs, or other CPUs, has no other field.
        ("", {"tres_per_task": "cpu:2,gres/gpu:1,license/a:1"}, None, "cpu:2,license/a:1"),
        ("", {"tres_per_task": "cpu:2,gres/gpu:1", "cpus_per_task": "4"}, "4", "cpu:2"),
        ("#!/bin/sh", {"tres_per_task": "cpu:2,gres/gpu:1", "cpus_per_task": "2"}, "2", "cpu:2"),
    ],
)
def test_the_step_of_an_srun_forgets_no_gpus_for_each_task(
    plugin: Plugin, script: str, asked: dict[str, str], cpus: str | None, left: str | None
) -> None:
    done = placed(plugin, None, {"gpus": "2,3"}, script=script, num_tasks="2", **asked)

    assert (done.fields.get("cpus_per_task"), done.fields.get("tres_per_task")) == (cpus, left)
