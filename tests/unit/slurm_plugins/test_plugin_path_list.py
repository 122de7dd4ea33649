# SPDX-License-Identifier: Apache-2.0
"""Lists of paths in the environment: what the plugin puts in comes out again, and a user's own bytes stay."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plugin_library import library, taken, text

OURS = "/usr/share/berth/injob"
MINE = "/home/alice/lib"
lists = st.text(st.sampled_from("ab/: .\u00e9"), max_size=30)


def separators(name: str) -> bytes:
    return bytes(library().path_list_separators(name.encode()))


def has(value: str, name: str = "PYTHONPATH") -> bool:
    return bool(library().path_list_has(value.encode(), OURS.encode(), separators(name)))


def put(value: str | None) -> str:
    out = text()
    library().path_list_prepend(None if value is None else value.encode(), OURS.encode(), ctypes.byref(out))
    return taken(out).decode()


def out_of(value: str, name: str = "PYTHONPATH") -> str:
    out = text()
    library().path_list_remove(value.encode(), OURS.encode(), separators(name), ctypes.byref(out))
    return taken(out).decode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, OURS),
        ("", OURS),
        (MINE, f"{OURS}:{MINE}"),
        (":", f"{OURS}::"),
        (f":{MINE}:", f"{OURS}::{MINE}:"),
        ("a b", f"{OURS}:a b"),
    ],
)
def test_ours_goes_first_and_the_users_bytes_stay(before: str | None, after: str) -> None:
    assert put(before) == after
    assert out_of(after) == (before or "")


@pytest.mark.parametrize(
    ("value", "left"),
    [
        (OURS, ""),
        (f"{OURS}:{OURS}", ""),
        (f"{MINE}:{OURS}", MINE),
        (f"/a:{OURS}:/b", "/a:/b"),
        (f"/a::{OURS}:", "/a::"),
        (f"{OURS}/more:{OURS}x:x{OURS}", f"{OURS}/more:{OURS}x:x{OURS}"),
        (f"/a {OURS}:/b", f"/a {OURS}:/b"),
    ],
)
def test_ours_is_taken_out_wherever_it_stands_and_nothing_that_only_looks_like_it(value: str, left: str) -> None:
    assert out_of(value) == left
    assert not has(left)


def test_the_linker_takes_blanks_for_separators_too() -> None:
    assert has(f"/a.so {OURS}", "LD_PRELOAD")
    assert out_of(f"/a.so {OURS} /b.so:/c.so", "LD_PRELOAD") == "/a.so /b.so:/c.so"


@given(lists, st.sampled_from(["PYTHONPATH", "LD_PRELOAD"]))
def test_whatever_a_user_has_comes_back(value: str, name: str) -> None:
    longer = put(value)
    assert longer.endswith(value)
    assert has(longer, name)
    assert out_of(longer, name) == value == out_of(value, name)


def test_what_does_not_fit_is_told_from_what_does() -> None:
    out = text(limit=len(OURS) + 3)
    library().path_list_prepend(MINE.encode(), OURS.encode(), ctypes.byref(out))
    assert out.failed
    taken(out)
