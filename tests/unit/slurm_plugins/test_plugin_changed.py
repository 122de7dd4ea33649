# SPDX-License-Identifier: Apache-2.0
"""An owner's change of a planned job: the plugin puts the rest of the request beside it, as its user wrote it."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from policy.daemon.write.pinned import GUEST, PARKED, PINNED
from tests.unit.plugin_whole import USER, Plugin, each_slurm, loaded, refused, release

pytestmark = each_slurm


@pytest.fixture
def plugin(headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    with loaded(headers, tmp_path, monkeypatch) as found:
        yield found


ASKED = {
    "tres_per_job": "gres/gpu:2",
    "tres_per_node": "",
    "tres_per_task": "",
    "cpus_per_tres": "gres/gpu:4",
    "req_nodes": "",
    "exc_nodes": "",
    "extra": "own",
    "min_nodes": "1",
    "max_nodes": "3",
    "cpus_per_task": "1",
}
CHANGES: Mapping[str, str] = {
    "req_nodes": "n2",
    "tres_per_node": "gres/gpu:3",
    "tres_per_job": "gres/gpu:1",
    "tres_per_task": "gres/gpu:1",
    "min_nodes": "2",
    "min_cpus": "3",
    "cpus_per_task": "2",
    "pn_min_cpus": "2",
    "pn_min_memory": "100",
}
"""Fields of a change that touch the place, as scontrol sends them."""


def keep(plugin: Plugin, job: int, words: Mapping[str, str] = ASKED) -> None:
    """Write what berthd keeps of a job."""
    for name in ("asked", "changed"):
        (plugin.folder / f"pinned.{name}").mkdir(exist_ok=True)
    text = " ".join(f"{key}={value}" for key, value in words.items())
    (plugin.folder / "pinned.asked" / str(job)).write_text(f"{text}\n")


@pytest.mark.parametrize("field", CHANGES)
def test_an_owners_change_stands_beside_the_rest_of_the_request(plugin: Plugin, field: str) -> None:
    plugin.list({7: PINNED})
    keep(plugin, 7)
    said = plugin.modify("JobId=7", **{field: CHANGES[field]})
    assert said.rc == 0, said.text
    wanted = {**ASKED, field: CHANGES[field]}
    if field == "tres_per_task":
        # With CPUs for each GPU Slurm counts those of a task itself, and refuses another number.
        wanted["cpus_per_task"] = ""
    assert {key: said.fields.get(key, "") for key in wanted} == wanted
    assert [file.name for file in (plugin.folder / "pinned.changed").iterdir()] == ["7"]
    again = plugin.modify("JobId=7", tres_per_node="gres/gpu:5")
    assert (again.rc, again.fields.get("tres_per_job")) == (0, None), "what was changed once is not asked for again"


@pytest.mark.parametrize(
    ("change", "most"),
    [
        ({"num_tasks": "1"}, "1"),
        ({"num_tasks": "4"}, "4"),
        ({"num_tasks": "1", "tres_per_job": "gres/gpu:1"}, "1"),
        ({"num_tasks": "1", "tres_per_node": "gres/gpu:2"}, "3"),
        ({"tres_per_node": "gres/gpu:2"}, "3"),
        ({"num_tasks": "1", "max_nodes": "2"}, "2"),
    ],
)
def test_the_most_nodes_of_a_change_are_as_many_as_slurm_tests_it_by(
    plugin: Plugin, headers: Path, change: Mapping[str, str], most: str
) -> None:
    """From 26.05 on Slurm takes them from the new number of tasks, and tests GPUs of a node by the old number first."""
    asked = {key: value for key, value in ASKED.items() if key != "max_nodes"}
    plugin.list({7: PINNED})
    keep(plugin, 7, {"max_nodes_of_tasks": "3", **asked})
    said = plugin.modify("JobId=7", **change)
    assert said.rc == 0, said.text
    assert said.fields.get("max_nodes", "0") == (
        "0" if release(headers) < (26, 5) and "max_nodes" not in change else most
    )


OPERATOR = 4_242


@pytest.mark.parametrize("field", ["req_nodes", "min_nodes", "pn_min_memory", "tres_per_node"])
def test_so_does_an_administrators_change(plugin: Plugin, field: str) -> None:
    keep(plugin, 7)
    said = plugin.modify("JobId=7", OPERATOR, **{field: CHANGES[field]})
    wanted = {**ASKED, field: CHANGES[field]}
    assert {key: said.fields.get(key, "") for key in wanted} == wanted
    assert (plugin.folder / "pinned.changed" / "7").exists()


@pytest.mark.parametrize("user", [USER, OPERATOR, os.geteuid()])
def test_gpus_that_are_changed_before_berthd_has_kept_what_was_asked_keep_pins_away(plugin: Plugin, user: int) -> None:
    (plugin.folder / "pinned.changed").mkdir()
    said = plugin.modify("JobId=7", user, tres_per_node="gres/gpu:1")
    assert (said.rc, said.fields.get("tres_per_job")) == (0, None), said.text
    assert (plugin.folder / "pinned.changed" / "7").exists()


def test_nor_does_a_change_of_slurms_user_go_unseen_later(plugin: Plugin) -> None:
    keep(plugin, 7)
    said = plugin.modify("JobId=7", os.geteuid(), tres_per_node="gres/gpu:1")
    assert (said.rc, said.fields.get("tres_per_job")) == (0, None), said.text
    assert [(plugin.folder / f"pinned.{name}" / "7").exists() for name in ("asked", "changed")] == [True, True]


@pytest.mark.parametrize(
    "change",
    [
        {"tres_per_node": "gres/gpu:g0:1"},
        {"tres_per_node": "gres/gpu:2", "req_nodes": "", "admin_comment": "[berth/1 state=released]"},
        {"extra": "mine"},
    ],
)
def test_what_an_administrator_places_and_what_berth_writes_stands_alone(
    plugin: Plugin, change: Mapping[str, str]
) -> None:
    keep(plugin, 7)
    said = plugin.modify("JobId=7", OPERATOR, **change)
    assert (said.rc, said.fields.get("tres_per_job")) == (0, None)
    assert (plugin.folder / "pinned.asked" / "7").exists()


def test_without_what_was_asked_such_a_change_is_refused_as_ever(plugin: Plugin) -> None:
    plugin.list({7: PINNED})
    assert refused(plugin.modify("JobId=7", min_nodes="2"))


@pytest.mark.parametrize("content", ["", "tres_per_node=gres/gpu:2", "x" * 5_000 + "\n"])
def test_a_broken_file_counts_as_none(plugin: Plugin, content: str) -> None:
    plugin.list({7: PINNED})
    keep(plugin, 7)
    (plugin.folder / "pinned.asked" / "7").write_text(content)
    assert refused(plugin.modify("JobId=7", min_nodes="2"))


def test_the_users_words_leave_the_request_alone(plugin: Plugin) -> None:
    plugin.list({7: PINNED})
    keep(plugin, 7)
    said = plugin.modify("JobId=7", extra="mine")
    assert (said.rc, said.fields["extra"], said.fields.get("tres_per_job")) == (0, "mine", None)
    assert (plugin.folder / "pinned.changed" / "7").exists(), "berthd puts its segment beside them"
    next_change = plugin.modify("JobId=7", min_nodes="2").fields
    assert next_change["tres_per_job"] == "gres/gpu:2", "the pin still stands"
    assert "extra" not in next_change, "the file has the words of before"
    assert refused(plugin.modify("JobId=7", extra="[berth/1 nodes=n1 gpus=0]"))


def test_a_task_is_as_its_array_until_it_is_changed_itself(plugin: Plugin) -> None:
    plugin.list({7: PINNED})
    keep(plugin, 7)
    said = plugin.modify("JobId=7_3(21)", min_nodes="2")
    assert (said.rc, said.fields["tres_per_job"]) == (0, "gres/gpu:2")
    assert (plugin.folder / "pinned.asked" / "7").exists(), "the others of the array keep their place"
    assert plugin.modify("JobId=7_3(21)", min_cpus="2").fields.get("tres_per_job") is None


@pytest.mark.parametrize("user", [USER, OPERATOR])
@pytest.mark.parametrize("names", [("JobId=7+0(7)", "JobId=7+1(8)"), ("JobId=6_1(7)", "JobId=6_2(8)")])
@pytest.mark.parametrize("field", ["min_nodes", "pn_min_memory", "tres_per_node"])
def test_each_component_and_each_task_has_its_own_request_beside_one_change(
    plugin: Plugin, names: tuple[str, str], field: str, user: int
) -> None:
    """Slurm hands the change as the plugin left it for the first to the next one, which may ask for other GPUs."""
    plugin.list({7: PINNED, 8: PINNED})
    keep(plugin, 7)
    keep(plugin, 8, {"tres_per_job": "gres/gpu:1", "min_nodes": "1", "exc_nodes": "n2", "mem_per_tres": "gres/gpu:9"})
    first, second = plugin.modify_each(names, user, **{field: CHANGES[field]})
    assert (first.rc, second.rc) == (0, 0), (first.text, second.text)
    wanted = {**ASKED, field: CHANGES[field]}
    assert {key: first.fields.get(key, "") for key in wanted} == wanted
    own = {"tres_per_job": "gres/gpu:1", "exc_nodes": "n2", "min_nodes": "1", "mem_per_tres": "gres/gpu:9"}
    wanted = {**dict.fromkeys(ASKED, ""), **own, field: CHANGES[field]}
    assert {key: second.fields.get(key, "") for key in wanted} == wanted
    assert not (plugin.folder / "pinned.excluded").exists(), "no user has changed the excluded nodes"


def test_a_component_that_has_no_place_gets_what_its_user_changed_alone(plugin: Plugin) -> None:
    plugin.list({7: PINNED})
    keep(plugin, 7)
    _, second = plugin.modify_each(("JobId=7+0(7)", "JobId=7+1(8)"), min_cpus="2")
    assert {key: value for key, value in second.fields.items() if value} == {"min_cpus": "2"}


@pytest.mark.parametrize(("name", "marked"), [("JobId=7", ["7"]), ("JobId=7_3(21)", ["21", "7"])])
@pytest.mark.parametrize("listed", [True, False])
def test_a_list_of_excluded_nodes_leaves_a_mark_that_keeps_pins_away(
    plugin: Plugin, name: str, marked: list[str], *, listed: bool
) -> None:
    plugin.list({7: PINNED, 21: PINNED} if listed else {})
    keep(plugin, 7)
    (plugin.folder / "pinned.excluded").mkdir()
    for nodes in ("n1", ""):
        said = plugin.modify(name, exc_nodes=nodes)
        assert (said.rc, said.fields.get("tres_per_job")) == (0, None), said.text
        marks = sorted((plugin.folder / "pinned.excluded").iterdir())
        assert [mark.name for mark in marks] == marked
        for mark in marks:
            assert mark.stat().st_mtime > 1_000, "a second change leaves the mark anew"
            # Of a task's list its array says nothing.
            assert mark.read_text() == (nodes if mark.name == marked[0] else "")
            os.utime(mark, (5, 5))
    assert (plugin.folder / "pinned.asked" / "7").exists(), "its request stays as it was"


def test_exact_gpus_are_refused_in_a_change_as_in_a_request(plugin: Plugin) -> None:
    plugin.list({7: PINNED})
    keep(plugin, 7)
    for words in ("gres/gpu:g0:1", "gres/shard:g0:10", "gres/seat:g0:1"):
        assert refused(plugin.modify("JobId=7", tres_per_node=words)), words
    assert not list((plugin.folder / "pinned.changed").iterdir())


@pytest.mark.parametrize("kinds", [GUEST, GUEST | PINNED, GUEST | PARKED])
def test_no_guest_may_forbid_that_it_is_put_back(plugin: Plugin, kinds: int) -> None:
    plugin.list({7: kinds, 8: PINNED})
    assert refused(plugin.modify("JobId=7", requeue="0"))
    assert plugin.modify("JobId=7", requeue="1").rc == 0
    assert plugin.modify("JobId=8", requeue="0").rc == 0
