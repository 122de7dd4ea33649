# SPDX-License-Identifier: Apache-2.0
"""`make demo` reads Slurm's records as Slurm prints them."""

from __future__ import annotations

import pytest
from rich.console import Console

from containers.demo import site as module
from containers.demo.scenes import SCENES
from containers.demo.site import Site

RECORD = """JobId=7 JobName=job
   JobState=RUNNING Reason=None Dependency=(null)
   NodeList=n[1,3]
     Nodes=n1 CPU_IDs=0 Mem=100 GRES=gpu:g3:1(IDX:3)
   AdminComment=[berth/1 state=placed nodes=n1,n3 gpus=3 why=the%20best]
"""
FLAT = " ".join(RECORD.split())


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    asked = {"scontrol -o show job 7": FLAT, "scontrol show job -d 7": RECORD}
    comment = RECORD.partition("AdminComment=")[2]
    monkeypatch.setattr(module, "read", lambda _where, script, _user="root": asked.get(script, comment))
    return Site("ctl", {}, Console(quiet=True))


def test_a_job_is_read(site: Site) -> None:
    assert site.show(7)["JobState"] == "RUNNING"
    assert site.show(7)["NodeList"] == "n[1,3]"
    assert site.gpu(7) == 3
    assert site.segment(7)["nodes"] == "n1,n3"


def test_waiting_in_vain_says_for_what(site: Site) -> None:
    with pytest.raises(TimeoutError, match="for a sign, in vain"):
        site.until("a sign", lambda: None, 0.1)


def test_each_scene_says_what_it_shows() -> None:
    assert len(SCENES) == 5
    assert all(scene.__doc__ for scene in SCENES)
