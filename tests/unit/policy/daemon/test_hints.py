# SPDX-License-Identifier: Apache-2.0
"""Epilogs' notices without a credential: berthd hears some of them, and asks Slurm whether they are true."""

from contextlib import ExitStack

import pytest

from policy.daemon.hear import notices as module
from policy.daemon.hear.notices import Notices
from tests.fakes.munge import credential
from tests.unit.policy.daemon.test_notices import TEXT, client, heard, hub, notices, serve, take

__all__ = ["notices"]


def test_an_epilogs_notice_without_a_credential_is_a_hint(notices: Notices) -> None:
    peer = client(notices, TEXT + b"\n")
    (notice,) = take(notices)
    assert (notice.job, notice.node, notice.is_hint, notices.taken, notices.refused) == (18, "n1", True, 1, 0)
    notice.answer()
    assert heard(peer) == b"berth/1 done\n"


def test_of_many_hints_at_once_some_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HINTS_AT_ONCE", 3.0)
    monkeypatch.setattr(module, "_HINTS_A_SECOND", 0.001)
    with hub() as notices, ExitStack() as peers:
        every = [peers.enter_context(client(notices, TEXT + b"\n")) for _ in range(8)]
        found = take(notices, 3)
        assert serve(notices) == []
        for notice in found:
            notice.answer()
        assert sorted(peer.makefile("rb").read() for peer in every) == [b""] * 5 + [b"berth/1 done\n"] * 3
        # They keep no true one out.
        peers.enter_context(client(notices, credential(TEXT) + b"\n"))
        assert len(take(notices)) == 1
