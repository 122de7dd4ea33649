# SPDX-License-Identifier: Apache-2.0
"""The list of pinned jobs: berthd writes it, the plugin looks jobs up in it."""

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy.daemon.write import pinned
from policy.daemon.write.pinned import PARKED, PINNED
from policy.formats.errors import DaemonError
from tests.unit.plugin_library import library

ids = st.integers(1, 2**32 - 1)


def kinds(path: Path, job_id: int) -> int:
    """What the compiled plugin finds."""
    found: int = library().pinned_kinds(os.fsencode(path), job_id)
    return found


def lists(path: Path, job_id: int) -> bool:
    return kinds(path, job_id) != 0


def write(path: Path, jobs: Iterable[int]) -> None:
    pinned.write(path, dict.fromkeys(jobs, PINNED))


def record_id(name: str) -> int:
    found: int = library().pinned_record_id(name.encode())
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(ids, ids, max_size=60), ids)
def test_what_berthd_wrote_the_plugin_finds_and_nothing_else(tmp_path: Path, jobs: dict[int, int], other: int) -> None:
    path = tmp_path / "pinned"
    pinned.write(path, jobs)
    assert {job: kinds(path, job) for job in jobs} == jobs
    assert kinds(path, other) == jobs.get(other, 0)


def test_a_new_list_replaces_the_former_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "run" / "pinned"
    write(path, range(1, 1000))
    with path.open("rb") as reader:
        write(path, [5000])
        assert len(reader.read()) == 16 + 8 * 999, "who reads the former list reads all of it"
    assert (lists(path, 5000), lists(path, 500)) == (True, False)
    assert [file.name for file in path.parent.iterdir()] == ["pinned"]


def test_the_format_is_the_documented_one(tmp_path: Path) -> None:
    pinned.write(tmp_path / "pinned", {258: PARKED, 1: PINNED})
    entries = b"\1\0\0\0" + b"\1\0\0\0" + b"\2\1\0\0" + b"\2\0\0\0"
    assert (tmp_path / "pinned").read_bytes() == b"berth-pinned/2\n\0" + entries


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"berth-pinned/2\n", b"berth-pinned/1\n\0\x12\0\0\0\1\0\0\0", b"\x12\0\0\0" * 8),
        *(b"berth-pinned/2\n\0\x12\0\0", b"berth-pinned/2\n\0\x12\0\0\0\1\0\0"),
    ],
)
def test_a_broken_list_forbids_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pinned"
    path.write_bytes(content)
    assert not lists(path, 18)


@pytest.mark.timeout(10)
def test_neither_does_anything_that_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "none", tmp_path, tmp_path / "fifo", Path("/dev/zero")):
        assert not lists(path, 18)


def test_a_half_written_id_at_the_end_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "pinned"
    write(path, [18])
    path.write_bytes(path.read_bytes() + b"\x13\0\0\0\1")
    assert lists(path, 18)
    assert not lists(path, 19)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("18", 18),
        ("18_3", 18),
        ("18_[1-3]", 18),
        ("18+1", 18),
        ("JobId=18", 18),
        ("JobId=18_*", 18),
        ("JobId=18_3(21)", 21),
        ("JobId=18+1(19)", 19),
        ("4294967295", 2**32 - 1),
        ("4294967296", 0),
        ("99999999999999999999", 0),
        ("JobId=Invalid", 0),
        ("JobId=CORRUPT", 0),
        ("0x55d0c0ffeeJ", 0),
        ("sBZHM7Z9V7DJ00", 0),
        ("", 0),
        ("(", 0),
    ],
)
def test_slurms_names_of_a_job_lead_to_its_own_record(name: str, number: int) -> None:
    assert record_id(name) == number


@pytest.mark.parametrize(
    ("name", "number"),
    [("18_3", 18), ("18_[1-3]", 18), ("JobId=18_*", 18), ("JobId=18_3(21)", 18), ("JobId=18", 0), ("18+1", 0), ("", 0)],
)
def test_a_task_leads_to_its_array_too(name: str, number: int) -> None:
    assert library().pinned_array_id(name.encode()) == number


def test_who_submitted_a_guest_of_late_is_remembered_for_half_a_minute_and_drives_out_nobody() -> None:
    guest, second = 1, 1_000_000
    now = 1_000 * second

    def note(uid: int, at: int) -> None:
        library().recent_note(uid, guest, ctypes.c_uint64(at))

    def remembered(uid: int, at: int) -> bool:
        found: bool = library().recent_has(uid, guest, ctypes.c_uint64(at))
        return found

    assert not remembered(1000, now)
    note(1000, now)
    for _ in range(1_000):
        note(1001, now + second)
    assert [remembered(uid, now + 29 * second) for uid in (1000, 1001, 1002)] == [True, True, False]
    assert [remembered(uid, now + 30 * second) for uid in (1000, 1001)] == [False, True]
    for uid in range(2_000, 3_024):
        note(uid, now + 2 * second)
    assert (remembered(1000, now + 3 * second), remembered(3_023, now + 3 * second)) == (False, True)


def test_a_list_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DaemonError, match="pinned_file"):
        write(tmp_path / "file" / "pinned", [1])
