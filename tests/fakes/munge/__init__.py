# SPDX-License-Identifier: Apache-2.0
"""A libmunge that needs no munged (munge.c): who uses it may make any credential."""

import functools
import itertools
import os
import time
from pathlib import Path

from tests import building

_serial = itertools.count()


@functools.cache
def library() -> Path:
    """The library, built once per test run; its folder can be put on LD_LIBRARY_PATH."""
    return building.built("libmunge.so.2", [Path(__file__).with_name("munge.c")], (), ("-fPIC", "-shared"))


def credential(payload: bytes, *, uid: int | None = None, age: int = 0) -> bytes:
    """What munge_encode gives to a user for a payload, `age` seconds ago."""
    owner = os.geteuid() if uid is None else uid
    head = f"{owner}:{int(time.time()) - age}:{next(_serial)}:".encode()
    return b"MUNGE:" + (head + payload).hex().encode() + b":"
