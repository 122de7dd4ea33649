# SPDX-License-Identifier: Apache-2.0
"""Host lists: what Slurm writes opens up to the right names, and what is none is refused."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.formats import hostlist as of_policy
from policy.formats.errors import FormatError
from topology.errors import HostlistError
from topology.hostlist import expand, fold

WRITTEN = {
    "": (),
    "n1": ("n1",),
    "a,b": ("a", "b"),
    " a , b,": ("a", "b"),
    "n[1-3]": ("n1", "n2", "n3"),
    "n[008-010,7]": ("n008", "n009", "n010", "n7"),
    "r[1-2]n[1-2]x": ("r1n1x", "r1n2x", "r2n1x", "r2n2x"),
    "login,n[1,3],x": ("login", "n1", "n3", "x"),
}
BROKEN = ["n[1-", "n1]", "n[]", "n[a-b]", "n[3-1]", "n[[1]]", "n[1]]", "[", "n[-1]", "n[1-2-3]"]
TOO_MANY = ["n[0-99999]", "n[0-999]m[0-999]", ",".join(f"n{k}[0-9999]" for k in range(7))]


@pytest.mark.parametrize(("text", "names"), WRITTEN.items())
def test_lists_open_up_in_their_order(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_no_host_list_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(HostlistError, match="is not a host list such as") as error:
        expand(text)
    assert f'"{text}"' in str(error.value)


@pytest.mark.parametrize("text", TOO_MANY)
def test_a_list_that_would_fill_the_memory_is_refused(text: str) -> None:
    with pytest.raises(HostlistError, match="more than 65536 hosts"):
        expand(text)


@given(st.text(alphabet="n01[]-, ", max_size=20))
def test_any_text_is_opened_or_refused(text: str) -> None:
    try:
        names = expand(text)
    except HostlistError:
        return
    assert all(name and not set(name) & set("[],") for name in names)


@given(st.sets(st.from_regex(r"[a-z]{1,3}(-?[0-9]{1,3}){1,2}", fullmatch=True), min_size=1, max_size=30))
def test_folded_lists_open_up_to_the_same_names(names: set[str]) -> None:
    assert set(expand(fold(names))) == names


def test_the_policy_side_has_its_own_error_for_it() -> None:
    assert of_policy.expand("n[1-2]") == ("n1", "n2")
    with pytest.raises(FormatError, match="is not a host list"):
        of_policy.expand("n[1-")


@pytest.mark.slow
def test_many_long_lists_do_not_stay_in_memory() -> None:
    tracemalloc.start()
    try:
        expand("n[1-1999]")
        before, _ = tracemalloc.get_traced_memory()
        for number in range(500):
            assert len(expand(f"n[1-2000],x{number}")) == 2_001
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert after - before < 70 * 200_000
