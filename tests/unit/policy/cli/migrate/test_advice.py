# SPDX-License-Identifier: Apache-2.0
"""Checks the order of the steps, what a plan says of reservations, and how a site's files and jobs are read."""

import re
from pathlib import Path

import pytest

from policy.cli.migrate.advice import steps, steps_back
from policy.cli.migrate.rungs import RUNGS, Rung, Texts
from policy.cli.migrate.site import Files, read_files, sharing_jobs
from policy.cli.migrate.state import Change

CONF = "ClusterName=one\nSlurmctldHost=a(10.0.0.1)\nSlurmctldHost=b\nNodeName=n[1-4] Gres=gpu:a100:8\n"


def files(conf: str = CONF) -> Files:
    folder = Path("/etc/slurm")
    paths = (folder / "gres.conf", folder / "plugstack.conf", folder / "berth.conf")
    return Files((folder / "slurm.conf",), *paths, Texts((conf,)))


def change(rung: str, came_from: str, *back: str) -> Change:
    return Change(1, rung, came_from, ("n1",) if rung == "exact" else (), 0.0, (), back)


@pytest.mark.parametrize(("rung", "nodes", "kept"), [("exact", ["n1"], "n[2-4]"), ("sharing", [], "n[1-4]")])
def test_no_job_starts_where_a_slurmd_is_away(rung: Rung, nodes: list[str], kept: str) -> None:
    commands = [step.command for step in steps(rung, nodes, files(), ())]

    place = commands.index("systemctl restart slurmd")
    assert commands[place - 2 : place + 2] == [
        f"berth migrate drain {kept}",
        f"squeue -w {kept} -t CF",
        "systemctl restart slurmd",
        f"berth migrate resume {kept}",
    ]


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("rung", ["advise", "exact", "sharing"])
def test_configless_nodes_fetch_the_files_when_all_daemons_have_started(rung: Rung, *, back: bool) -> None:
    site = files(CONF + "SlurmctldParameters=enable_configless\n")
    found = list(steps_back(change(rung, "observe"), site) if back else steps(rung, ["n1"], site, ()))
    commands = [step.command for step in found]

    starts = [place for place, command in enumerate(commands) if re.search(r"(re)?start slurm(ctl)?d$", command)]
    assert commands.index("scontrol reconfigure") > max(starts)
    copied = "Copy berth.conf to all compute and login nodes, and the other changed files to b; remove there"
    assert any(step.text.startswith(copied) for step in found)
    assert "scontrol reconfigure" not in [step.command for step in steps(rung, ["n1"], files(), ())]


def test_the_steps_name_the_options_of_what_was_shown() -> None:
    up = steps("exact", ["n1"], files(), (), "--no-cores")
    back = steps_back(change("exact", "advise"), files(), "--state /s")

    assert "berth migrate apply n1 --rung exact --no-cores" in [step.command for step in up]
    assert "berth migrate undo --state /s" in [step.command for step in back]


@pytest.mark.parametrize("rung", RUNGS[1:])
def test_no_step_changes_a_nodes_state_whatever_it_is(rung: Rung) -> None:
    up = steps(rung, ["n1"], files(), ())
    back = steps_back(change(rung, "advise"), files())

    assert [step.command for step in (*up, *back) if "State=" in step.command] == []


def test_nodes_are_drained_before_and_resumed_after_the_files_are_written() -> None:
    texts = [f"{step.text} {step.command}" for step in steps("exact", ["n1"], files(), ())]
    at = {word: next(place for place, text in enumerate(texts) if word in text) for word in (
        "migrate drain n1", "squeue -w n1", "berth migrate apply n1", "stop slurmd", "restart slurmctld",
        "start slurmd", "on all other nodes", "restart berthd", "migrate jobs", "migrate resume n1", "berth doctor",
    )}  # fmt: skip

    assert list(at.values()) == sorted(at.values())
    assert "first b, then a" in texts[at["restart slurmctld"]]


@pytest.mark.parametrize(("came_from", "gives_back"), [("advise", True), ("exact", False)])
def test_pins_are_given_back_before_their_types_go(came_from: str, *, gives_back: bool) -> None:
    commands = [step.command for step in steps_back(change("exact", came_from, "sacctmgr x"), files())]

    assert ("berth release --all" in commands) == gives_back
    if gives_back:
        assert commands.index("berth release --all") < commands.index("berth migrate undo")
    assert commands.index("berth migrate undo") < commands.index("sacctmgr x")


def line(job: str, allocated: str = "", by_node: str = "", by_job: str = "") -> str:
    return f"{job:20}{allocated:1000}{by_node:1000}{by_job}"


@pytest.mark.parametrize(
    ("told", "shares"),
    [
        (line("7", by_node="gres/gpu:g0:1,gres/seat:g0:1"), False),
        (line("7", by_node="gres/seat:g0:1", by_job="gres/gpu:g0:1"), False),
        (line("7", by_node="gres/shard:g0:30"), True),
        (line("7", "cpu=1,gres/shard:g0=30"), True),
        (line("7", by_node="gres/seat:g0:1"), True),
    ],
)
def test_who_shares_is_seen_on_sites_that_track_no_shards(told: str, *, shares: bool) -> None:
    def printed(*words: str) -> str:
        assert words[:8] == ("squeue", "-h", "-a", "-w", "n1,n2", "-t", "all", "-O")
        return told

    assert sharing_jobs(printed, "all", ["n1", "n2"]) == (["7"] if shares else [])


def test_nodes_lose_their_shards_when_slurm_has_forgotten_who_had_them() -> None:
    commands = [step.command for step in steps_back(change("exact", "exact"), files(), forget=True)]

    assert commands.index("squeue -w n1 -t all") < commands.index("berth migrate undo")


def test_included_files_are_read_each_once(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=One\nInclude nodes-%c.conf\ninclude slurm.conf\n")
    (tmp_path / "nodes-one.conf").write_text("NodeName=n1 Gres=gpu:2\n")

    found = read_files(tmp_path / "slurm.conf", tmp_path / "berth.conf")

    assert [path.name for path in found.slurm_conf] == ["slurm.conf", "nodes-one.conf"]
    assert list(found.texts.nodes) == ["n1"]
