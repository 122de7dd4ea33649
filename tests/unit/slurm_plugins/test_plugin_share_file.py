# SPDX-License-Identifier: Apache-2.0
"""The job's share file on its node: what berth-prolog writes, the plugins read, and nothing else is believed."""

import ctypes
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolog_epilog.tenants import share_file
from prolog_epilog.tenants.share_file import ShareRecord
from tests.unit.plugin_library import SHARE_FILE_MAX, ShareFile, library

READ, NONE, BAD = range(3)
LINES = (
    "job=42",
    "uid=1000",
    "status=ok",
    "gpus=0,3",
    "minors=0,3",
    "uuids=GPU-a,GPU-b",
    "share=30",
    "level_text=not%20held",
    "start=1700000000",
    "set.CUDA_MPS_PIPE_DIRECTORY=/run/berth/mps/GPU-a/pipe",
    "set.MOTTO=a%20b%3Dc%25",
    "unset.CUDA_MPS_LOG_DIRECTORY=",
    "prepend.PYTHONPATH=/usr/share/berth/injob",
)


def content(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in ("berth-share/1", *lines)).encode()


def changed(old: str, *new: str) -> bytes:
    """The good file with one line replaced."""
    return content(*(line for each in LINES for line in (new if each == old else (each,))))


def parse(raw: bytes, job: int = 42) -> tuple[ShareFile, str]:
    file, error = ShareFile(), ctypes.create_string_buffer(160)
    ctypes.memmove(ctypes.addressof(file) + ShareFile.text.offset, raw, min(len(raw), SHARE_FILE_MAX))
    ok = library().share_file_parse(ctypes.byref(file), ctypes.c_size_t(len(raw)), ctypes.c_uint32(job), error)
    assert ok or error.value
    return file, "" if ok else error.value.decode()


def load(folder: Path, job: int = 42) -> tuple[int, ShareFile, str]:
    file, error = ShareFile(), ctypes.create_string_buffer(160)
    result = library().share_file_load(
        os.fsencode(folder), ctypes.c_uint32(job), ctypes.c_uint32(os.geteuid()), ctypes.byref(file), error
    )
    return result, file, error.value.decode()


def variables(file: ShareFile) -> dict[bytes, bytes | None]:
    return {each.name: each.value for each in file.variables[: file.variable_count]}


def test_the_file_of_the_formats_page_is_read_whole() -> None:
    file, error = parse(content(*LINES))
    assert error == ""
    assert (file.job, file.uid, file.degraded, file.why) == (42, 1000, False, b"")
    assert list(file.minors[: file.minor_count]) == [0, 3]
    assert variables(file) == {
        b"CUDA_MPS_PIPE_DIRECTORY": b"/run/berth/mps/GPU-a/pipe",
        b"MOTTO": b"a b=c%",
        b"CUDA_MPS_LOG_DIRECTORY": None,
        b"PYTHONPATH": b"/usr/share/berth/injob",
    }
    assert [each.name for each in file.variables[: file.variable_count] if each.prepended] == [b"PYTHONPATH"]


def test_a_degraded_share_says_why() -> None:
    file, error = parse(content("job=42", "uid=0", "status=degraded", "why=MPS%20did%20not%20start%20on%20GPU%200."))
    assert (error, file.degraded, file.why) == ("", True, b"MPS did not start on GPU 0.")


def test_a_reason_is_shown_as_far_as_a_terminal_can_show_it() -> None:
    head = ("job=42", "uid=0", "status=degraded")
    assert parse(content(*head, "why=a%0Ab%1B%C3%A9"))[0].why == b"a?b???"
    assert parse(content(*head, "why=" + "x" * 600))[0].why == b"x" * 512


names = st.from_regex(r"[A-Z_][A-Z0-9_]{0,40}", fullmatch=True)
paths = st.from_regex(r"/[!-9;-~]{0,40}", fullmatch=True)
words = st.text(st.characters(min_codepoint=1, max_codepoint=0x17F), max_size=30)


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 254), unique=True, max_size=8),
    st.dictionaries(names, words, max_size=8),
    st.lists(names, unique=True, max_size=4),
    st.dictionaries(names, paths, max_size=4),
    words,
)
def test_what_the_prolog_writes_is_what_a_task_gets(
    uid: int, minors: list[int], environment: dict[str, str], unset: list[str], prepend: dict[str, str], why: str
) -> None:
    prepend = {name: path for name, path in prepend.items() if name not in {*environment, *unset}}
    written = ShareRecord(
        42, uid, why=why, minors=tuple(minors), share=30, environment=environment, unset=tuple(unset), prepend=prepend
    )
    file, error = parse(share_file.text(written).encode())
    assert error == ""
    assert (file.uid, file.degraded, list(file.minors[: file.minor_count])) == (uid, bool(why), minors)
    found = [(each.name, each.value, each.prepended) for each in file.variables[: file.variable_count]]
    assert found == [
        *((name.encode(), value.encode(), False) for name, value in environment.items()),
        *((name.encode(), None, False) for name in unset),
        *((name.encode(), path.encode(), True) for name, path in prepend.items()),
    ]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "begin"),
        (b"berth-share/1", "begin"),
        (b"berth-share/2\njob=42\n", "begin"),
        (content(*LINES)[:-1], "cut off"),
        (content(*LINES) + b"\0\n", "NUL"),
        (content(*LINES, "x" * SHARE_FILE_MAX + "="), "longer"),
        (content(*LINES, "words"), "key=value"),
        (content(*LINES, ""), "key=value"),
        (content(*LINES, "other=%zz"), "escaped"),
        (content(*LINES, "other=a b"), "escaped"),
        (content(*LINES, "job=42"), "job stands twice"),
        (content(*LINES, "minors=1"), "minors stands twice"),
        (changed("job=42", "job=43"), "another job"),
        (changed("job=42"), "missing"),
        (changed("uid=1000"), "missing"),
        (changed("status=ok"), "missing"),
        (changed("job=42", "job=042"), "job"),
        (changed("uid=1000", "uid=4294967296"), "uid"),
        (changed("status=ok", "status=fine"), "status"),
        (changed("minors=0,3", "minors="), "minors"),
        (changed("minors=0,3", "minors=0,,3"), "minors"),
        (changed("minors=0,3", "minors=255"), "minors"),
        (changed("minors=0,3", "minors=" + ",".join(["1"] * 65)), "minors"),
        (content(*LINES, "set.=x"), "set"),
        (content(*LINES, "set.1A=x"), "set"),
        (content(*LINES, "set.path=x"), "set"),
        (content(*LINES, "set.A=B=x", "set.A-B=x"), "set"),
        (content(*LINES, "unset.A=x"), "unset"),
        (content(*LINES, "prepend.PYTHONPATH=/other"), "prepend"),
        (content(*LINES, "set.PYTHONPATH=/other"), "set"),
        (content(*LINES, "unset.PYTHONPATH="), "unset"),
        (content(*LINES, "prepend.MOTTO=/other"), "prepend"),
        (content(*LINES, "prepend.LD_PRELOAD="), "prepend"),
        (content(*LINES, "prepend.LD_PRELOAD=lib.so"), "prepend"),
        (content(*LINES, "prepend.LD_PRELOAD=/a.so:/b.so"), "prepend"),
        (content(*LINES, "prepend.LD_PRELOAD=/a.so%20/b.so"), "prepend"),
        (content(*LINES, "prepend.LD_PRELOAD=/a%0A"), "prepend"),
        (content(*LINES, "prepend.LD_PRELOAD=/" + "x" * 1023), "prepend"),
        (content(*LINES, *(f"set.A{n}=x" for n in range(64))), "set"),
    ],
)  # fmt: skip
def test_what_no_prolog_wrote_is_refused(raw: bytes, reason: str) -> None:
    assert reason in parse(raw)[1]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_file_is_refused_or_within_its_bounds(changes: list[tuple[int, int]]) -> None:
    raw = bytearray(content(*LINES))
    for at, byte in changes:
        raw[at % len(raw)] = byte
    file, error = parse(bytes(raw))
    if error:
        assert error.isprintable()
    else:
        assert file.job == 42
        assert all(minor < 255 for minor in file.minors[: file.minor_count])
        assert all((name and name[0:1].isupper()) or name[0:1] == b"_" for name in variables(file))


def test_it_is_found_by_the_jobs_number(tmp_path: Path) -> None:
    (tmp_path / "42").write_bytes(content(*LINES))
    assert load(tmp_path)[0] == READ
    assert load(tmp_path, 43)[0] == NONE
    assert load(tmp_path / "none")[0] == NONE
    (tmp_path / "43").write_bytes(content(*LINES))
    assert load(tmp_path, 43)[::2] == (BAD, "it is another job's")


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "42").write_bytes(content(*LINES))
    (tmp_path / "42").chmod(mode)
    assert load(tmp_path)[0] == BAD


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_users_own_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "42").write_bytes(content(*LINES))
    os.chown(tmp_path / "42", 65534, 65534)
    assert load(tmp_path)[::2] == (BAD, "others than root own it or may write it")


@pytest.mark.timeout(10)
def test_neither_links_nor_pipes_nor_folders_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content(*LINES))
    (tmp_path / "42").symlink_to(tmp_path / "file")
    assert load(tmp_path)[::2] == (BAD, "it is a link")
    os.mkfifo(tmp_path / "43")
    assert load(tmp_path, 43)[0] == BAD
    (tmp_path / "44").mkdir()
    assert load(tmp_path, 44)[0] == BAD


def test_a_file_of_the_greatest_size_is_read_and_a_longer_one_not(tmp_path: Path) -> None:
    room = SHARE_FILE_MAX - len(content(*LINES, "other="))
    (tmp_path / "42").write_bytes(content(*LINES, "other=" + "x" * room))
    assert load(tmp_path)[0] == READ
    (tmp_path / "42").write_bytes(content(*LINES, "other=" + "x" * (room + 1)))
    assert load(tmp_path)[0] == BAD
