# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.formats import segment
from policy.formats.errors import FormatError
from policy.formats.wire import escape, escape_all

KEYS = st.from_regex(r"[a-z][a-z0-9_.-]{0,20}", fullmatch=True)
TEXT = st.binary(max_size=40).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
FOREIGN = TEXT.filter(lambda text: "[berth/" not in text)
VALUES = st.dictionaries(KEYS, TEXT, max_size=6)


@given(FOREIGN, VALUES, VALUES, FOREIGN)
def test_foreign_text_is_kept_byte_for_byte(
    before: str, first: dict[str, str], second: dict[str, str], after: str
) -> None:
    once = segment.put(before, first) + after
    twice = segment.put(once, second)

    assert segment.fields(once) == first
    assert segment.fields(twice) == second
    assert twice.startswith(before)
    assert twice.endswith(after)
    assert segment.remove(twice) == before + after


def test_a_new_segment_is_appended_without_a_separator() -> None:
    assert segment.put("note", {"state": "placed"}) == "note[berth/1 state=placed]"


def test_a_text_without_a_segment_has_none() -> None:
    assert segment.fields("a [note] about berth/1") is None
    assert segment.remove("a [note]") == "a [note]"


def test_a_segment_that_is_not_well_formed_is_foreign_text() -> None:
    text = "[berth/1 state=a  b]"

    assert segment.fields(text) is None
    assert segment.put(text, {"k": "1"}) == text + "[berth/1 k=1]"


def test_a_newer_segment_is_refused_rather_than_misread() -> None:
    with pytest.raises(FormatError, match="berth/2"):
        segment.fields("x[berth/2 state=placed]")


@pytest.mark.parametrize("values", ["k=" + "1" * 5_000, "moves=5," + "1" * 21, "id=1 parked=" + "0" * 30])
def test_a_number_that_nobody_could_have_written_makes_a_segment_unreadable(values: str) -> None:
    with pytest.raises(FormatError, match="more than 20 digits"):
        segment.fields(f"x[berth/1 {values}]")


def test_what_a_user_wrote_may_be_any_number() -> None:
    text = "1" * 30
    values = {"k": "1" * 20, "f.app-class": text, "why": f"no {text}"}

    assert segment.fields(segment.put("", values)) == values


def test_keys_and_short_values_of_many_jobs_are_the_same_objects() -> None:
    one, other = (segment.fields(f"[berth/1 state=waiting id={number:016x}0 why=best%20of%203]") for number in (1, 2))

    assert one is not None
    assert other is not None
    assert all(mine is theirs for mine, theirs in zip(one, other, strict=True))
    assert one["state"] is other["state"]
    assert one["why"] is other["why"]
    assert one["id"] != other["id"]


PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9_.-]{0,9}", fullmatch=True), PRINTABLE | TEXT | st.just("a\nb")))
def test_texts_escaped_together_are_those_escaped_one_by_one(values: dict[str, str]) -> None:
    assert escape_all(values) == "\n".join(f"{key}={escape(value)}" for key, value in values.items())
