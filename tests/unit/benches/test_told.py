"""Failures say what was wanted."""

from __future__ import annotations

import pytest

from tests.told import Segment, difference


def test_a_missing_key_of_a_segment_is_told_with_the_keys_that_there_are() -> None:
    with pytest.raises(AssertionError, match="segment of job 7 was to have 'held', and has only: state=placed"):
        Segment({"state": "placed"}, 7)["held"]
    assert Segment({"held": "time"}).get("tier") is None


def test_bytes_that_differ_are_told_with_their_line() -> None:
    written, read = b"a=1\nb=2\n", b"a=1\nb=3\n"
    with pytest.raises(AssertionError, match="bytes part at 6, in line 2"):
        assert written == read
    assert (
        difference(b"a\n" * 200 + b"k=1\n", b"a\n" * 200)[0] == "bytes part at 400, in line 201; 404 bytes beside 400"
    )
