# SPDX-License-Identifier: Apache-2.0
"""Python and C read what the other writes: replies and job plans, drawn by a seed that a failure names."""

from __future__ import annotations

import ctypes
import random

import pytest

from policy.formats import plan_fields, segment
from policy.formats.job_plan import Field, JobPlan, of_text
from policy.formats.reply import Reply, encode
from tests.examples import SEED
from tests.unit.plugin_library import Text, library
from tests.unit.slurm_plugins.test_plugin_reply import LATER, NONCE, PASS, PLACE, parse

EACH_WAY = 5_000
FIELDS = [one for one in vars(plan_fields).values() if isinstance(one, Field)]
VERBS = {"place": PLACE, "later": LATER, "pass": PASS}
BYTES = bytes(range(1, 256))


def drawn_text(random: random.Random, most: int = 40) -> str:
    """Any bytes that a C string may have, most of them usual ones."""
    letters = BYTES if random.random() < 0.3 else b"abc[]% =\n0189.,:;@"
    return bytes(random.choice(letters) for _ in range(random.randrange(most))).decode("utf-8", "surrogateescape")


def drawn_plan(random: random.Random) -> JobPlan:
    """Some known fields and some of another release, with any text."""
    keys = [one.key for one in random.sample(FIELDS, random.randrange(1, 12))]
    keys += [f"of_tomorrow_{number}" for number in range(random.randrange(3))]
    random.shuffle(keys)
    return JobPlan({key: drawn_text(random) for key in keys})


def drawn_reply(random: random.Random) -> Reply:
    """A reply whose place the plugin takes; its plan and message are any."""
    verb = random.choice(["place", "later", "pass"])
    plan, told = drawn_plan(random), "berth: " + "".join(random.choice("ab %[]=;") for _ in range(random.randrange(60)))
    if verb == "pass":
        return Reply("pass", NONCE, told, plan)
    nodes, gpus = random.choice([(1, 4), (2, 2), (4, 1)])
    if verb == "later":
        return Reply("later", NONCE, told, plan, n=nodes, k=gpus)
    names = tuple(f"n{number}" for number in random.sample(range(1, 100), nodes))
    return Reply("place", NONCE, told, plan, names, tuple(sorted(random.sample(range(64), gpus))), seats=True)


def written_by_c(own: str, entries: dict[str, str]) -> str:
    """A text of a record with a segment, as the plugin writes it."""
    body, text = Text(limit=1 << 20), Text(limit=1 << 20)
    for key, value in entries.items():
        library().segment_add(ctypes.byref(body), key.encode(), value.encode("utf-8", "surrogateescape"))
    said = own.encode("utf-8", "surrogateescape")
    library().segment_set(ctypes.byref(text), said, ctypes.c_char_p(body.data or b""))
    assert (body.failed, text.failed) == (False, False)
    found = bytes(text.data).decode("utf-8", "surrogateescape")
    for one in (body, text):
        library().text_free(ctypes.byref(one))
    return found


def test_c_reads_each_reply_as_python_wrote_it() -> None:
    draw = random.Random(SEED)
    for number in range(EACH_WAY):
        wanted = drawn_reply(draw)
        datagram = encode(wanted)
        read, dropped = parse(datagram)
        where = f"BERTH_SEED={SEED}, reply {number}: {datagram!r}"
        assert dropped == "", where
        assert read.verb == VERBS[wanted.verb], where
        assert of_text(f"[berth/1 {read.segment.decode()}]") == wanted.plan, where
        assert read.message.decode() == wanted.message, where
        if wanted.verb == "place":
            assert read.nodes.decode().split(",") == list(wanted.nodes), where
            assert tuple(read.gpus[: read.gpu_count]) == wanted.gpus, where


def test_python_reads_each_plan_as_c_wrote_it() -> None:
    draw = random.Random(SEED + 1)
    for number in range(EACH_WAY):
        own, wanted = drawn_text(draw), drawn_plan(draw)
        if segment.fields(own) is not None or "[berth/" in own:
            continue
        text = written_by_c(own, dict(wanted.texts))
        where = f"BERTH_SEED={SEED}, plan {number}: {text!r}"
        assert of_text(text) == wanted, where
        assert segment.remove(text) == own, where
        assert text == wanted.into(own), f"{where}: Python writes {wanted.into(own)!r}"


def test_a_field_of_another_release_is_kept_byte_for_byte() -> None:
    text = "site [berth/1 state=placed of_tomorrow=a%20b nodes=n1] end"
    plan = of_text(text)
    assert plan is not None
    changed = plan.having(plan_fields.NODES(("n2",))).without(plan_fields.STATE)

    assert changed.into(text) == "site [berth/1 of_tomorrow=a%20b nodes=n2] end"


@pytest.mark.parametrize("one", FIELDS, ids=lambda one: one.key)
def test_no_text_in_a_field_is_more_than_unreadable(one: Field[object]) -> None:
    draw = random.Random(SEED)
    for _ in range(200):
        text = drawn_text(draw)
        assert JobPlan({one.key: text}).get(one, "missing") is not None, f"BERTH_SEED={SEED}: {one.key}={text!r}"
