# SPDX-License-Identifier: Apache-2.0
"""Whatever a credential carries: reading it ends in a notice or in none, never in a fault."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.daemon.hear import endings, guards, levels, machines, step_times, words

FORMS = st.sampled_from([module._PAYLOAD for module in (guards, step_times, levels, machines, endings)])
TRUE_TO_FORM = FORMS.flatmap(lambda form: st.from_regex(form, fullmatch=True))
SIGNS = st.text("%0123456789ABCDEFabcdef ~", min_size=1, max_size=12).map(str.encode)


@given(st.binary(max_size=400) | TRUE_TO_FORM)
def test_reading_a_payload_never_raises(payload: bytes) -> None:
    words.read(payload)


@pytest.mark.parametrize(
    "before",
    [
        b"berth/1 failed job=1 node=a start=0 class=x transient=0 sign=",
        b"berth/1 level node=n1 job=1 level=audit text=",
    ],
)
@given(sign=SIGNS)
def test_nor_does_what_is_escaped_in_it_whole_or_broken(before: bytes, sign: bytes) -> None:
    words.read(before + sign)


@given(st.text("0123456789. =_abdeghlmnoprstuwy", max_size=60).map(str.encode))
def test_nor_do_figures_that_make_no_sense(figures: bytes) -> None:
    words.read(b"berth/1 guard node=n1 gpu=3 job=1 state=healthy word=state " + figures)


def test_an_ending_whose_sign_is_not_escaped_as_it_must_be_is_no_notice() -> None:
    assert words.read(b"berth/1 failed job=1 node=a start=0 class=x transient=0 sign=50%") is None
    assert words.read(b"berth/1 failed job=1 node=a start=0 class=x transient=0 sign=50%25") is not None
