# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from typing import Any

import pytest

from policy.cluster.fit import on_fleet
from policy.formats.errors import FormatError, Impossible, LeftToSlurm
from policy.formats.slurm_facts import Memory, PartitionFacts
from tests.unit.policy_world import fleet, node, reading, request_of, submit

FLEET = fleet(reading([node(f"n{i}") for i in range(1, 5)]))


@pytest.mark.parametrize(
    ("fields", "n", "k", "cpus", "mem"),
    [
        # What sbatch sends for each form, as Slurm 24.11 and 26.05 do.
        ({"tres_per_job": "gres/gpu:2", "min_cpus": "1"}, 1, 2, 1, 100),
        ({"tres_per_node": "gres/gpu:2", "min_cpus": "1"}, 1, 2, 1, 100),
        ({"tres_per_node": "gres/gpu"}, 1, 1, 1, 100),
        ({"tres_per_node": "gres/gpu:2", "min_nodes": "2", "max_nodes": "2", "min_cpus": "2"}, 2, 2, 1, 100),
        ({"tres_per_node": "gres/gpu:2", "num_tasks": "4", "min_cpus": "4"}, 1, 2, 4, 400),
        ({"tres_per_job": "gres/gpu:8", "min_nodes": "2", "max_nodes": "2"}, 2, 4, 1, 100),
        ({"tres_per_job": "gres/gpu:16"}, 2, 8, 1, 100),
        (
            {"tres_per_job": "gres/gpu:4", "tres_per_node": "gres/gpu:2", "min_nodes": "2", "max_nodes": "2"},
            2,
            2,
            1,
            100,
        ),
        ({"tres_per_task": "gres/gpu=1", "num_tasks": "4", "min_cpus": "4"}, 1, 4, 4, 400),
        ({"tres_per_task": "gres/gpu=1", "num_tasks": "4", "min_nodes": "2", "max_nodes": "2"}, 2, 2, 2, 200),
        ({"tres_per_task": "gres/gpu=1", "num_tasks": "4", "tres_per_job": "gres/gpu:4"}, 1, 4, 4, 400),
        ({"tres_per_job": "gres/gpu:4", "cpus_per_tres": "gres/gpu:3", "min_cpus": "12"}, 1, 4, 12, 1_200),
        ({"tres_per_job": "gres/gpu:2", "ntasks_per_tres": "2", "num_tasks": "4", "min_cpus": "1"}, 1, 2, 4, 400),
        (
            {"tres_per_node": "gres/gpu:2", "tres_per_task": "cpu=2", "num_tasks": "8", "ntasks_per_node": "4"}
            | {"cpus_per_task": "2", "min_cpus": "16", "min_nodes": "2"},
            2,
            2,
            8,
            800,
        ),
        ({"tres_per_job": "gres/gpu:2", "num_tasks": "6", "pn_min_cpus": "6"}, 1, 2, 6, 600),
        ({"tres_per_job": "gres/gpu:2", "num_tasks": "4", "threads_per_core": "1"}, 1, 2, 4, 400),
        ({"tres_per_job": "gres/gpu:2", "num_tasks": "4", "ntasks_per_core": "1"}, 1, 2, 4, 400),
        ({"tres_per_job": "gres/gpu:2", "mem_per_node": "5000"}, 1, 2, 1, 5_000),
        ({"tres_per_job": "gres/gpu:2", "mem_per_cpu": "50", "num_tasks": "3"}, 1, 2, 3, 150),
        ({"tres_per_job": "gres/gpu:2", "mem_per_tres": "gres/gpu:1000"}, 1, 2, 1, 2_000),
        ({"tres_per_job": "gres/gpu:2", "mem_per_node": "0"}, 1, 2, 1, None),
        ({"tres_per_job": "gres/gpu:2", "exclusive": "1"}, 1, 2, None, 100),
        ({"tres_per_node": "gres/gpu:2", "req_nodes": "n[1-2]", "min_nodes": "2"}, 2, 2, 1, 100),
        ({"tres_per_node": "gres/gpu:2", "req_nodes": "n[1-2],n2,n1", "min_nodes": "2"}, 2, 2, 1, 100),
        ({"tres_per_job": "gres/gpu:2", "req_nodes": "n1,n1", "min_nodes": "1"}, 1, 2, 1, 100),
    ],
)
def test_every_form_becomes_nodes_gpus_cpus_and_memory(
    fields: dict[str, str], n: int, k: int, cpus: int | None, mem: int | None
) -> None:
    demand = on_fleet(request_of(submit(**fields)), FLEET)

    assert (demand.n, demand.k, demand.cpus, demand.mem) == (n, k, cpus, mem)


TWO_NODES = {"min_nodes": "2", "max_nodes": "2"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tres_per_socket": "gres/gpu:1"}, "sockets"),
        ({"tres_per_job": "gres/gpu:1", "sockets_per_node": "2"}, "sockets"),
        ({"tres_per_job": "gres/gpu:1", "reservation": "r1"}, "reservation"),
        ({"tres_per_job": "gres/gpu:1", "prefer": "rack1"}, "--prefer"),
        ({"tres_per_job": "gres/gpu:1", "slurms_own": "--contiguous,--tmp"}, "with --contiguous and --tmp only Slurm"),
        ({"tres_per_job": "gres/gpu:1", "threads_per_core": "2"}, "2 threads per core"),
        ({"tres_per_job": "gres/gpu:1", "partition": "gpu,nope"}, "partition nope"),
        ({"tres_per_job": "gres/gpu:1", "partition": "nope"}, "partition nope"),
        ({"tres_per_job": "gres/gpu:1", "features": "a|b&c"}, "more than features joined by & and (a|b)"),
        ({"tres_per_job": "gres/gpu:1", "features": "[a|b]"}, "more than features joined by & and (a|b)"),
        ({"tres_per_job": "gres/gpu:1", "features": "x|y"}, "no node has the GPU model or feature x|y"),
        ({"tres_per_job": "gres/gpu:1", "features": "rack9"}, "no node has the GPU model or feature rack9"),
        (
            {"tres_per_job": "gres/gpu:1", "min_nodes": "1", "max_nodes": "2"},
            "range of 1 to 2 nodes is Slurm's to settle; -N with one",
        ),
        ({"tres_per_job": "gres/gpu:3", "min_nodes": "2", "max_nodes": "2"}, "same on each of 2 nodes"),
        ({"tres_per_job": "gres/gpu:12"}, "heterogeneous job"),
        ({"tres_per_node": "gres/gpu:9"}, "9 GPUs"),
        ({"tres_per_node": "gres/gpu:1,gres/nic:1"}, "gres/nic:1"),
        ({"tres_per_node": "gres/gpu:a100:1"}, "a100"),
        ({"tres_per_task": "gres/gpu=1"}, "number of tasks"),
        ({"tres_per_job": "gres/gpu:2", "ntasks_per_tres": "1", "num_tasks": "4"}, "does not agree"),
        (
            {"tres_per_job": "gres/gpu:2", "cpus_per_tres": "gres/gpu:5", "num_tasks": "3"},
            "3 tasks cannot share the 10",
        ),
        (
            {"tres_per_node": "gres/gpu:2", **TWO_NODES, "num_tasks": "6", "pn_min_cpus": "10"},
            "--mincpus with more CPUs",
        ),
        ({"tres_per_job": "gres/gpu:2", "pn_min_cpus": "6"}, "--mincpus with more CPUs"),
        (
            {"tres_per_job": "gres/gpu:2", "tres_per_node": "gres/gpu:1", "pn_min_cpus": "4"} | TWO_NODES,
            "--mincpus with",
        ),
        ({"tres_per_job": "gres/gpu:4", **TWO_NODES, "num_tasks": "5"}, "same number on each of 2 nodes"),
        (
            {"tres_per_node": "gres/gpu:1", "array": "1-2", "num_tasks": "1", "ntasks_per_node": "2"},
            "fewer tasks than --ntasks-per-node",
        ),
        (
            {"tres_per_node": "gres/gpu:2", "cpus_per_tres": "gres/gpu:3", "num_tasks": "1", "ntasks_per_node": "2"},
            "CPUs for each GPU, with fewer tasks than --ntasks-per-node",
        ),
        (
            {"tres_per_job": "gres/gpu:2", "ntasks_per_tres": "1", "num_tasks": "2", "min_cpus": "4"},
            "more CPUs than its tasks",
        ),
        (
            {"tres_per_job": "gres/gpu:2", "ntasks_per_tres": "1", "num_tasks": "2", "min_cpus": "3"}
            | {"cpus_per_task": "3"},
            "fewer CPUs than its tasks",
        ),
        ({"tres_per_job": "gres/gpu:1", "cpus_per_tres": "gres/gpu:3", "num_tasks": "5"}, "--cpus-per-gpu=3"),
        ({"tres_per_job": "gres/gpu:1", "cpus_per_tres": "gres/gpu:1", "pn_min_cpus": "4"}, "--cpus-per-gpu=1"),
        ({"tres_per_node": "gres/gpu:2", "ntasks_per_tres": "1", "num_tasks": "2"}, "--ntasks-per-gpu"),
        ({"ntasks_per_tres": "1", "num_tasks": "2"}, "--ntasks-per-gpu without a number of GPUs"),
        ({"tres_per_job": "gres/gpu:0"}, "no GPUs"),
        # What no node can hold by CPUs or memory is never pinned to one.
        ({"tres_per_job": "gres/gpu:2", "num_tasks": "40"}, "40 CPUs"),
        ({"tres_per_job": "gres/gpu:2", "mem_per_node": "65000"}, "65000 MB"),
        (
            {"tres_per_job": "gres/gpu:1", "req_nodes": "n1,n2", "min_nodes": "1", "max_nodes": "1"},
            "--nodelist names 2",
        ),
    ],
)
def test_what_slurm_does_better_is_left_to_it_with_the_reason(fields: dict[str, str], reason: str) -> None:
    with pytest.raises(LeftToSlurm) as caught:
        on_fleet(request_of(submit(**fields)), FLEET)

    assert reason in str(caught.value)


def test_a_pin_on_several_nodes_replaces_the_tie_between_cpus_and_gpus() -> None:
    fields = submit(tres_per_node="gres/gpu:2", cpus_per_tres="gres/gpu:3", min_cpus="12", min_nodes="2", max_nodes="2")

    demand = on_fleet(request_of(fields), FLEET)

    assert (demand.written.min_cpus, demand.written.min_cpus_per_node) == (12, 6)


def test_cpus_are_whole_cores() -> None:
    threaded = fleet(reading([node("n1", threads=2)]))

    assert on_fleet(request_of(submit(tres_per_job="gres/gpu:1", cpus_per_task="3")), threaded).cpus == 4


def test_a_job_that_uses_one_thread_of_each_core_needs_as_many_cores() -> None:
    threaded = fleet(reading([node("n1", threads=2)]))

    asked = {"tres_per_job": "gres/gpu:1", "num_tasks": "2", "cpus_per_task": "3"}

    assert on_fleet(request_of(submit(**asked)), threaded).cpus == 6
    assert on_fleet(request_of(submit(**asked, threads_per_core="1")), threaded).cpus == 12
    assert on_fleet(request_of(submit(**asked, threads_per_core="2")), threaded).cpus == 6
    assert (
        on_fleet(request_of(submit(tres_per_job="gres/gpu:1", num_tasks="3", ntasks_per_core="1")), threaded).cpus == 6
    )


def test_without_any_default_memory_a_job_takes_all_of_a_node() -> None:
    bare = fleet(reading([node("n1")], memory=Memory()))

    assert on_fleet(request_of(submit(tres_per_job="gres/gpu:1")), bare).mem is None


def test_a_partitions_own_memory_and_limit_come_first() -> None:
    partition = PartitionFacts("gpu", default=True, time_limit=120, memory=Memory(per_node=777))
    fields = submit(tres_per_job="gres/gpu:1")
    del fields["time_limit"]

    demand = on_fleet(request_of(fields), fleet(reading([node("n1")], partitions=(partition,))))

    assert (demand.mem, demand.limit) == (777, 120)


@pytest.mark.parametrize(
    ("site", "fields", "reason"),
    [
        ({"cpus_by_gpu": True}, {}, "DefCpuPerGPU"),
        ({"cpus_by_gpu": True}, {"cpus_per_tres": "gres/gpu:2", "num_tasks": "1"}, ""),
        ({"cpus_by_gpu": True}, {"cpus_per_task": "2"}, ""),
        ({"one_task_per_core": True}, {"num_tasks": "2"}, "CR_ONE_TASK_PER_CORE"),
        ({"one_task_per_core": True}, {"cpus_per_tres": "gres/gpu:2"}, "CR_ONE_TASK_PER_CORE"),
        ({"one_task_per_core": True}, {"num_tasks": "1", "cpus_per_task": "4"}, ""),
        ({"counts_cpus_by_gpu": True}, {}, "DefCpuPerGPU"),
        ({"max_cpus": 8}, {"num_tasks": "9"}, "9 CPUs on a node are more than the 8"),
        ({"max_cpus": 8}, {"num_tasks": "8"}, ""),
        ({"apart": True}, {}, "partition gpu keeps its nodes or blocks apart"),
        ({"whole_nodes": True}, {"mem_per_tres": "gres/gpu:300"}, "memory for each GPU of whole nodes"),
        ({"whole_nodes": True}, {"mem_per_node": "300"}, ""),
    ],
)
def test_what_a_site_has_set_and_no_pin_can_have_is_slurms(
    site: dict[str, Any], fields: dict[str, str], reason: str
) -> None:
    of_partition = {key: value for key, value in site.items() if hasattr(PartitionFacts, key)}
    partition = replace(PartitionFacts("gpu", default=True, time_limit=3_600), **of_partition)
    here = fleet(reading([node("n1")], partitions=(partition,)))
    here = replace(here, **{key: value for key, value in site.items() if key not in of_partition})
    request = request_of(submit(tres_per_job="gres/gpu:2", **fields))

    if not reason:
        assert on_fleet(request, here).n == 1
        return
    with pytest.raises(LeftToSlurm, match=reason):
        on_fleet(request, here)


@pytest.mark.parametrize(
    ("kept", "tasks", "reason"),
    [((2, 2), 4, ""), ((2, 2), 5, "5 CPUs beside 2 GPUs of a node"), ((0, 2), 5, "5 CPUs beside"), ((0, 0), 5, "")],
)
def test_cores_that_other_gpus_keep_are_slurms_to_count(kept: tuple[int, int], tasks: int, reason: str) -> None:
    here = fleet(reading([node(f"n{number}", cpus_kept=cpus) for number, cpus in enumerate(kept, 1)]))
    request = request_of(submit(tres_per_job="gres/gpu:2", num_tasks=str(tasks)))

    if not reason:
        assert on_fleet(request, here).n == 1
        return
    with pytest.raises(LeftToSlurm, match=reason):
        on_fleet(request, here)


@pytest.mark.parametrize(("gpus", "tasks", "bound"), [(2, 4, True), (2, 5, True), (2, 5, False), (8, 16, True)])
def test_a_job_that_is_bound_to_the_cores_beside_its_gpus_gets_a_place_only_with_few(
    gpus: int, tasks: int, *, bound: bool
) -> None:
    """With --gres-flags=enforce-binding Slurm gives a place on GPUs of one socket no cores of the other."""
    fields = {"enforce_binding": "1"} if bound else {}
    request = request_of(submit(tres_per_job=f"gres/gpu:{gpus}", num_tasks=str(tasks), **fields))
    here = fleet(reading([node("n1", cpus=16)]))

    if not bound or tasks <= 2 * gpus:
        assert on_fleet(request, here).n == 1
        return
    with pytest.raises(LeftToSlurm, match=r"5 CPUs beside 2 GPUs of a node .*enforce-binding"):
        on_fleet(request, here)


def test_cores_that_gpus_keep_leave_no_packed_job_to_slurm() -> None:
    here = fleet(reading([node("n1", cpus_kept=2, shards=0xFF)]))
    request = request_of(submit(num_tasks="5", **{"flag.gpu-share": "50"}))

    assert on_fleet(request, here).share is not None


def test_numbers_that_are_none_are_errors_that_name_their_key() -> None:
    with pytest.raises(FormatError, match="num_tasks"):
        request_of(submit(tres_per_job="gres/gpu:1", num_tasks="-3"))


def test_a_node_without_topology_is_named() -> None:
    with pytest.raises(LeftToSlurm, match="no topology file for n1"):
        on_fleet(request_of(submit(tres_per_job="gres/gpu:1")), fleet(reading([node("n1")]), {}))


def test_gpus_without_types_of_their_own_are_named() -> None:
    with pytest.raises(LeftToSlurm, match="n1 has GPUs without a GRES type"):
        on_fleet(request_of(submit(tres_per_job="gres/gpu:1")), fleet(reading([node("n1", gpus=0, loose=8)])))


MIXED = fleet(
    reading(
        [
            node("n1", features=frozenset({"rack1", "h100"})),
            node("n2", features=frozenset({"rack1", "a6000"}), partitions=frozenset({"gpu", "old"})),
            node("n3", gpus=4, features=frozenset({"h100"})),
        ],
        partitions=(PartitionFacts("gpu", default=True, time_limit=3_600), PartitionFacts("old", time_limit=3_600)),
    ),
    {"n1": "h100", "n2": "a6000"},
)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"tres_per_job": "gres/gpu:2", "features": "h200"},
            "no node has the GPU model or feature h200; GPU models here: a6000, h100",
        ),
        (
            {"tres_per_job": "gres/gpu:2", "features": "rack1&h200"},
            "no node has the GPU model or feature h200; GPU models here: a6000, h100",
        ),
        (
            {"tres_per_job": "gres/gpu:2", "features": "h100", "partition": "old"},
            "no node of partition old has the GPU model or feature h100; GPU models here: a6000",
        ),
        (
            {"tres_per_job": "gres/gpu:16", "features": "h100"},
            "no node of partition gpu holds 16 h100 GPUs; the largest has 8",
        ),
        (
            {"tres_per_node": "gres/gpu:16", "features": "h100", "min_nodes": "2", "max_nodes": "2"},
            "no node of partition gpu holds 16 h100 GPUs; the largest has 8",
        ),
        ({"tres_per_node": "gres/gpu:9"}, "no node of partition gpu holds 9 GPUs; the largest has 8"),
        (
            {"tres_per_job": "gres/gpu:9", "features": "rack1&a6000"},
            "no node of partition gpu holds 9 a6000 GPUs; the largest has 8",
        ),
    ],
)
def test_what_no_node_has_is_named(fields: dict[str, str], sentence: str) -> None:
    with pytest.raises(Impossible) as caught:
        on_fleet(request_of(submit(**fields)), MIXED)

    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "fields",
    [
        {"tres_per_job": "gres/gpu:12", "features": "h100"},
        {"tres_per_job": "gres/gpu:12"},
        {"tres_per_job": "gres/gpu:2", "num_tasks": "40"},
        {"tres_per_job": "gres/gpu:1", "features": "h100&a6000"},
    ],
)
def test_what_slurm_might_start_on_other_nodes_is_not_called_impossible(fields: dict[str, str]) -> None:
    with pytest.raises(LeftToSlurm) as caught:
        on_fleet(request_of(submit(**fields)), MIXED)

    assert not isinstance(caught.value, Impossible)


def test_at_most_eight_models_are_named() -> None:
    nodes = [node(f"n{i}", features=frozenset({f"m{i}"})) for i in range(10)]
    many = fleet(reading(nodes), {one.name: "h100" for one in nodes})
    machines = tuple(replace(one, model=f"m{i}") for i, one in enumerate(many.machines) if one)

    with pytest.raises(Impossible, match=r"m0, m1, m2, m3, m4, m5, m6, m7 and 2 more$"):
        on_fleet(request_of(submit(tres_per_job="gres/gpu:1", features="h200")), replace(many, machines=machines))


def test_without_any_model_none_is_named() -> None:
    with pytest.raises(Impossible, match=r"feature h200$"):
        on_fleet(request_of(submit(tres_per_job="gres/gpu:1", features="h200")), FLEET)


def test_the_models_of_nodes_that_slurm_alone_fills_are_named_too() -> None:
    l40s = node("n2", gpus=0, loose=4, seats=0, models=frozenset({"l40s"}), features=frozenset({"l40s"}))
    both = fleet(reading([node("n1", features=frozenset({"h100"})), l40s]), {"n1": "h100"})

    with pytest.raises(Impossible, match=r"feature nosuch; GPU models here: h100, l40s$"):
        on_fleet(request_of(submit(tres_per_job="gres/gpu:2", features="nosuch")), both)


RACKS = fleet(
    reading(
        [
            node("n1", features=frozenset({"h100", "rack1"})),
            node("n2", features=frozenset({"h100", "rack2"})),
            node("n3", features=frozenset({"a6000", "rack3"})),
            node("n4", features=frozenset({"h100", "rack3"})),
        ]
    )
)


@pytest.mark.parametrize(
    ("constraint", "nodes"),
    [
        ("rack1|rack3", ["n1", "n3", "n4"]),
        ("rack1|elsewhere", ["n1"]),
        ("(rack1|rack3)&h100", ["n1", "n4"]),
        ("h100&(rack1|rack2|rack3)", ["n1", "n2", "n4"]),
        ("(rack2|rack3)&(h100|a6000)", ["n2", "n3", "n4"]),
    ],
)
def test_each_node_meets_each_condition_by_one_of_its_alternatives(constraint: str, nodes: list[str]) -> None:
    demand = on_fleet(request_of(submit(tres_per_job="gres/gpu:2", features=constraint)), RACKS)

    assert [name for name, may in zip(RACKS.names, demand.candidates, strict=True) if may] == nodes
