# SPDX-License-Identifier: Apache-2.0
"""The guard tells berthd which GPUs its node has."""

from __future__ import annotations

import time
from pathlib import Path

from policy.daemon.hear import words
from policy.daemon.hear.machines import HeardMachines, MachineWord
from prolog_epilog.guard.tell import machine
from prolog_epilog.guard.tell.machine import MachineNotice, MachineNotices
from prolog_epilog.guard.tell.notice import Payload


def driver(folder: Path, *gpus: tuple[int, str]) -> Path:
    """What the driver writes of each GPU, in folders by bus address."""
    for place, (minor, uuid) in enumerate(gpus):
        path = folder / f"0000:{place:02x}:00.0" / "information"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 27\nGPU UUID: \t {uuid}\n"
            f"Video BIOS: \t 96.00\nBus Type: \t PCIe\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        )
    return folder


def test_the_gpus_are_told_in_slurms_order_at_the_start_and_again_later(tmp_path: Path) -> None:
    told: list[Payload] = []
    notices = MachineNotices(told.append, driver(tmp_path, (1, "GPU-b"), (0, "GPU-a")), "n1")

    notices.look()
    notices.look()

    assert told == [MachineNotice("n1", ("GPU-a", "GPU-b"))]
    assert words.read(told[0].text.encode()) == MachineWord("n1", ("GPU-a", "GPU-b"))
    notices._due = 0.0
    notices.look()
    assert len(told) == 2


def test_gpus_whose_uuid_the_driver_hides_are_not_told(tmp_path: Path) -> None:
    told: list[Payload] = []
    MachineNotices(told.append, driver(tmp_path, (0, "GPU-a"), (1, "GPU-????????-????")), "n1").look()
    MachineNotices(told.append, tmp_path / "none", "n1").look()

    assert told == []


def test_the_nodes_name_is_the_hosts_short_one(tmp_path: Path) -> None:
    assert "." not in MachineNotices(lambda _: None, tmp_path)._node
    assert machine.EVERY_S == 600.0


def test_the_second_notice_comes_soon_as_nothing_may_have_signed_the_first(tmp_path: Path) -> None:
    told: list[Payload] = []
    notices = MachineNotices(told.append, driver(tmp_path, (0, "GPU-a")), "n1")
    for wait in (machine.SOON_S, machine.EVERY_S):
        notices._due, before = 0.0, time.monotonic()
        notices.look()
        assert before + wait <= notices._due <= time.monotonic() + wait


def test_what_a_node_told_is_a_new_mapping_only_when_it_changes() -> None:
    heard = HeardMachines()
    heard.hear(MachineWord("n1", ("GPU-a",)))
    before = heard.told
    heard.hear(MachineWord("n1", ("GPU-a",)))
    assert heard.told is before
    heard.hear(MachineWord("n1", ("GPU-b",)))
    assert (heard.told, before) == ({"n1": ("GPU-b",)}, {"n1": ("GPU-a",)})


def test_what_is_no_such_notice_is_none() -> None:
    assert words.read(b"berth/1 machine node=n1 gpus=") is None
    assert words.read(b"berth/1 machine node=n1 gpus=GPU-a,") is None
    assert words.read(b"berth/1 machine node=../n1 gpus=GPU-a") is None
    assert words.read(b"berth/1 machine node=n1 gpus=" + b",".join([b"GPU-a"] * 65)) is None
