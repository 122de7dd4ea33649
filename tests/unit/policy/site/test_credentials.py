# SPDX-License-Identifier: Apache-2.0
"""The cluster's credentials: MUNGE's and those of Slurm's own auth/slurm, made and checked the same way."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from policy.formats.errors import DaemonError
from policy.site.auth import credentials
from policy.site.auth.credentials import FORM, Credentials
from policy.site.auth.munge import EXPIRED, NO_MUNGED, REPLAYED, Munge
from policy.site.auth.sack import NOT_VOUCHED, Sack
from prolog_epilog.errors import NodeError
from prolog_epilog.guard.tell import notice
from tests.fakes import munge
from tests.fakes.sack import sack, token

TEXT = b"berth/1 status"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Credentials]:
    with sack(tmp_path / "sack.socket") as path:
        yield Credentials(sack=Sack(["/nowhere/sack.socket", path]))


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Credentials:
    """A cluster that has MUNGE."""
    monkeypatch.setattr(credentials, "Munge", functools.partial(Munge, library=str(munge.library())))
    return Credentials(sack=Sack(["/nowhere/sack.socket"]))


def test_slurm_vouches_for_the_user_that_asks(slurm: Credentials) -> None:
    made = slurm.encode(TEXT)

    assert slurm.name == "auth/slurm"
    assert FORM.fullmatch(made)
    found = slurm.decode(made)
    assert (found.error, found.uid, found.payload) == (0, os.geteuid(), TEXT)


def test_munge_vouches_where_slurm_has_no_credentials(without: Credentials) -> None:
    made = without.encode(TEXT)

    assert without.name == "auth/munge"
    assert FORM.fullmatch(made)
    found = without.decode(made)
    assert (found.error, found.uid, found.payload) == (0, os.geteuid(), TEXT)


def test_a_credential_counts_once(slurm: Credentials) -> None:
    made = slurm.encode(TEXT)

    assert [slurm.decode(made).error for _ in range(2)] == [0, REPLAYED]


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (lambda: token(TEXT, age=90), EXPIRED),
        (lambda: token(TEXT, key=b"another key"), NOT_VOUCHED),
        # What slurmctld and slurmd say to each other is no user's word.
        (lambda: token(TEXT, context="auth"), NOT_VOUCHED),
        (lambda: token(TEXT)[:-1], NOT_VOUCHED),
        (lambda: b"eyJ.e30.AA", NOT_VOUCHED),
        (lambda: b"eyJ", NOT_VOUCHED),
        (lambda: b"\xff.\xff.\xff", NOT_VOUCHED),
    ],
)
def test_what_slurm_does_not_vouch_for_has_no_user(slurm: Credentials, made: Callable[[], bytes], error: int) -> None:
    found = slurm.decode(made())

    assert (found.error, found.uid, found.payload) == (error, -1, b"")


def test_of_an_old_one_the_age_is_told(slurm: Credentials) -> None:
    assert slurm.decode(token(TEXT, age=90)).skew in {90, 91}


def test_a_host_that_checks_no_such_credential_says_so(without: Credentials) -> None:
    found = without.decode(token(TEXT))

    assert (found.error, found.uid) == (NO_MUNGED, -1)
    assert "/nowhere/sack.socket: No such file" in found.reason
    with pytest.raises(DaemonError, match="cannot be had"):
        Sack(["/nowhere/sack.socket"]).encode(TEXT)


def test_a_node_signs_as_its_cluster_does(slurm: Credentials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_SACK_SOCKET", str(tmp_path / "sack.socket"))

    found = slurm.decode(notice.credential(b"berth/1 guard node=n1"))

    assert (found.error, found.uid, found.payload) == (0, os.geteuid(), b"berth/1 guard node=n1")


def test_a_node_whose_slurmd_hangs_up_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_SACK_SOCKET", str(tmp_path / "dead.socket"))
    (tmp_path / "dead.socket").touch()

    with pytest.raises(NodeError, match="Slurm signs nothing at"):
        notice.credential(b"berth/1 guard node=n1")
