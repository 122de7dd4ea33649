# SPDX-License-Identifier: Apache-2.0
"""A job whose record cannot be read is left to Slurm: one line in the log, a count, and the other jobs are planned."""

import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from policy.formats.slurm_facts import Reading
from tests.unit.policy_world import node, running

from .test_planner_writes import Slurm, planner_of, write_all, young


class PartlyRead(Slurm):
    """Leaves out jobs whose records it cannot read."""

    unreadable: Mapping[int, str] = {9: "ValueError: it is no number"}

    def read(self, *, ended: bool) -> Reading:
        return replace(super().read(ended=ended), unreadable=self.unreadable)


def test_the_others_are_planned_and_it_is_told_once(
    tmp_path: Path, channel: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = PartlyRead([node("n1", used=0xFF), node("n2")], [running(1, "n1", 0xFF, 3_000), young(5, "n1", 0b01, 9)])
    planner = planner_of(slurm, tmp_path, channel)

    for _ in range(3):
        planner.one_pass(ended=False)
        write_all(planner)

    assert [(job, nodes) for job, nodes, _ in slurm.pins][:1] == [(5, ("n2",))]
    said = capsys.readouterr().err
    assert said.count("[BERTH-664]") == 1
    assert "JobId=9 is left to Slurm, Berth cannot read its record: ValueError: it is no number [BERTH-664]" in said
    assert planner._told()["unreadable"] == "1"

    slurm.unreadable = {}
    planner.one_pass(ended=False)
    assert "unreadable" not in planner._told()


def test_if_no_record_at_all_can_be_read_the_last_picture_stays(
    tmp_path: Path, channel: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = PartlyRead([node("n1")], [])
    slurm.unreadable = {8: "ValueError: a", 9: "ValueError: a"}
    planner = planner_of(slurm, tmp_path, channel)

    planner.one_pass(ended=False)

    assert "no job's record can be read: ValueError: a; the last snapshot of Slurm stays in use [BERTH-650]" in (
        capsys.readouterr().err
    )
