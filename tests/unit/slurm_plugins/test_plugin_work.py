# SPDX-License-Identifier: Apache-2.0
"""slurmctld holds its locks while the plugin reads what users write: its work is linear in each text, and bounded."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tests.examples import examples
from tests.unit.plugin_library import Expected, NodeExists, Reply
from tests.unit.plugin_whole import LISTS, SOURCES, USER, Plugin, each_slurm, loaded, place
from tests.unit.plugin_work import GRAMMAR, counter, counting, repeated, texts, uncounted

pytestmark = each_slurm
DOUBLINGS = 3
GROWTH = 2.2
"""The factor of work that a text of twice the length may cost; a quadratic reader needs 4."""
LONGEST = {"script": 4 << 20, "submit_line": 1 << 20, "environment": 1 << 18}
OTHERWISE = 65_536
"""Bytes. Slurm takes 1,024 of most fields, but tests that only after the plugin; of node lists it takes any number."""
ASKS = {"tres_per_job": "gres/gpu:1", "script": "#!/bin/sh"}
FLAG = ("_SLURM_SPANK_OPTION_berth_retry=1",)
NAMES = {"argv": "arguments"}
CHANGEABLE = ("extra", "features", "licenses", "partition", "tres_per_node", "tres_per_task", "cpus_per_tres")


@pytest.fixture
def plugin(headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    hook = 'skip_partitions = "plain,cpu"\nmessage = "always"'
    with loaded(headers, tmp_path, monkeypatch, hook, build=counting) as made:
        yield made


def submitted(plugin: Plugin, field: str, text: str) -> int:
    """The steps of one submission with this text in one of its fields."""
    fields = {"script": ASKS["script"]} if field.startswith("tres_per") else ASKS
    if field == "spank_job_env":
        return measured(plugin, "fake_submit", text.split("\n"), fields)
    return measured(plugin, "fake_submit", FLAG, {**fields, NAMES.get(field, field): text})


def measured(plugin: Plugin, function: str, flags: Sequence[str], fields: Mapping[str, str]) -> int:
    """The steps of one call of the plugin, without those of the test."""
    built = plugin.built
    job = ctypes.c_void_p(built.fake_job())
    said = ctypes.create_string_buffer(1_024)
    middle = (ctypes.c_uint32(USER),) if function == "fake_submit" else (b"JobId=7", ctypes.c_uint32(USER))
    try:
        for name, value in fields.items():
            one = LISTS.get(name, name)
            for word in filter(None, value.split("\n")) if name in LISTS else [value]:
                assert built.fake_set(job, one.encode(), word.encode()), name
        for entry in flags:
            built.fake_flag(job, entry.encode())
        counter().work_reset()
        getattr(built, function)(job, *middle, said, ctypes.c_size_t(len(said)))
        return int(counter().work_done())
    finally:
        built.fake_end(job)


def must_be_linear(steps: Mapping[int, int], of: str, fixed: int = 0) -> None:
    """Three doublings in a row, each at most by the factor, and by what any submission takes, twice."""
    sizes = sorted(steps)
    for shorter, longer in pairwise(sizes):
        assert steps[longer] <= GROWTH * steps[shorter] + 2 * fixed, (
            f"{of}: {shorter} bytes take {steps[shorter]} steps, {longer} take {steps[longer]}"
        )


def doubled(longest: int) -> list[int]:
    return [longest >> shift for shift in reversed(range(DOUBLINGS + 1))]


def test_nothing_that_takes_long_goes_uncounted(headers: Path) -> None:
    assert uncounted(headers) == set()


def test_each_text_that_the_plugin_reads_has_a_grammar(headers: Path) -> None:
    """A field that the plugin comes to read is drawn here too."""
    description = (headers / "slurm" / "slurm.h").read_text().partition("typedef struct job_descriptor")[2]
    fields = re.findall(r"^\s*char \*+(\w+);", description.partition("} job_desc_msg_t")[0], re.MULTILINE)
    code = "".join(path.read_text() for path in SOURCES.glob("*/*.c") if path.parent.name in {"job_submit", "request"})
    read = {field for field in fields if re.search(rf"\b(?:job|change)->{field}\b", code)}
    assert read - GRAMMAR.keys() == set()


@pytest.mark.parametrize("field", GRAMMAR)
def test_twice_the_text_is_twice_the_work(plugin: Plugin, field: str) -> None:
    """First short texts, so that a quadratic reader is found before it takes minutes; then the longest."""
    longest = LONGEST.get(field, OTHERWISE)
    any_submission = submitted(plugin, field, "a")
    for sizes in (doubled(16_384), doubled(longest)):
        for period in texts(field, examples(4)):
            steps = {size: submitted(plugin, field, repeated(period, size)) for size in sizes}
            must_be_linear(steps, f"{field} of {period!r}", any_submission)


@pytest.mark.parametrize("field", CHANGEABLE)
def test_so_is_a_change(plugin: Plugin, field: str) -> None:
    for period in texts(field, examples(4)):
        steps = {
            size: measured(plugin, "fake_modify", (), {field: repeated(period, size)}) for size in doubled(OTHERWISE)
        }
        must_be_linear(steps, f"{field} of {period!r}")


@pytest.mark.parametrize("field", GRAMMAR)
def test_so_it_is_with_a_place(plugin: Plugin, field: str) -> None:
    """What is written into a job goes through its texts again."""
    with plugin.berthd(partial(place, nodes="n1")):
        any_submission = submitted(plugin, field, "a")
        for period in [*texts(field, 0)][:4]:
            steps = {size: submitted(plugin, field, repeated(period, size)) for size in doubled(4_096)}
            must_be_linear(steps, f"{field} of {period!r}", any_submission)


@pytest.mark.parametrize("period", ["#SBATCH\n", "#SBATCH -H ", "#", "#SBATCH #\n"])
def test_of_a_script_only_the_beginning_is_read(plugin: Plugin, period: str) -> None:
    short, long = (submitted(plugin, "script", repeated(period, size)) for size in (1 << 17, 1 << 22))
    assert long <= short + 100, (short, long)


@pytest.mark.parametrize("field", ["extra", "features", "licenses", "partition", "tres_per_node", "cpus_per_tres"])
def test_what_slurm_refuses_anyway_is_not_gone_through(plugin: Plugin, field: str) -> None:
    """Slurm takes 1,024 bytes of each, and says so only after the plugin."""
    for period in GRAMMAR[field]:
        steps = [submitted(plugin, field, repeated(period, size)) for size in (1 << 17, 1 << 21)]
        assert steps[1] <= steps[0] + 100, period
        assert max(steps) < 300_000


@pytest.mark.parametrize("others", ["b,", "b7,", "b[1,1,1,1],", "b[1-9],", "a,"])
def test_twice_the_reply_is_twice_the_work(headers: Path, others: str) -> None:
    """A place for a job of many nodes, which leaves out all the others."""
    steps = {size: _place_checked(counting(headers), others, size) for size in doubled(12_000)}
    must_be_linear(steps, f"nodes and exc_nodes of {others!r}")


def _place_checked(built: ctypes.CDLL, others: str, size: int) -> int:
    """The steps of reading a place of this length, half of which are nodes, and half those that it leaves out."""
    nodes = [f"a{number:04}" for number in range((size // 2 - 100) // 6)]
    left_out = repeated(others, size // 2).rpartition(",")[0]
    lines = f"nonce=0\nnodes={','.join(nodes)}\ngpus=0\nseats=1\nsegment=s\nexc_nodes={left_out}\n"
    text = f"berth/1 place\n{lines}".replace("[", "%5B").replace("]", "%5D").encode()[:16_384]
    reply = Reply()
    ctypes.memmove(ctypes.addressof(reply) + Reply.text.offset, text, len(text))
    error = ctypes.create_string_buffer(160)
    exists = NodeExists(lambda _: True)
    expected = Expected(nonce=b"0", gpus=len(nodes), node_exists=exists)
    counter().work_reset()
    built.reply_parse(ctypes.byref(reply), ctypes.c_size_t(len(text)), ctypes.byref(expected), error)
    assert not error.value or b"excludes" in error.value, error.value
    return int(counter().work_done())
