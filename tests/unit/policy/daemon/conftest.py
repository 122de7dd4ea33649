# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of berthd."""

import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def channel() -> Iterator[socket.socket]:
    """The planner's end of a channel whose other end nobody reads."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.setblocking(False)
    yield ours
    ours.close()
    theirs.close()
