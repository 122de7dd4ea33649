# SPDX-License-Identifier: Apache-2.0
"""720 logs that users wrote to mislead, to break or to slow the node that reads them: each is a class, and one line."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable

import pytest

from policy.daemon.hear.endings import read_word
from policy.retry.classes import CLASSES
from policy.retry.classify import TAIL_BYTES, Facts, classify
from policy.retry.rules import shipped_rules
from prolog_epilog.failed import aftermath
from prolog_epilog.failed.aftermath import FailureWord

from .attacks import CONTROL, FORGED, SEGMENT

COUNT = 720
SLOWEST = 60
"""A log may cost so many times what an honest one of the same length costs, and no more."""
RULES = shipped_rules()
HERS = "hers-alone-4711"
SIGNS = (
    *("CUDA out of memory", "NCCL error", "Xid 79", "Segmentation fault", "No space left on device", "Traceback (most"),
    *("ModuleNotFoundError: No module named", "CANCELLED AT 2026-01-01T00:00:00", "Connection reset by peer", "Killed"),
)
Maker = Callable[[random.Random], bytes]


@pytest.fixture(autouse=True)
def quiet() -> None:
    """These need no cluster."""


def noise(draw: random.Random) -> bytes:
    return draw.randbytes(draw.choice((0, 1, 4_096, TAIL_BYTES + 7)))


def one_line(draw: random.Random) -> bytes:
    return draw.choice((b"x", b"\xc3", b"\x1b[", b"\\x1b[0;", b" ", b"0", b"[[[", b"(a+)+")) * draw.choice((10, 90_000))


def one_sign_many_times(draw: random.Random) -> bytes:
    sign = draw.choice(SIGNS)
    return f"{sign}{draw.choice(('', ' ', chr(0), '  ' * 90))}".encode() * draw.choice((3, 20_000))


def half_signs(draw: random.Random) -> bytes:
    """The begin of what rules look for, over and over: patterns that go back and forth would be slow."""
    pattern = draw.choice([pattern for rule in RULES for pattern in rule.patterns])
    literal = max(re.findall(r"[A-Za-z ]{2,}", str(getattr(pattern, "text", pattern))), key=len, default="error")
    return f"{literal[:-1]}{draw.choice((' ', '.', 'x' * 40))}".encode() * draw.choice((5, 9_000))


def forged(draw: random.Random) -> bytes:
    texts = (CONTROL, FORGED, SEGMENT, "class=gpu_lost transient=1 sign=x", "berth/1 failed job=1 node=n1 start=0")
    lines = [f"{draw.choice(SIGNS)} {draw.choice(texts)} {HERS}" for _ in range(draw.choice((1, 2_000)))]
    return "\n".join(lines).encode().decode("unicode_escape", "replace").encode("utf-8", "replace")


def mixed(draw: random.Random) -> bytes:
    return b"\n".join(draw.choice(MAKERS[:-1])(draw)[: draw.randrange(TAIL_BYTES)] for _ in range(4))


MAKERS: tuple[Maker, ...] = (noise, one_line, one_sign_many_times, half_signs, forged, mixed)


def cost(log: bytes) -> float:
    """The processor time of a look at a log, the least of three."""
    spent = []
    for _ in range(3):
        began = time.process_time()
        classify(log[-TAIL_BYTES:], Facts(exit_code=1), RULES)
        spent.append(time.process_time() - began)
    return min(spent)


@pytest.mark.parametrize("part", range(6))
def test_each_log_is_a_class_and_one_line_without_its_text(part: int) -> None:
    draw = random.Random(part)
    for number in range(COUNT // 6):
        log = MAKERS[number % len(MAKERS)](draw)
        exit_code = draw.choice((1, 137, 255))
        found = classify(log, Facts(exit_code=exit_code), RULES)

        assert found.failure in CLASSES
        word = FailureWord(7, "n1", found.failure, transient=found.transient, sign=found.sign, start=1)
        assert HERS not in word.text
        assert word.text.isprintable()
        assert len(word.text) < 700
        heard = read_word(word.text.encode())
        assert heard is not None
        assert heard.sign == found.sign[: aftermath._MOST_SIGN]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_no_log_is_much_slower_to_read_than_an_honest_one(make: Maker) -> None:
    draw = random.Random(7)
    honest = cost(b"epoch 17: loss 0.1234, 512 images/s, 14.2 GiB\n" * (TAIL_BYTES // 46))
    logs = [make(draw) for _ in range(12)]

    assert max(map(cost, logs)) < SLOWEST * max(honest, 0.001)
