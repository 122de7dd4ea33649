"""The evidence against a guest that does not obey its gate: what speaks for it now and then does not wipe it out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prolog_epilog.guard.decide.trust import Trust
from tests.examples import examples

FAR, NOTHING, LITTLE = 9.0, -0.5, 2.0
"""Standard deviations beyond what the duty explains: against the guest, for it, and neither."""


def judged(*beats: float, turns: int = 6, as_ever: bool = True) -> bool:
    trust = Trust()
    for _ in range(turns):
        for beat in beats:
            trust.beside(beat)
        trust.alone(as_ever=as_ever)
    return trust.lost


def test_a_liar_is_found_out() -> None:
    assert judged(FAR, FAR, FAR)


@pytest.mark.parametrize("place", [0, 4, 8])
def test_one_quiet_beat_between_two_measurements_does_not_help_it(place: int) -> None:
    beats = [FAR] * 9
    beats[place] = NOTHING

    assert judged(*beats)


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from([FAR, NOTHING, LITTLE]), min_size=1, max_size=30).flatmap(st.permutations))
def test_what_speaks_against_it_most_of_the_time_counts(beats: list[float]) -> None:
    against = beats.count(FAR) - beats.count(NOTHING)
    if against > 0:
        assert judged(*beats)
    if FAR not in beats:
        assert not judged(*beats)


def test_a_host_that_stalls_by_itself_does_not_accuse_its_guest() -> None:
    assert not judged(FAR, FAR, as_ever=False)
    assert not judged(FAR, NOTHING, NOTHING, NOTHING)


def test_an_accusation_is_forgotten_once_the_guest_obeys() -> None:
    trust = Trust()
    for beat in (FAR, FAR, *[NOTHING] * 5, FAR, *[NOTHING] * 5):
        trust.beside(beat)
        trust.alone(as_ever=True)

    assert not trust.lost
