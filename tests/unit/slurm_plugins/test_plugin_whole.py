# SPDX-License-Identifier: Apache-2.0
"""The job_submit plugin as a whole: what becomes of submissions and changes, with and without a berthd."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from policy.daemon.write.pinned import ELSEWHERE, PARKED, PINNED, SHARES, UNCHECKED
from policy.formats import segment, wire
from tests.unit.plugin_whole import USER, Plugin, each_slurm, loaded, place, refused, reply

pytestmark = each_slurm
FLAG = {"locality": "any"}
users = count(20_000)
"""The plugin remembers users between two tests."""


@pytest.fixture
def plugin(headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    with loaded(headers, tmp_path, monkeypatch, 'skip_partitions = "plain,cpu"') as made:
        yield made


def place_with_words(request: wire.Message) -> bytes:
    return place(request, message="berth: n1")


def park(request: wire.Message) -> bytes:
    values = wire.words({"state": "later", "parked": "0"})
    return reply("later", request, n="1", k="1", guest="1", begin="1900000000", segment=values)


# What is written into a job


def test_a_place_is_written_beside_the_users_own_extra(plugin: Plugin) -> None:
    with plugin.berthd(place):
        said = plugin.submit(tres_per_job="gres/gpu:1", extra="mine")
    assert (said.rc, said.fields["extra"], said.fields["req_nodes"]) == (0, "mine[berth/1 nodes=n1 gpus=3]", "n1")


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ({"num_tasks": "1", "cpus_per_tres": "gres/gpu:4"}, {"cpus_per_task": "8"}),
        ({"ntasks_per_node": "1", "cpus_per_tres": "gres/gpu:4"}, {"cpus_per_task": "8", "ntasks_per_node": "1"}),
        ({"num_tasks": "2", "cpus_per_tres": "gres/gpu:4"}, {"cpus_per_task": "4"}),
        ({"cpus_per_tres": "gres/gpu:4"}, {}),
        ({"num_tasks": "1"}, {}),
    ],
)
def test_cpus_for_each_gpu_become_cpus_of_the_tasks(plugin: Plugin, asked: dict[str, str], got: dict[str, str]) -> None:
    with plugin.berthd(partial(place, gpus="2,3")):
        said = plugin.submit(tres_per_job="gres/gpu:2", **asked)

    assert "cpus_per_tres" not in said.fields
    assert {name: said.fields[name] for name in ("cpus_per_task", "ntasks_per_node") if name in said.fields} == got


@pytest.mark.parametrize(
    ("asked", "on_each"),
    [
        ({"tres_per_job": "gres/gpu:2"}, "2"),
        ({"tres_per_node": "gres/gpu:1", "cpus_per_tres": "gres/gpu:2"}, "2"),
        ({"tres_per_node": "gres/gpu:1", "tres_per_job": "gres/gpu:2"}, "2"),
        # Here Slurm lays tasks as it likes, and no GPU hangs on it.
        ({"tres_per_node": "gres/gpu:1"}, None),
        # Slurm 26.05 would bill three tasks on each of two nodes.
        ({"tres_per_node": "gres/gpu:1", "tres_per_job": "gres/gpu:2", "num_tasks": "5"}, None),
    ],
)
def test_tasks_that_follow_gpus_are_the_same_on_each_node(
    plugin: Plugin, asked: dict[str, str], on_each: str | None
) -> None:
    with plugin.berthd(partial(place, nodes="n1,n2")):
        said = plugin.submit(**{"num_tasks": "4", "min_nodes": "2", "max_nodes": "2", **asked})

    assert (said.rc, said.fields.get("ntasks_per_node")) == (0, on_each)


def test_a_connection_is_kept_until_an_answer_is_not_to_the_question(plugin: Plugin) -> None:
    numbers = count()

    def answer(request: wire.Message) -> bytes:
        return b"berth/1 pass\nnonce=0123456789abcdef\n" if next(numbers) == 2 else place(request)

    with plugin.berthd(answer) as came:
        said = [plugin.submit(tres_per_job="gres/gpu:1").fields.get("req_nodes") for _ in range(5)]
    assert said == ["n1", "n1", None, "n1", "n1"]
    assert came == [3, 2]


def test_a_place_for_which_there_is_no_room_leaves_the_job_to_slurm(plugin: Plugin) -> None:
    own = "x" * 1_000
    with plugin.berthd(place):
        said = plugin.submit(USER, FLAG, tres_per_job="gres/gpu:1", extra=own)
    assert (said.rc, said.fields["extra"], said.fields["tres_per_job"]) == (0, own, "gres/gpu:1")
    assert "req_nodes" not in said.fields
    assert "longer than Slurm takes" in said.text
    assert "state=passed" in said.fields["admin_comment"]


@pytest.mark.parametrize("berthd", [place, None], ids=["berthd", "no berthd"])
@pytest.mark.parametrize(
    ("tier", "asked", "marked"),
    [
        ("opportunistic", {"tres_per_job": "gres/gpu:1"}, True),
        ("opportunistic,upgrade", {"tres_per_node": "gres/gpu:1"}, True),
        ("opportunistic", {}, False),
        ("guaranteed", {"tres_per_job": "gres/gpu:1"}, False),
    ],
)
def test_a_batch_job_that_asks_for_a_seat_says_so_to_its_node(
    plugin: Plugin, berthd: Callable[[wire.Message], bytes] | None, tier: str, asked: dict[str, str], *, marked: bool
) -> None:
    with plugin.berthd(berthd) if berthd else nullcontext():
        said = plugin.submit(next(users), {"gpu-tier": tier}, environment="HOME=/", **asked)
        alone = plugin.submit(next(users), {"gpu-tier": tier}, script="", **asked)
    assert said.fields["environment"].split("\n") == ["HOME=/", *["BERTH_SEAT_ASKED=1"] * marked]
    assert "environment" not in alone.fields


def test_berthd_is_told_of_who_is_never_to_be_requeued(plugin: Plugin) -> None:
    asked: list[wire.Message] = []
    with plugin.berthd(asked.append):
        for said in ({"requeue": "0"}, {"requeue": "1"}, {}):
            plugin.submit(tres_per_job="gres/gpu:1", **said)
    assert [request.fields.get("no_requeue") for request in asked] == ["1", None, None]


def test_berthd_is_told_how_much_room_extra_leaves(plugin: Plugin) -> None:
    asked: list[wire.Message] = []
    with plugin.berthd(asked.append):
        plugin.submit(tres_per_job="gres/gpu:1", extra="x" * 990)
        plugin.submit(tres_per_job="gres/gpu:1")
    assert [request.fields.get("extra_bytes") for request in asked] == ["990", None]


# Requests that cannot be counted


def test_gpus_that_slurm_would_count_and_we_cannot_are_refused(plugin: Plugin) -> None:
    many = "gres/gpu:2066035336255469781kb"
    for said in (plugin.submit(tres_per_job=many), plugin.modify("JobId=18", tres_per_job=many)):
        assert (refused(said), "a number of GPUs is digits alone" in said.text) == (True, True)
    user = next(users)
    assert plugin.submit(user, partition="plain", tres_per_job=many).rc == 0
    assert refused(plugin.modify("JobId=19", user, partition="gpu"))


@pytest.mark.parametrize("own", ["gres/seat:g0:1", "gres/seat=1", "xgres/gpu:g0:1"])
def test_what_is_berths_alone_is_refused_in_any_partition(plugin: Plugin, own: str) -> None:
    user = next(users)
    assert refused(plugin.submit(user, partition="plain", tres_per_node=own))
    assert refused(plugin.modify("JobId=18", user, partition="plain", tres_per_node=own))
    # GPUs that Berth does not look at are the site's own.
    assert plugin.submit(user, partition="plain", tres_per_node="gres/gpu:g0:1").rc == 0


def test_a_reservation_may_lead_to_any_partition(plugin: Plugin) -> None:
    default = ctypes.c_char_p.in_dll(plugin.built, "default_part_name")
    before, default.value = default.value, b"plain"
    try:
        assert plugin.submit(next(users), tres_per_node="gres/gpu:g0:1").rc == 0
        assert refused(plugin.submit(next(users), reservation="r1", tres_per_node="gres/gpu:g0:1"))
    finally:
        default.value = before


# The breaker


def test_replies_that_are_wrong_in_a_field_do_not_turn_the_plugin_from_berthd(plugin: Plugin) -> None:
    def wrong(request: wire.Message) -> bytes:
        return reply("pass", request, segment="x" * 5_002)

    with plugin.berthd(wrong):
        for _ in range(5):
            assert plugin.submit(tres_per_job="gres/gpu:1").rc == 0
    with plugin.berthd(place):
        assert "req_nodes" in plugin.submit(tres_per_job="gres/gpu:1").fields


def test_replies_to_somebody_else_do(plugin: Plugin) -> None:
    with plugin.berthd(lambda _: wire.encode("pass", {"nonce": "0" * 16})):
        for _ in range(3):
            plugin.submit(tres_per_job="gres/gpu:1")
    with plugin.berthd(place):
        assert "req_nodes" not in plugin.submit(tres_per_job="gres/gpu:1").fields


def test_while_berthd_is_not_asked_no_request_is_written(plugin: Plugin) -> None:
    several = {"partition": ",".join(["gpu"] * 50), "tres_per_job": "gres/gpu:1"}
    with plugin.berthd(lambda _: wire.encode("pass", {"nonce": "0" * 16})):
        for _ in range(3):
            plugin.submit(**several)
    before = plugin.built.fake_groups_asked()
    with plugin.berthd(place) as came:
        said = plugin.submit(**several)
    assert (said.rc, came, plugin.built.fake_groups_asked()) == (0, [], before)
    assert "berthd%20did%20not%20answer" in said.fields["admin_comment"]


def test_of_a_user_whose_requests_are_dear_nobody_asks_berthd_for_a_while(plugin: Plugin) -> None:
    def busy(request: wire.Message) -> bytes:
        return reply("busy", request, seconds="60") if request.fields["uid"] == str(USER) else place(request)

    with plugin.berthd(busy) as came:
        said = [plugin.submit(tres_per_job="gres/gpu:1") for _ in range(3)]
        other = plugin.submit(USER + 1, tres_per_job="gres/gpu:1")
    assert (sum(came), [one.rc for one in said]) == (2, [0, 0, 0])
    # The planner finds it a place by this.
    assert all("asked=tres_per_job:gres/gpu:1" in one.fields["admin_comment"] for one in said)
    assert "req_nodes" in other.fields


# Requests that would hold up everybody else's

LARGE = [
    ({"partition": ",".join(["gpu"] * 65)}, "it lists more than 64 partitions"),
    ({"partition": "g" * 4_097}, "its list of partitions is longer than 4096 bytes"),
    ({"partition": ",".join(["gpu"] * 7_500)}, "its list of partitions is longer than 4096 bytes"),
    ({"features": "&".join(["a"] * 257)}, "its --constraint has more than 256 features"),
    ({"features": "a&b|" * 14_000}, "its --constraint is longer than 4096 bytes"),
    ({"req_nodes": "n1," * 11_000}, "its --nodelist is longer than 32768 bytes"),
    ({"qos": "q" * 5_000}, "its QOS is longer than 4096 bytes"),
    ({"mem_per_tres": "gres/gpu:1," * 500}, "its --mem-per-gpu is longer than 4096 bytes"),
]


@pytest.mark.parametrize(("fields", "why"), LARGE, ids=lambda value: value if isinstance(value, str) else "")
def test_a_request_that_is_too_large_is_left_to_slurm(plugin: Plugin, fields: dict[str, str], why: str) -> None:
    with plugin.berthd(place) as came:
        said = [plugin.submit(USER, {"gpu-tier": "guaranteed"}, tres_per_job="gres/gpu:1", **fields) for _ in range(5)]
        assert came == []
        # None of them is berthd's failure.
        assert "req_nodes" in plugin.submit(tres_per_job="gres/gpu:1").fields
    assert {one.rc for one in said} == {0}
    assert said[0].text == f"berth: left to Slurm: {why} [BERTH-212]"
    values = segment.fields(said[0].fields["admin_comment"]) or {}
    assert (values["state"], values["why"]) == ("passed", f"{why} [BERTH-212]")


def test_one_that_is_too_large_is_no_way_around_a_site_that_insists_on_berthd(
    headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loaded(headers, tmp_path, monkeypatch, 'fail = "closed"') as insists:
        for fields, why in LARGE:
            said = insists.submit(tres_per_job="gres/gpu:1", **fields)
            assert refused(said)
            assert f"{why}; make it shorter" in said.text
        assert insists.submit(**LARGE[0][0]).rc == 0  # without GPUs


def test_a_request_as_large_as_it_may_be_is_sent(plugin: Plugin) -> None:
    several = ",".join(f"{number:02}{'g' * 61}" for number in range(64))
    with plugin.berthd(place):
        for fields in ({"partition": several}, {"features": "&".join(["a"] * 256)}, {"features": "a" * 4_096}):
            said = plugin.submit(tres_per_job="gres/gpu:1", **fields)
            assert said.fields["req_nodes"] == "n1"


def test_an_extra_that_no_slurm_takes_is_not_gone_through(plugin: Plugin) -> None:
    asked: list[wire.Message] = []
    with plugin.berthd(asked.append):
        for own in ("x" * 65_537, "x" * 70_000 + "[berth/1 gpus=0]"):
            said = plugin.submit(tres_per_job="gres/gpu:1", extra=own)
            assert (refused(said), "its Extra is longer than 4096 bytes" in said.text) == (True, True)
            assert refused(plugin.modify("JobId=18", extra=own))
    assert asked == []


# Changes of waiting jobs

STARTS = {"begin_time": "1000"}
PLACES = (
    {"req_nodes": "n2"},
    {"req_nodes": ""},
    {"tres_per_node": "gres/gpu:2"},
    {"extra": "mine"},
    {"min_nodes": "2"},
)


def test_a_pinned_job_keeps_its_place_and_may_be_started_at_another_time(plugin: Plugin) -> None:
    plugin.list({18: PINNED})
    for change in PLACES:
        said = plugin.modify("JobId=18", **change)
        assert refused(said), change
        assert "job 18 has a planned place" in said.text
    # A job that is to be tried again is started at once by its owner so.
    assert plugin.modify("JobId=18", **STARTS).rc == 0
    assert plugin.modify("JobId=18", time_limit="5", partition="other").rc == 0


def test_a_guest_without_a_seat_is_neither_started_nor_changed_by_hand(plugin: Plugin) -> None:
    plugin.list({18: PARKED})
    for change in (STARTS, {"begin_time": "1900000000"}, *PLACES):
        said = plugin.modify("JobId=18", **change)
        assert refused(said), change
        assert "job 18 is a guest that waits for a seat" in said.text
        assert "cancel it and submit it again" in said.text
    assert plugin.modify("JobId=18", time_limit="5").rc == 0
    assert plugin.modify("JobId=18", 0, **STARTS).rc == 0
    assert plugin.modify("JobId=19", **STARTS).rc == 0


def test_who_runs_beside_others_keeps_what_tells_its_node_so(plugin: Plugin) -> None:
    plugin.list({18: SHARES})
    for extra in ("", "mine"):
        said = plugin.modify("JobId=18", extra=extra)
        assert (refused(said), "job 18 shares a GPU" in said.text) == (True, True)
    assert plugin.modify("JobId=18", time_limit="5", begin_time="1900000000").rc == 0


def test_a_task_of_an_array_of_such_guests_is_held_like_its_array(plugin: Plugin) -> None:
    plugin.list({18: PARKED, 22: PINNED})
    assert refused(plugin.modify("JobId=18_*", **STARTS))
    # The change itself has just made this record.
    assert refused(plugin.modify("JobId=18_3(21)", **STARTS))
    # This task has its seat.
    assert plugin.modify("JobId=18_2(22)", **STARTS).rc == 0
    plugin.list({18: PINNED})
    assert plugin.modify("JobId=18_3(21)", req_nodes="n2").rc == 0


def test_nobody_is_quicker_than_the_list(plugin: Plugin) -> None:
    user = next(users)
    plugin.list({18: PINNED})
    with plugin.berthd(park):
        said = plugin.submit(user, {"gpu-tier": "opportunistic"}, tres_per_job="gres/gpu:1")
    assert said.rc == 0
    said = plugin.modify("JobId=19", user, **STARTS)
    assert (refused(said), "try again in half a minute" in said.text) == (True, True)
    assert plugin.modify("JobId=19", user, time_limit="5").rc == 0
    # What berthd has listed it knows, and others have submitted no guest.
    assert plugin.modify("JobId=18", user, **STARTS).rc == 0
    assert plugin.modify("JobId=19", next(users), **STARTS).rc == 0
    assert plugin.modify("JobId=19", USER, **STARTS).rc == 0


def test_nobody_takes_the_part_that_he_was_given_for_another_before_it_is_listed(plugin: Plugin) -> None:
    user = next(users)
    plugin.list({18: PINNED})
    with plugin.berthd(partial(place, share="20", way="mps")):
        assert plugin.submit(user, {"gpu-share": "20"}, tres_per_job="gres/gpu:1").rc == 0
    for change in ({"extra": ""}, {"extra": "mine"}, {"tres_per_node": "gres/gpu:2"}, {"tres_per_job": ""}):
        said = plugin.modify("JobId=19", user, **change)
        assert (refused(said), "try again in half a minute" in said.text) == (True, True), change
        assert plugin.modify("JobId=19", next(users), **change).rc == 0
    # Not by way of a partition that Berth does not touch either; and what is refused anyway is refused as ever.
    assert refused(plugin.modify("JobId=19", user, partition="plain", extra=""))
    for tres in ("gres/seat:g0:1", "gres/gpu:v100:1"):
        said = plugin.modify("JobId=19", user, tres_per_node=tres)
        assert (refused(said), "try again" in said.text) == (True, False), tres
    assert plugin.modify("JobId=19", user, time_limit="5").rc == 0
    # A list that names the job knows what may change of it.
    plugin.list({19: ELSEWHERE})
    assert plugin.modify("JobId=19", user, extra="mine").rc == 0


# Partitions that Berth does not touch


def test_a_skipped_partition_in_the_list_opens_no_way_around_berth(plugin: Plugin) -> None:
    asked: list[wire.Message] = []
    with plugin.berthd(asked.append):
        assert plugin.submit(partition="gpu,plain", tres_per_job="gres/gpu:1").rc == 0
    assert [request.fields["partition"] for request in asked] == ["gpu,plain"]
    for tres in ("gres/gpu:g0:1", "gres/shard:100", "gres/seat:g1:1"):
        assert refused(plugin.submit(partition="plain,gpu", tres_per_node=tres)), tres


@pytest.mark.parametrize(
    ("partition", "admitted"),
    [
        ("gpu,of12345,of1", "gpu,of12345"),
        ("of1,of2", ""),
        ("nowhere,gpu", "gpu"),
        ("of12345", None),
        ("gpu", None),
    ],
)
def test_of_several_partitions_berthd_hears_which_admit_the_users_groups(
    plugin: Plugin, partition: str, admitted: str | None
) -> None:
    asked: list[wire.Message] = []
    with plugin.berthd(asked.append):
        assert plugin.submit(USER, partition=partition, tres_per_job="gres/gpu:1").rc == 0
    assert [request.fields.get("admitted") for request in asked] == [admitted]


def test_where_all_partitions_are_skipped_the_job_is_left_alone(plugin: Plugin) -> None:
    for partitions in ("plain", "cpu,plain"):
        for tres in ("gres/gpu:a100:2", "gres/gpu:g0:1"):
            said = plugin.submit(next(users), partition=partitions, tres_per_node=tres)
            assert (said.rc, said.text) == (0, "")
            assert said.fields == {"partition": partitions, "tres_per_node": tres}


def test_no_change_brings_a_request_to_berths_partitions_that_nobody_looked_at(plugin: Plugin) -> None:
    plugin.list({18: ELSEWHERE | UNCHECKED, 19: ELSEWHERE})
    said = plugin.modify("JobId=18", partition="gpu")
    assert (refused(said), "cancel it and submit it there" in said.text) == (True, True)
    assert refused(plugin.modify("JobId=18", partition="plain,gpu"))
    assert plugin.modify("JobId=18", partition="cpu").rc == 0
    # A job without GPUs goes where it likes.
    assert plugin.modify("JobId=19", partition="gpu").rc == 0
    assert plugin.modify("JobId=20", partition="gpu").rc == 0


def test_nor_does_a_quick_one(plugin: Plugin) -> None:
    user = next(users)
    plugin.submit(user, partition="plain", tres_per_node="gres/gpu:g0:1")
    said = plugin.modify("JobId=21", user, partition="gpu")
    assert (refused(said), "try again in half a minute" in said.text) == (True, True)
    user = next(users)
    plugin.list({19: ELSEWHERE})
    plugin.submit(user, partition="plain", time_limit="5")
    assert plugin.modify("JobId=19", user, partition="gpu").rc == 0
    assert plugin.modify("JobId=19", user, tres_per_node="gres/gpu:g0:1").rc == 0
    assert refused(plugin.modify("JobId=19", user, partition="gpu"))
    assert plugin.modify("JobId=19", 0, partition="gpu").rc == 0
    plugin.list({19: PINNED})
    assert plugin.modify("JobId=19", user, partition="gpu").rc == 0


def test_changes_in_skipped_partitions_are_slurms_own_affair(plugin: Plugin) -> None:
    plugin.list({19: ELSEWHERE})
    for change in ({"tres_per_node": "gres/gpu:a100:2"}, {"tres_per_node": "gres/gpu:g0:1"}):
        said = plugin.modify("JobId=19", next(users), **change)
        assert (said.rc, said.fields) == (0, change)
        said = plugin.modify("JobId=20", next(users), partition="plain", **change)
        assert (said.rc, said.fields["tres_per_node"]) == (0, change["tres_per_node"])
        # Of a job that is not listed nobody knows where it is: it counts as one of Berth's.
        assert refused(plugin.modify("JobId=20", next(users), **change))
        assert refused(plugin.modify("JobId=19", next(users), partition="gpu,plain", **change))


# What who submits reads of a success

GPU = {"tres_per_job": "gres/gpu:1"}
EVERYTHING = {
    "a place": (GPU, place_with_words),
    "left to Slurm": (GPU, lambda request: reply("pass", request, message="berth: left to Slurm: no")),
    "no room": (GPU | {"extra": "x" * 1_000}, place_with_words),
    "no answer": (GPU, lambda _: None),
    "no GPUs": ({}, place_with_words),
}


@pytest.mark.parametrize("what", EVERYTHING)
@pytest.mark.parametrize(
    ("message", "flags", "line", "spoken"),
    [
        ("always", FLAG, "sbatch train.sh", True),
        ("flags", FLAG, "sbatch train.sh", True),
        ("never", FLAG, "sbatch train.sh", False),
        ("never", FLAG, "sbatch --test-only train.sh", True),
        ("flags", {}, "sbatch train.sh", False),
        # Who names no flag of Berth reads what plain Slurm says.
        ("flags", {}, "sbatch --test-only train.sh", False),
        ("never", {}, "sbatch --test-only train.sh", False),
        ("always", FLAG, "sbatch --parsable train.sh", False),
        ("always", FLAG, "sbatch --parsable --test-only train.sh", True),
    ],
)
def test_a_success_speaks_as_the_site_and_the_user_want(
    headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, flags: dict[str, str], line: str,
    what: str, *, spoken: bool,
) -> None:  # fmt: skip
    fields, answer = EVERYTHING[what]
    with loaded(headers, tmp_path, monkeypatch, f'message = "{message}"') as made, made.berthd(answer):
        said = made.submit(USER, flags, **fields, submit_line=line, arguments="/home/train.sh")
    assert said.rc == 0
    assert bool(said.text) is spoken, said.text


def test_a_plain_job_is_silent_where_the_site_says_nothing(plugin: Plugin) -> None:
    with plugin.berthd(place_with_words):
        assert plugin.submit(tres_per_job="gres/gpu:1").text == ""
        assert plugin.submit(USER, FLAG, tres_per_job="gres/gpu:1").text == "berth: n1"


@pytest.mark.parametrize("message", ["always", "flags", "never"])
def test_a_refusal_is_always_read(headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    with (
        loaded(headers, tmp_path, monkeypatch, f'message = "{message}"') as made,
        made.berthd(lambda request: reply("refuse", request, message="berth: no")),
    ):
        said = made.submit(**GPU, submit_line="sbatch --parsable -Q train.sh", arguments="train.sh")
    assert (said.rc != 0, said.text) == (True, "berth: no")


@pytest.mark.parametrize(
    ("line", "quiet"),
    [
        ("sbatch --parsable train.sh", True),
        ("sbatch --gpus 1 --pars -p gpu train.sh a b", True),
        ("sbatch --parsable", True),
        # A guess: these are words of the job's own command. berth why has the sentence too.
        ("sbatch --wrap python train.py --parsable", True),
        ("sbatch train.sh --parsable", True),
        ("sbatch train.sh", False),
        # The client itself hides what is said.
        ("sbatch -Q train.sh", False),
        ("sbatch --par gpu --q normal train.sh", False),
        ("sbatch " + "x" * (1 << 20) + " --parsable", False),
        ("", False),
    ],
)
def test_the_command_line_tells_whether_a_script_reads_the_answer(plugin: Plugin, line: str, *, quiet: bool) -> None:
    with plugin.berthd(place_with_words):
        said = plugin.submit(USER, FLAG, **GPU, submit_line=line)
    assert (said.rc, said.text == "") == (0, quiet)


@pytest.mark.parametrize(
    ("script", "quiet"),
    [
        ("#!/bin/sh\n#SBATCH --parsable\ntrue\n", True),
        ("#!/bin/sh\n# words\n\n  \t\n#SBATCH\t--gpus=1 --pars\n", True),
        ("#!/bin/sh\r\n#SBATCH --parsable\r\ntrue\r\n", True),
        ("#!/bin/sh\n##SBATCH --parsable\n# --parsable\n", False),
        ("#!/bin/sh\ntrue\n#SBATCH --parsable\n", False),
        ("#!/bin/sh\n #SBATCH --parsable\n", False),
        ("#!/bin/sh\n#SBATCH\n--parsable\n", False),
        ("#!/bin/sh\n#SBATCH", False),
        ("#" * 70_000 + "\n#SBATCH --parsable\n", False),
        ("", False),
    ],
)
def test_a_script_tells_it_too(plugin: Plugin, script: str, *, quiet: bool) -> None:
    with plugin.berthd(place_with_words):
        said = plugin.submit(USER, FLAG, **GPU, script=script)
    assert (said.rc, said.text == "") == (0, quiet)


@pytest.mark.parametrize(
    ("message", "line", "urgent", "spoken"),
    [
        ("never", "sbatch train.sh", True, True),
        ("flags", "sbatch train.sh", True, True),
        ("flags", "sbatch train.sh", False, False),
        ("flags", "sbatch --parsable train.sh", True, False),
    ],
)
def test_what_slurm_will_refuse_is_explained(
    headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, line: str, *, urgent: bool,
    spoken: bool,
) -> None:  # fmt: skip
    more = {"urgent": "1"} if urgent else {}
    with (
        loaded(headers, tmp_path, monkeypatch, f'message = "{message}"') as made,
        made.berthd(lambda request: reply("pass", request, message="berth: no node has", **more)),
    ):
        said = made.submit(**GPU, submit_line=line, arguments="train.sh")
    assert (said.rc, said.text) == (0, "berth: no node has" if spoken else "")


OPERATOR = 4_242
"""Has AdminLevel=Operator in the simulated slurmctld, as Slurm's own `validate_operator` tells."""


def test_an_operator_may_change_what_is_berths_as_root_may(plugin: Plugin) -> None:
    plugin.list({18: PINNED})
    for user in (0, OPERATOR):
        assert plugin.modify("JobId=18", user, tres_per_node="gres/gpu:g0:1,gres/seat:g1:1").rc == 0
        assert plugin.modify("JobId=18", user, extra="[berth/1 nodes=n1 gpus=3]").rc == 0
        assert plugin.submit(user, tres_per_node="gres/shard:g0:5", partition="plain").rc == 0
    assert refused(plugin.modify("JobId=18", OPERATOR + 1, tres_per_node="gres/gpu:g0:1,gres/seat:g1:1"))
    assert refused(plugin.submit(OPERATOR + 1, extra="[berth/1 nodes=n1 gpus=3]"))
