# SPDX-License-Identifier: Apache-2.0
"""The evidence against a guest that does not obey its gate: what speaks for it now and then does not wipe it out."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from prolog_epilog.guard.decide.trust import Trust
from tests.examples import examples

FAR, NOTHING, LITTLE = 9.0, -0.5, 2.0
"""Standard deviations beyond what the duty explains: against the guest, for it, and neither."""


def judged(*beats: float, turns: int = 12, as_ever: bool = True) -> bool:
    """Tell whether trust is lost by these beats, each turn; whenever one speaks against the guest, it is frozen."""
    trust = Trust()
    for _ in range(turns):
        for beat in beats:
            trust.beside(beat)
            if trust.asks:
                trust.alone(as_ever=as_ever)
    return trust.lost


def test_a_liar_is_found_out() -> None:
    assert judged(FAR, LITTLE, turns=3)


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from([FAR, NOTHING, LITTLE]), min_size=1, max_size=30))
def test_to_obey_now_and_then_does_not_help_it(beats: list[float]) -> None:
    """It has to obey twice for each time that it was caught."""
    if beats.count(NOTHING) < 2 * beats.count(FAR):
        assert judged(*beats, turns=9)
    if FAR not in beats:
        assert not judged(*beats)


def test_a_host_that_stalls_by_itself_does_not_accuse_its_guest() -> None:
    assert not judged(FAR, FAR, as_ever=False)
    assert not judged(FAR, NOTHING, NOTHING, NOTHING)
