# SPDX-License-Identifier: Apache-2.0
"""What `berth observe` calls better is a place that the job's own request admits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.formats.slurm_facts import JobFacts, NodeFacts
from policy.plan.answer.beside import RunningJob
from tests.examples import examples

from .test_beside import held, look, plain, waits

KINDS = ("h100", "a6000", "v100", "l40s")


def of_model(name: str, kind: str, used: int = 0, **changes: object) -> NodeFacts:
    return plain(name, used=used, models=frozenset({kind}), **changes)


def the_job(nodes: list[NodeFacts], job: JobFacts, kinds: dict[str, str]) -> RunningJob:
    [found] = look(nodes, [job], kinds).running
    return found


LINKED = [of_model("n1", "a6000", used=0b101), of_model("n2", "h100")]
TWO = {"n1": "a6000", "n2": "h100"}


def test_better_gpus_of_another_model_than_the_job_named_are_not_told() -> None:
    job = held(1, ("n1", 0b101))

    anything = the_job(LINKED, job, TWO)
    named = the_job(LINKED, replace(job, models=frozenset({"a6000"})), TWO)

    assert anything.best is not None
    assert anything.best.names == ("n2",)
    assert named.best is not None
    assert named.best.names == ("n1",)


@pytest.mark.parametrize(
    "bound",
    [
        {"features": "rack9|rack2"},
        {"features": "[rack1*1&rack2*1]"},
        {"reservation": "maintenance"},
        {"partition": "small"},
        {"excluded": ("n2",)},
        {"features": "rack9"},
        {"cpus": 20},
    ],
)
def test_nodes_that_the_job_could_not_have_are_not_told(bound: dict[str, object]) -> None:
    first = of_model("n1", "a6000", used=0b101, features=frozenset({"rack1", "rack9"}), partitions=frozenset({"small"}))
    nodes = [replace(first, partitions=frozenset({"gpu", "small"})), of_model("n2", "h100", cpus=16)]

    found = the_job(nodes, held(1, ("n1", 0b101), **bound), TWO)

    assert found.best is None or found.best.names == ("n1",)


def test_a_gang_with_a_node_that_its_user_named_is_not_told_to_leave_it() -> None:
    nodes = [of_model("n1", "a6000", used=0xF), of_model("n2", "a6000", used=0xF), *(plain(n) for n in ("n3", "n4"))]
    job = held(1, ("n1", 0b1111), ("n2", 0b1111), required=("n1",))

    found = the_job(nodes, job, {"n1": "a6000", "n2": "a6000", "n3": "h100", "n4": "h100"})

    assert found.best is None


def test_on_nodes_of_several_models_no_gpus_of_a_named_model_are_told() -> None:
    mixed = plain("n2", models=frozenset({"a6000", "h100"}))
    job = held(1, ("n1", 0b101), models=frozenset({"a6000"}), excluded=())
    worse = of_model("n1", "a6000", used=0xFF)

    found = the_job([worse, mixed], job, {"n1": "a6000", "n2": "h100"})

    assert found.best is None


def test_a_waiting_job_is_planned_on_gpus_of_its_model() -> None:
    nodes = [of_model("n1", "a6000"), of_model("n2", "h100")]
    jobs = [waits(number, models=frozenset({model})) for number, model in ((1, "a6000"), (2, "h100"), (3, "v100"))]

    seen = look(nodes, jobs, TWO, asked={1: 2, 2: 2, 3: 2})

    assert {move.job.id: move.berth.names for move in seen.planned} == {1: ("n1",), 2: ("n2",)}


@st.composite
def sites(draw: st.DrawFn) -> tuple[list[NodeFacts], dict[str, str], JobFacts]:
    names = [f"n{number}" for number in range(1, draw(st.integers(2, 5)) + 1)]
    kinds = {name: draw(st.sampled_from(KINDS)) for name in names}
    some = st.sets(st.sampled_from(["rack1", "rack2", "ib"])).map(frozenset)
    nodes = [
        of_model(
            name,
            kinds[name],
            used=draw(st.integers(0, 255)),
            features=draw(some),
            partitions=frozenset({"gpu"}) | draw(st.sets(st.just("small"))),
            cpus=draw(st.sampled_from([16, 32])),
            mem=draw(st.sampled_from([8_000, 64_000])),
            up=draw(st.integers(0, 9)) > 0,
        )
        for name in names
    ]
    count = draw(st.integers(1, min(2, len(names))))
    got = draw(st.permutations(nodes))[:count]
    mask = draw(st.integers(1, 255))
    asked = [*sorted(frozenset.intersection(*(one.features for one in got)))]
    models = frozenset(kinds[one.name] for one in got)
    job = held(
        1,
        *((one.name, mask) for one in got),
        models=models if len(models) == 1 and draw(st.booleans()) else frozenset(),
        features="&".join(asked[: draw(st.integers(0, len(asked)))]),
        partition=draw(st.sampled_from(sorted(frozenset.intersection(*(one.partitions for one in got))))),
        excluded=tuple(name for name in names if name not in {one.name for one in got} and draw(st.booleans())),
        required=tuple(one.name for one in got[: draw(st.integers(0, count))]),
        reservation=draw(st.sampled_from(["", "", "", "r1"])),
        cpus=count * draw(st.integers(1, 20)),
        mem=draw(st.sampled_from([100, 10_000])),
    )
    nodes = [replace(one, gpus_used=one.gpus_used | (mask if one in got else 0)) for one in nodes]
    return nodes, kinds, job


@settings(max_examples=examples(150))
@given(sites())
def test_what_is_told_to_be_better_is_what_the_job_could_have_had(
    drawn: tuple[list[NodeFacts], dict[str, str], JobFacts],
) -> None:
    nodes, kinds, job = drawn
    for found in look(nodes, [job], kinds).running:
        if found.best is None:
            continue
        by_name, count = {one.name: one for one in nodes}, len(job.nodes)
        own = dict(zip(job.nodes, job.holds, strict=True))
        assert len(found.best.names) == count
        assert set(job.required) <= set(found.best.names)
        for name in found.best.names:
            one = by_name[name]
            taken = one.gpus_used & ~own.get(name, 0)
            assert not found.best.mask & taken
            assert found.best.mask.bit_count() == job.holds[0].bit_count()
            assert not job.models or kinds[name] in job.models
            assert set(filter(None, job.features.split("&"))) <= one.features
            assert job.partition in one.partitions
            assert name not in job.excluded
            assert name in own or (one.up and job.cpus <= count * one.cpus and (job.mem or 0) <= one.mem)
            assert not job.reservation
