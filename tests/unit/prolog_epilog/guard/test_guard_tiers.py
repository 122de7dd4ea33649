# SPDX-License-Identifier: Apache-2.0
"""Hosts and guests at their Prolog and Epilog: books, words, seats that are compared, and who is refused."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prolog_epilog.errors import ExtraError
from prolog_epilog.injob import word
from prolog_epilog.job.extra import NodeBerth, asks_share, read
from prolog_epilog.tenants import arrivals, quarantine, share_file
from prolog_epilog.tenants.share_file import ShareRecord
from tests.rights import needs_root
from tests.unit.node_world import World, berth

pytestmark = pytest.mark.slow

GUEST = {"tier": "opportunistic", "way": "time"}


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="bn") as folder:
        made = World(Path(folder))
        made.with_gpus()
        yield made


def share(world: World, job: int = 7) -> ShareRecord:
    found = share_file.read(world.paths, job)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpus=3 tier=opportunistic way=time", NodeBerth(("n1",), (3,), way="time", tier="opportunistic")),
        ("gpus=3 tier=opportunistic", NodeBerth(("n1",), (3,), way="time", tier="opportunistic")),
        ("gpus=3 slope=0.5 tier=guaranteed way=mps", NodeBerth(("n1",), (3,), way="mps", tier="guaranteed", slope=0.5)),
        ("gpus=0,1 tier=guaranteed way=mps", NodeBerth(("n1",), (0, 1), way="mps", tier="guaranteed")),
        ("gpus=0 tier=exclusive", NodeBerth(("n1",), (0,))),
    ],
)  # fmt: skip
def test_a_tier_is_read(text: str, expected: NodeBerth) -> None:
    assert read(f"[berth/1 nodes=n1 {text}]", "n1") == expected
    assert asks_share(f"[berth/1 nodes=n1 {text}]") == expected.is_shared


@pytest.mark.parametrize(
    "text", ["gpus=0 tier=royal", "gpus=0 tier=opportunistic way=magic", "gpus=0 tier=guaranteed slope=2"]
)
def test_no_other_tier_is_believed(text: str) -> None:
    with pytest.raises(ExtraError):
        read(f"[berth/1 nodes=n1 {text}]", "n1")


def test_a_share_file_keeps_the_tier() -> None:
    one = ShareRecord(7, 1000, way="time", tier="opportunistic", node="n1", word="/run/berth/words/7", slope=0.125)
    assert share_file.parse(share_file.text(one)) == one


def test_a_guest_gets_a_word_a_seat_and_no_gpu_of_its_own(world: World) -> None:
    world.slurm_knows("seat:g2:1(IDX:2)")

    done = world.run("prolog", berth(2, **GUEST), user=os.getuid())

    assert (done.returncode, done.stderr) == (0, "")
    file = share(world)
    assert (file.tier, file.way, file.node, file.gpus, file.level) == ("opportunistic", "time", "n1", (2,), "guard")
    page = world.paths.word(7) / file.uuids[0]
    assert file.word == str(world.paths.word(7))
    seen = {"CUDA_VISIBLE_DEVICES": file.uuids[0], "BERTH_WORD": str(page), "BERTH_GUEST": "1"}
    assert file.environment == seen
    assert word.read_order(word.map_order(page)).duty == word.OPEN
    assert world.books() == {7: 100}

    assert world.run("epilog", berth(2, **GUEST)).returncode == 0
    assert world.books() == {}
    assert not world.paths.word(7).exists()
    assert not world.paths.job(7).exists()


def test_a_seat_that_slurm_did_not_give_is_not_taken(world: World) -> None:
    world.slurm_knows("seat:g5:1(IDX:5)")

    done = world.run("prolog", berth(2, **GUEST))

    assert done.returncode == 0
    assert "Slurm gave the job a seat on GPU 5 here, and its Extra says a seat on GPU 2" in done.stderr
    assert share(world).degraded
    assert world.books() == {}


def test_a_host_on_two_gpus_and_a_guest_on_one_of_them(world: World) -> None:
    world.run("prolog", berth(2, 3, tier="guaranteed", mem=1024), "3", job=7)
    host = share(world)
    assert list(host.environment) == ["BERTH_WORD"]  # Slurm binds its tasks to its GPUs
    assert host.environment["BERTH_WORD"].split(":") == [str(world.paths.word(7) / uuid) for uuid in host.uuids]

    world.slurm_knows("seat:g3:1(IDX:3)", job=8)
    world.run("prolog", berth(3, **GUEST), job=8)
    assert not share(world, 8).degraded
    assert world.books() == {7: 100, 8: 100}

    world.run("epilog", berth(2, 3, tier="guaranteed", mem=1024), "3", job=7)
    assert world.books() == {8: 100}
    world.run("epilog", berth(3, **GUEST), job=8)
    assert world.books() == {}


def test_a_guest_sits_on_one_gpu(world: World) -> None:
    world.slurm_knows("seat:g2:1(IDX:2),seat:g3:1(IDX:3)")

    world.run("prolog", berth(2, 3, **GUEST))

    assert "a guest sits on one GPU" in share(world).why


def test_an_owner_finds_its_guests_gate_shut(world: World) -> None:
    world.slurm_knows("seat:g2:1(IDX:2)", job=8)
    world.run("prolog", berth(2, **GUEST), job=8)
    page = world.paths.word(8) / share(world, 8).uuids[0]

    assert world.run("prolog", berth(2, tier="guaranteed", mem=1024), "2", job=7).returncode == 0

    assert word.read_order(word.map_order(page)).duty == 0


@pytest.mark.parametrize("planned", [True, False])
def test_without_a_guard_a_whole_job_shuts_the_gate_waits_for_nobody_and_says_so(world: World, planned: bool) -> None:
    world.slurm_knows("seat:g2:1(IDX:2)", job=8)
    world.run("prolog", berth(2, **GUEST), job=8)
    page = world.paths.word(8) / share(world, 8).uuids[0]
    world.slurm_knows("gpu:g2:1(IDX:2)")

    done = world.run("prolog", berth(2) if planned else "", "2", job=7)

    assert done.returncode == 0
    assert "job 8 sits as a guest on a GPU of job 7, and berth-guard does not run" in done.stderr
    assert word.read_order(word.map_order(page)).duty == 0
    assert arrivals.pending(world.paths) == []


@needs_root
def test_a_culprit_is_put_beside_nobody_for_an_hour(world: World) -> None:
    world.settings["multi_user"] = True
    quarantine.set_apart(world.paths, 1000)

    world.run("prolog", berth(2, share=30, way="mps"), "2")
    assert not share(world).degraded  # alone it harms nobody
    for job, user in ((8, 1000), (9, 1001)):
        world.run("prolog", berth(2, share=30, way="mps"), "2", job=job, user=user)
        # Its own jobs are no exception.
        assert "user 1000 brought MPS down here lately: its jobs share no GPU for 60 min" in share(world, job).why
    assert world.books() == {7: 30}
    world.run("prolog", berth(3, share=30, way="mps"), "3", job=10, user=1001)
    world.run("prolog", berth(3, share=30, way="mps"), "3", job=11)
    assert (share(world, 10).degraded, share(world, 11).degraded) == (False, True)
    for job in (7, 8, 9, 10, 11):
        world.run("epilog", berth(2, share=30, way="mps"), "2", job=job)

    world.run("prolog", berth(2, share=30, way="time"), "2", job=12)
    world.run("prolog", berth(2, share=30, way="time"), "2", job=13)
    assert not share(world, 13).degraded  # in turn there is no common fault
    mark = world.paths.fault_users / "1000"
    os.utime(mark, (0, 0))
    assert quarantine.left(world.paths, 1000) == 0.0
    assert not mark.exists()
