"""The list of pinned jobs: berthd writes it, the plugin looks jobs up in it."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy.daemon import pinned
from policy.errors import DaemonError
from tests.unit.plugin_library import library

ids = st.integers(1, 2**32 - 1)


def lists(path: Path, job_id: int) -> bool:
    """What the compiled plugin says."""
    listed: bool = library().pinned_lists(os.fsencode(path), job_id)
    return listed


def record_id(name: str) -> int:
    found: int = library().pinned_record_id(name.encode())
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ids, max_size=60), ids)
def test_what_berthd_wrote_the_plugin_finds_and_nothing_else(tmp_path: Path, jobs: list[int], other: int) -> None:
    path = tmp_path / "pinned"
    pinned.write(path, jobs)
    assert all(lists(path, job) for job in jobs)
    assert lists(path, other) == (other in jobs)


def test_a_new_list_replaces_the_former_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "run" / "pinned"
    pinned.write(path, range(1, 1000))
    with path.open("rb") as reader:
        pinned.write(path, [5000])
        assert len(reader.read()) == 16 + 4 * 999, "who reads the former list reads all of it"
    assert (lists(path, 5000), lists(path, 500)) == (True, False)
    assert [file.name for file in path.parent.iterdir()] == ["pinned"]


def test_the_format_is_the_documented_one(tmp_path: Path) -> None:
    pinned.write(tmp_path / "pinned", [258, 1, 258])
    assert (tmp_path / "pinned").read_bytes() == b"berth-pinned/1\n\0" + b"\1\0\0\0" + b"\2\1\0\0"


@pytest.mark.parametrize(
    "content",
    [b"", b"berth-pinned/1\n", b"berth-pinned/2\n\0\x12\0\0\0", b"\x12\0\0\0" * 8, b"berth-pinned/1\n\0\x12\0\0"],
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
    pinned.write(path, [18])
    path.write_bytes(path.read_bytes() + b"\x13\0")
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


def test_a_list_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DaemonError, match="pinned_file"):
        pinned.write(tmp_path / "file" / "pinned", [1])
