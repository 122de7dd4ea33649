# SPDX-License-Identifier: Apache-2.0
"""Heterogeneous jobs: each component has a place of its own, and steps span them."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from policy.formats import segment as segments
from tests.examples import SEED, examples

from .harness import PROBE, Slurm, job_id, seen, until
from .scripted import place, scripted

PROBE_SH = "/home/tests/probe.sh"
FIRST, SECOND = ("n1", (1, 3)), ("n2", (5,))
REPLIES = (place("n1", "1,3"), place("n2", "5"))
STEPS = {
    f"srun --het-group=0,1 {PROBE_SH}": [FIRST, SECOND],
    f"srun --het-group=1 {PROBE_SH}": [SECOND],
    f"srun {PROBE_SH}": [FIRST],
    f"srun --het-group=0 {PROBE_SH} : --het-group=1 {PROBE_SH}": [FIRST, SECOND],
    f"srun -n1 --het-group=0 --gpus=1 {PROBE_SH}": [("n1", (1,))],
}


def submit(slurm: Slurm, body: str, first: str = "--gpus=2", second: str = "--gpus=1") -> int:
    """A batch job of two components; its id, which is that of the first."""
    common = "#SBATCH -t 5 -o /home/tests/%j.out"
    script = f"#!/bin/bash\n{common} {first}\n#SBATCH hetjob\n{common} {second}\n{body}\n"
    return job_id(slurm.target.run(["sbatch"], stdin=script))


def where(text: str) -> list[tuple[str, tuple[int, ...]]]:
    return sorted((probe.node, probe.gpus) for probe in seen(text))


def test_each_component_starts_on_its_own_gpus_and_steps_span_them(slurm: Slurm) -> None:
    body = "\n".join(f"echo STEP; {step}" for step in STEPS)
    with scripted(slurm, *REPLIES):
        job = submit(slurm, f"{PROBE}\n{body}")
        records = [slurm.show(job), slurm.show(job + 1)]
        batch, *steps = slurm.finish(job).split("STEP")

    assert [record["ReqNodeList"] for record in records] == ["n1", "n2"]
    # The one form that a pin can be written in again, although only the first component has the script.
    assert [record["TresPerNode"] for record in records] == ["gres/gpu:g1:1,gres/gpu:g3:1", "gres/gpu:g5:1"]
    assert where(batch) == [FIRST]
    assert dict(zip(STEPS, map(where, steps), strict=True)) == STEPS


def test_components_with_gpus_for_each_task(slurm: Slurm) -> None:
    with scripted(slurm, place("n1", "1,3"), place("n2", "5,6")):
        form = "-n2 --gpus-per-task=1"
        job = submit(slurm, f"srun --het-group=0,1 {PROBE_SH}", form, form)
        assert where(slurm.finish(job)) == [("n1", (1,)), ("n1", (3,)), ("n2", (5,)), ("n2", (6,))]


def test_components_without_a_script(slurm: Slurm) -> None:
    with scripted(slurm, *REPLIES):
        words = ["srun", "-t", "5", "--gpus=2", PROBE_SH, ":", "--gpus=1", PROBE_SH]
        assert where(slurm.target.run(words).out) == [FIRST, SECOND]
        words = ["salloc", "-t", "5", "--gpus=2", ":", "--gpus=1", "srun", "--het-group=0,1", PROBE_SH]
        assert where(slurm.target.run(words).out) == [FIRST, SECOND]


def test_berthd_is_told_which_nodes_the_other_components_have(slurm: Slurm) -> None:
    """Slurm gives no node to two components, so a second one planned there would wait for ever."""
    with scripted(slurm, *REPLIES):
        submit(slurm, "true", second="--gpus=1 -x n4")
        slurm.submit("--gpus=2", "-x", "n3")
        requests = slurm.target.run(["cat", "/tmp/scripted.log"], user="root").out.split("berth/1 submit\n")[1:]
    excluded = [dict(line.split("=", 1) for line in each.split()).get("exc_nodes") for each in requests]
    assert excluded == [None, "n4,n1", "n3"]


def test_a_change_of_all_components_leaves_each_its_own_request(slurm: Slurm) -> None:
    """Slurm hands one change to each component in turn, as the plugin has completed it for the one before."""
    job = submit(slurm, "true", "-H -N1 --gpus=2 --extra=one", "-H -N1 --gpus=1 --extra=two -w n4")
    slurm.passes()
    slurm.target.run(["scontrol", "update", f"JobId={job}", "MinMemoryNode=300"])
    slurm.passes()
    records = [slurm.show(job), slurm.show(job + 1)]
    assert [record["TresPerJob"] for record in records] == ["gres/gpu:2", "gres/gpu:1"]
    assert [record["MinMemoryNode"] for record in records] == ["300M", "300M"]
    assert [record["Extra"].partition("[")[0] for record in records] == ["one", "two"]
    assert records[1]["ReqNodeList"] == "n4"


PASS = {"verb": "pass"}
FLAGS = {
    "locality": ("node", "leaf@10"),
    "app-class": ("memory", "mixed"),
    "gpu-tier": ("guaranteed", "exclusive"),
    "gpu-share": ("30", "20"),
    "gpu-mem": ("2G", "100"),
    "movable": ("", "10"),
    "retry": ("auto", "2"),
    "on-hang": ("tell", "requeue"),
}
"""Two values of each flag that may stand in a part; a heterogeneous job has no pre-flight."""
Parts = Sequence[dict[str, str]]
KNOWN: list[Parts] = [
    [{"gpu-share": "30"}, {}],
    [{}, {"gpu-share": "30"}],
    [{"gpu-share": "30", "gpu-mem": "2G"}, {"gpu-share": "20"}, {}],
    [{"movable": "", "gpu-tier": "guaranteed"}, {"retry": "auto"}, {"movable": "10"}],
    [{"locality": "node"}, {}, {"locality": "leaf@10"}],
]


def drawn_parts(count: int) -> Iterator[Parts]:
    draw = random.Random(f"{SEED}-parts")
    for _ in range(count):
        names = draw.sample(sorted(FLAGS), 3)
        yield [
            {name: draw.choice(FLAGS[name]) for name in names if draw.random() < 0.5}
            for _ in range(draw.choice((2, 3)))
        ]


def words(part: dict[str, str]) -> list[str]:
    return ["-t5", "--gpus=1", *(f"--{name}={value}" if value else f"--{name}" for name, value in part.items())]


def command(way: str, parts: Parts) -> tuple[list[str], str]:
    """The words that ask for these parts, and what is written into their standard input."""
    if way == "#SBATCH":
        lines = "\n#SBATCH hetjob\n".join(f"#SBATCH {shlex.join(words(part))}" for part in parts)
        return ["sbatch", "-o/dev/null"], f"#!/bin/bash\n{lines}\ntrue\n"
    joined = [word for part in parts for word in (":", *words(part), *(["true"] if way == "srun" else []))][1:]
    if way == "sbatch":
        return [way, "-o/dev/null", *joined], "#!/bin/bash\ntrue\n"
    return [way, *joined, *(["true"] if way == "salloc" else [])], ""


@pytest.mark.parametrize("way", ["#SBATCH", "sbatch", "salloc", "srun"])
def test_a_flag_of_one_part_is_no_flag_of_another(slurm: Slurm, way: str) -> None:
    """Slurm's own commands hand a flag on to all parts behind the one that has it."""
    with scripted(slurm, PASS, PASS, PASS):
        for parts in [*KNOWN, *drawn_parts(examples(4))]:
            slurm.target.run(["sh", "-c", ": >/tmp/scripted.log"], user="root")
            asked, script = command(way, parts)
            slurm.target.run(asked, stdin=script)
            assert flags_told(slurm) == [*map(as_told, parts)], asked


def test_what_the_environment_says_holds_for_all_parts(slurm: Slurm) -> None:
    """A part's own flag has precedence, for that part only."""
    parts: Parts = [{"gpu-share": "30"}, {}, {"locality": "node"}]
    name = "SLURM_SPANK__SLURM_SPANK_OPTION_berth_locality=leaf"
    with scripted(slurm, PASS, PASS, PASS):
        asked, script = command("sbatch", parts)
        slurm.target.run(["env", name, *asked], stdin=script)
        told = flags_told(slurm)
    assert told == [{"gpu-share": "30", "locality": "leaf"}, {"locality": "leaf"}, {"locality": "node"}]


def as_told(part: dict[str, str]) -> dict[str, str]:
    return {name: value or "" for name, value in part.items()}


def flags_told(slurm: Slurm) -> list[dict[str, str]]:
    """The flags of each part, as berthd was told them."""
    requests = slurm.target.run(["cat", "/tmp/scripted.log"], user="root").out.split("berth/1 submit\n")[1:]
    found = []
    for request in requests:
        fields = dict(line.split("=", 1) for line in request.split("\n") if "=" in line)
        found.append({name[5:]: value for name, value in fields.items() if name.startswith("flag.")})
    return found


def place_of(slurm: Slurm, component: int) -> dict[str, str] | None:
    """The component's segment, once it has a place: on a busy machine that may be after its submission."""
    segment = segments.fields(slurm.comment(component))
    return dict(segment) if segment is not None and segment["state"] == "placed" else None


def test_berthd_plans_each_component(slurm: Slurm) -> None:
    job = submit(slurm, f"srun --het-group=0,1 {PROBE_SH}", "--gpus=4", "--gpus=2")
    planned = []
    for component in (job, job + 1):
        segment = until("the component to have a place", partial(place_of, slurm, component))
        planned.append((segment["nodes"], tuple(int(gpu) for gpu in segment["gpus"].split(","))))
    assert planned[0][0] != planned[1][0]
    assert where(slurm.finish(job)) == sorted(planned)


def test_a_waiting_component_does_not_end_on_the_node_of_another(slurm: Slurm) -> None:
    """All but one node are taken when the job comes; it starts when a second one is free."""
    holders = {node: slurm.hold_gpus(node, range(8)) for node in ("n2", "n3", "n4")}
    job = submit(slurm, f"srun --het-group=0,1 {PROBE_SH}", "--gpus=2", "--gpus=2")
    slurm.target.run(["scancel", str(holders["n3"])], user="root")
    until("the job to end", lambda: slurm.state(job) == "COMPLETED" or None, 60)
    assert {node for node, _ in where(slurm.finish(job))} == {"n1", "n3"}


def test_a_user_may_ask_by_the_name_of_a_component_or_a_task(slurm: Slurm) -> None:
    parts = submit(slurm, "sleep 100")
    array = slurm.submit("--gpus=1", "-n1", "--mem=10", "--array=1-3%2", body="exec sleep 100")

    def told(name: str) -> dict[str, object]:
        lines = slurm.target.run(["berth", "why", name, "--json"], user="alice").out
        found: dict[str, object] = json.loads(lines)
        return found

    slurm.wait_state(parts + 1, {"RUNNING"})
    assert told(f"{parts}+1")["job"] == parts + 1
    until("two tasks to run", lambda: states_of(slurm, array).count("RUNNING") == 2 or None)
    shown = [str(told(f"{array}_{task}")["slurm_state"]) for task in (1, 2, 3)]
    assert sorted(shown) == ["PENDING", "RUNNING", "RUNNING"]
    refused = slurm.target.run(["berth", "why", f"{array}_9"], user="alice", check=False)
    assert "is not known to Slurm" in refused.err


def states_of(slurm: Slurm, job: int) -> list[str]:
    return slurm.target.run(["squeue", "-h", "-r", "-j", str(job), "-o", "%T"], user="root").out.split()
