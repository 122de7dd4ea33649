# SPDX-License-Identifier: Apache-2.0
"""What the plugins read out of, and take out of, Slurm's request strings."""

import ctypes
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plugin_library import Found, in_place, library, taken, text

JOIN_OK = 0


def scan(*requests: str) -> Found:
    found = Found()
    for request in requests:
        library().tres_scan(request.encode(), ctypes.byref(found))
    return found


def join(user: str | None, model: str) -> str | None:
    out = text()
    result = library().features_join(user.encode() if user else None, model.encode(), ctypes.byref(out))
    joined = taken(out).decode()
    return joined if result == JOIN_OK else None


@pytest.mark.parametrize(
    ("request_text", "gpus", "model"),
    [
        ("gres/gpu", 1, b""),
        ("gres/gpu:2", 2, b""),
        ("gres/gpu=2", 2, b""),
        # Neither does Slurm read these.
        ("gpu:2", 0, b""),
        ("gres:gpu:2", 0, b""),
        ("gres/GPU:2", 0, b""),
        ("gres//gpu:2", 0, b""),
        ("gres/gpu:a100", 1, b"a100"),
        ("gres/gpu:a100:2", 2, b"a100"),
        ("gres/gpu:a100=2", 2, b"a100"),
        ("gres/gpu:4090", 4090, b""),
        ("gres/gpu:4090:2", 2, b"4090"),
        ("gres/nic:1,gres/gpu:a100:2", 2, b"a100"),
        # Of one GRES that is named twice Slurm takes the last number.
        ("gres/gpu:a100:1,gres/gpu:a100:3", 3, b"a100"),
        ("gres/gpu:3,gres/nic:1,gres/gpu:2", 2, b""),
        ("gres/gpu:3,gres/gpu:0", 3, b""),
        ("gres/gpu:1k", 1024, b""),
        ("gres/gpu:1KiB", 1024, b""),
        # What is no number behind a colon is a type.
        ("gres/gpu:1080ti", 1, b"1080ti"),
        ("gres/gpu:2x", 1, b"2x"),
        ("gres/gpu:1kib2", 1, b"1kib2"),
        ("gres/gpu:0m", 0, b""),
        ("gres/gpu:0", 0, b""),
        ("gres/nic:2", 0, b""),
        ("cpu=2", 0, b""),
        ("gres/gpux:2", 0, b""),
        ("", 0, b""),
    ],
)
def test_a_request_is_counted_and_its_model_named(request_text: str, gpus: int, model: bytes) -> None:
    found = scan(request_text)
    assert (found.gpus, found.gpu, found.model) == (gpus, gpus > 0, model)


@pytest.mark.parametrize(
    "request_text",
    [
        "gres/gpu:2066035336255469781kb",
        "gres/gpu=2066035336255469781kb",
        "gres/gpu:h100:2066035336255469781kb",
        "gres/gpu:1m",
        "gres/gpu:2mib",
        "gres/gpu:1000001",
        "gres/gpu:18446744073709551617",
        "gres/gpu:h100:many",
        "gres/gpu:h100:+2",
        "gres/gpu=h100",
        "gres/gpu=h100:2",
        "gres/gpu=h100=2",
        "gres/gpu:2=",
        "gres/gpu:2kb",
        "gres/gpu:h100:x:y",
        "gres/gpu:h100:",
        "gres/gpu:",
        "gres/gpu::2",
        "gres/nic:1,gres/gpu:2kb",
    ],
)
def test_gpus_in_a_number_that_nobody_can_read_are_no_request_without_gpus(request_text: str) -> None:
    assert scan(request_text).bad_count


@pytest.mark.parametrize(
    "request_text",
    [
        *("gres/gpu", "gres/gpu:h100:2", "gres/gpu=2", "gres/gpu:h100=2", "gres/gpu:h100", "gres/gpu:0"),
        *("gres/gpu:1k", "gres/nic:2mib", "license/x:many", "cpu=2,gres/gpu=1", "gres/gpu:1,gres/nic", ""),
    ],
)
def test_every_other_number_stays_as_it_is(request_text: str) -> None:
    assert not scan(request_text).bad_count


def test_what_users_may_not_ask_for_is_seen_in_any_field() -> None:
    assert scan("gres/gpu:g0:1").position_type
    assert scan("gres/gpu:2", "gres/gpu:g63").position_type
    assert not scan("gres/gpu:gtx1080:1").position_type
    assert scan("gres/shard:g1:30").shared
    assert scan("gres/gpu:1", "gres/seat=1").shared
    assert scan("gres/gpu:a100:1", "gres/gpu:v100:1").several_models
    assert not scan("gres/gpu:a100:1", "gres/gpu:a100:1").several_models
    assert scan("gres/gpu:a|b:1").bad_model


@pytest.mark.parametrize(
    "request_text",
    [
        "xgres/gpu:g1:1",
        "xgres/seat:g0:1",
        "xgres/shard:g0:5",
        "license/gres/gpu:1",
        "gres/nic:1,xgres:seat:g0:1",
        "gres/gres/gpu:1",
        "gres/nic:gres/gpu:1",
        "xgres=gpu:1",
        "gresgpu:2",
        "license/gresseat:g0:1",
        "gres:gpu:2",
        "GRES/gpu:2",
        "gres/nic:1;gres/gpu:2",
        # A nameless element is the last that Slurm reads.
        "gres/2,gres/gpu:1",
        "gres/:x,gres/nic:1,gres/seat:1",
        "xgres5,gres/shard:1",
    ],
)
def test_what_slurm_finds_inside_of_an_element_is_seen(request_text: str) -> None:
    assert scan(request_text).hidden


@pytest.mark.parametrize(
    "request_text",
    [
        *("gres/gpu:2", "gres/nic:progress:1,gres/gpu:a100:1", "cpu=2", "license/seat:1", "gres/nic:gpu:1", "gpu:2"),
        *("gres/gpu:1,gres/2", "gres/,gres,gres/gpu:1", "gres/gpux:1,xgres/nic:1", "gres/gpu:1,"),
    ],
)
def test_what_stands_at_the_start_of_an_element_is_not_hidden(request_text: str) -> None:
    assert not scan(request_text).hidden


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("gres/gpu:a100:2", "gres/gpu:2"),
        ("gres/gpu:a100=2", "gres/gpu=2"),
        ("gres/gpu:a100", "gres/gpu:1"),
        ("gres/gpu:a100:1,gres/gpu:a100:3", "gres/gpu:3"),
        ("gpu:a100:2", "gpu:a100:2"),
        ("gres/gpu:a,gres/gpu:9,gres/nic:1", "gres/gpu:10,gres/nic:1"),
        ("gres/gpu:a100:1,gres/gpu:v100:1", "gres/gpu:2"),
        ("gres/nic:mlx:1,gres/gpu:a100:2,license/x:1", "gres/nic:mlx:1,gres/gpu:2,license/x:1"),
        ("gres/gpu:2", "gres/gpu:2"),
        ("gres/gpu:g0:1,gres/gpu:g3:1", "gres/gpu:g0:1,gres/gpu:g3:1"),
        ("gres/gpu:a100:many", "gres/gpu:a100:many"),
        ("none", "none"),
    ],
)
def test_models_leave_a_request_and_the_rest_stays(before: str, after: str) -> None:
    assert in_place("tres_strip_models", before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *(("a100:2", "2"), ("a100", "1"), ("2", "2"), ("a100:1,v100:3", "4"), ("a100:1,a100:3", "3")),
        *(("g1:1", "g1:1"), ("1080ti", "1"), ("a100=2", "2"), ("", "")),
    ],
)
def test_models_leave_the_bare_form(before: str, after: str) -> None:
    assert in_place("gpus_strip_models", before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SLURM_GPUS=a100:2", "SLURM_GPUS=2"),
        ("SLURM_GPUS_PER_NODE=a100:2", "SLURM_GPUS_PER_NODE=2"),
        ("SLURM_GPUS_PER_TASK=a100", "SLURM_GPUS_PER_TASK=1"),
        ("SLURM_GPUS_PER_SOCKET=a100:1", "SLURM_GPUS_PER_SOCKET=1"),
        ("SLURM_TRES_PER_TASK=cpu=2,gres/gpu:a100=1", "SLURM_TRES_PER_TASK=cpu=2,gres/gpu=1"),
        ("SLURM_STEP_GRES=gres/gpu:a100:1", "SLURM_STEP_GRES=gres/gpu:1"),
        ("SLURM_GRES=nic:1,gpu:a100:1,gres/gpu:v100:3", "SLURM_GRES=nic:1,gpu:4"),
        ("SLURM_TRES_PER_TASK=gpu:a100:1", "SLURM_TRES_PER_TASK=gpu:a100:1"),
        ("SLURM_GPUS_HET_GROUP_1=a100:2", "SLURM_GPUS_HET_GROUP_1=2"),
        ("SLURM_GPUS_ON_NODE=a100:2", "SLURM_GPUS_ON_NODE=a100:2"),
        ("SLURM_TRES_BIND=gres/gpu:per_task:1", "SLURM_TRES_BIND=gres/gpu:per_task:1"),
        ("MY_GPUS=a100:2", "MY_GPUS=a100:2"),
        ("SLURM_GPUS", "SLURM_GPUS"),
    ],
)
def test_only_what_srun_reads_a_request_from_is_rewritten(before: str, after: str) -> None:
    assert in_place("env_strip_models", before) == after


names = st.from_regex(r"[a-z][a-z0-9_.-]{0,9}", fullmatch=True)
elements = st.one_of(
    st.builds("gres/gpu:{}:{}".format, names, st.integers(0, 99)),
    st.builds("gres/gpu:{}".format, st.integers(0, 99)),
    st.builds("gres/nic:{}:{}".format, names, st.integers(0, 9)),
    st.text(alphabet="gpures/:=,;0123456789kg", max_size=12),
)


@given(st.lists(elements, max_size=6).map(",".join))
def test_stripping_keeps_the_number_of_gpus_and_never_grows(request_text: str) -> None:
    stripped = in_place("tres_strip_models", request_text)
    before, after = scan(request_text), scan(stripped)
    assert len(stripped) <= len(request_text)
    assert (after.gpus, after.gpu) == (before.gpus, before.gpu)
    if stripped != request_text:
        assert after.model == b""


@pytest.mark.parametrize(
    ("user", "joined"),
    [
        (None, "a100"),
        ("rack1", "rack1&a100"),
        ("a100", "a100"),
        ("rack1&ib", "rack1&ib&a100"),
        ("rack1|rack2", "(rack1|rack2)&a100"),
        ("(rack1|rack2)&ib", "(rack1|rack2)&ib&a100"),
        ("[rack1|rack2]", "a100&[rack1|rack2]"),
        ("(rack1&ib)|rack2", None),
        ("rack1*2", None),
        ("[rack1*2&rack2*2]", "a100&[rack1*2&rack2*2]"),
        ("(rack1", None),
    ],
)
def test_a_model_joins_the_users_constraint_without_changing_its_sense(user: str | None, joined: str | None) -> None:
    assert join(user, "a100") == joined


def test_what_is_asked_beside_gpus_survives_a_pin() -> None:
    out = text()
    library().tres_keep_others(b"gres/gpu:2,gres/nic:1,gres/seat:1,license/x:2", ctypes.byref(out))
    assert taken(out) == b"gres/nic:1,license/x:2"


def test_cpus_per_gpu_are_read_as_slurm_reads_them() -> None:
    assert [library().tres_per_gpu(each) for each in (b"gres/gpu:4", b"gres/gpu=3", b"gpu:3", None)] == [4, 3, 0, 0]


def test_every_request_variable_of_srun_is_covered() -> None:
    """srun reads these six and SLURM_STEP_GRES; a new spelling must be added here and there."""
    for name in ("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK"):
        assert re.fullmatch(r"\w+=2", in_place("env_strip_models", f"{name}=a100:2"))
    for name in ("SLURM_GRES", "SLURM_STEP_GRES", "SLURM_TRES_PER_TASK"):
        assert in_place("env_strip_models", f"{name}=gres/gpu:a100:2") == f"{name}=gres/gpu:2"
