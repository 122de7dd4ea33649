"""A request of any size that becomes one for one task with one GPU, and its part of a node."""

import functools
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import building

DATA = Path(__file__).parents[1] / "data"
ALWAYS = {
    "nodes": "1", "ntasks": "1", "kill-on-invalid-dep": "yes", "output": "slurm-%j.out.preflight",
}  # fmt: skip


@functools.cache
def program() -> Path:
    names = ("cli_filter/preflight_shrink.c", "text/tres.c", "text/tres_element.c", "text/text.c")
    sources = [DATA / "sbatch" / "shrink.c", *(building.PLUGINS / name for name in names)]
    return building.built("shrink", sources, (DATA / "stepd", building.PLUGINS))


def shrink(words: dict[str, str], seconds: int = 600, pool: str = "") -> tuple[int, dict[str, str]]:
    """How many GPUs the job has, and what its pre-flight asks for."""
    command = [str(program()), str(seconds), *(f"{name}={value}" for name, value in words.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "POOL": pool})
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    return int(done.stdout.split("\n", 1)[0].removeprefix("gpus=")), {
        name: value for name, value in found.items() if name != "gpus"
    }


@pytest.mark.parametrize(
    ("words", "gpus", "left"),
    [
        ({"gpus": "32"}, 32, {"gres": "gpu:1"}),
        ({"gres": "gres/gpu:a100:8,gres/nic:1", "nodes": "4"}, 32, {"gres": "gpu:a100:1,gres/nic:1"}),
        ({"gpus-per-node": "8", "nodes": "4-4", "exclusive": "exclusive", "segment": "2"}, 32, {"gres": "gpu:1"}),
        ({"gpus-per-task": "2", "ntasks": "8"}, 16, {"gres": "gpu:1"}),
        ({"gpus-per-task": "2", "tres-per-task": "gres/gpu:2", "ntasks": "8"}, 16, {"gres": "gpu:1"}),
        ({"ntasks-per-gpu": "2", "ntasks": "8", "nodelist": "n[1-4]"}, 4, {"gres": "gpu:1"}),
        ({"tres-per-task": "gres/gpu:2", "ntasks": "4"}, 8, {"gres": "gpu:1"}),
        ({"gpus-per-socket": "2", "mincpus": "64"}, 2, {"gres": "gpu:1"}),
        (
            {"gpus-per-node": "8", "nodes": "2", "ntasks-per-node": "1", "cpus-per-task": "96", "mem": "512G"},
            16,
            {"gres": "gpu:1", "cpus-per-task": "12", "mem": "65536"},
        ),
        (
            {"gpus-per-node": "8", "nodes": "2", "ntasks-per-node": "8", "cpus-per-task": "12", "mem": "1000"},
            16,
            {"gres": "gpu:1", "cpus-per-task": "12", "mem": "125"},
        ),
        ({"gpus": "4", "mem": "0?", "mem-per-gpu": "10G"}, 4, {"gres": "gpu:1", "mem-per-gpu": "10G"}),
        ({"gpus": "2", "cpus-per-task": "3"}, 2, {"gres": "gpu:1", "cpus-per-task": "2"}),
    ],
)
def test_one_gpu_and_its_part_of_the_node(words: dict[str, str], gpus: int, left: dict[str, str]) -> None:
    found, asked = shrink(words)
    assert found == gpus
    assert asked == {**ALWAYS, "time": "11", **left}


def test_what_is_the_jobs_alone_is_left_away_and_what_the_script_needs_stays() -> None:
    kept = {
        "dependency": "afterok:7",
        "begin": "now+60",
        "account": "a",
        "qos": "q",
        "constraint": "h100",
        "licenses": "x",
        "mail-type": "END",
    }
    _, asked = shrink({"gpus": "8", "signal": "USR1@60", "time-min": "5", **kept})
    assert asked == {**ALWAYS, "time": "11", "gres": "gpu:1", **kept}


def test_its_file_is_found_beside_the_jobs() -> None:
    _, asked = shrink({"gpus": "8", "output": "logs/%x-%j.log", "error": "elsewhere", "job-name": "llm"})
    assert asked["output"] == "logs/%x-%j.log.preflight"
    assert "error" not in asked
    assert asked["job-name"] == "llm"
    assert shrink({"gpus": "8", "output": "/dev/null"})[1]["output"] == "/dev/null"


def test_a_step_takes_the_one_gpu_that_there_is() -> None:
    words = {"nodes": "4", "ntasks": "32", "gpus-per-task": "1", "gpu-bind": "single:1", "cpus-per-task": "12"}
    more = {"mem": "100", "relative": "1", "exact": "", "nodelist": "n1", "gres": "gpu:8"}
    done = subprocess.run(
        [program(), "1", *(f"{name}={value}" for name, value in (words | more).items())],
        capture_output=True, text=True, check=True, env={**os.environ, "STEP": "1", "SLURM_CPUS_ON_NODE": "4"},
    )  # fmt: skip
    assert sorted(done.stdout.splitlines()[1:]) == ["cpus-per-task=4", "nodes=1", "ntasks=1", "overlap="]


@pytest.mark.parametrize(("seconds", "minutes"), [(1, "2"), (60, "2"), (61, "3"), (600, "11")])
def test_slurms_own_limit_is_a_minute_behind_the_runners(seconds: int, minutes: str) -> None:
    assert shrink({"gpus": "8"}, seconds)[1]["time"] == minutes


def test_the_pool_of_a_site_is_where_it_goes() -> None:
    words = {"gpus": "8", "partition": "big", "reservation": "r"}
    assert shrink(words)[1]["partition"] == "big"
    _, asked = shrink(words, pool="small")
    assert asked["partition"] == "small"
    assert "reservation" not in asked


NUMBERS = st.integers(1, 64).map(str)


@given(
    st.dictionaries(
        st.sampled_from(
            ["gpus", "gpus-per-node", "gpus-per-task", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "mem"]
        ),
        NUMBERS,
    )
)
def test_it_never_asks_for_more_than_the_job(words: dict[str, str]) -> None:
    _, asked = shrink(words)
    assert (asked["nodes"], asked["ntasks"], asked["gres"]) == ("1", "1", "gpu:1")
    for name in ("cpus-per-task", "mem"):
        assert 1 <= int(asked.get(name, "1")) <= int(words.get(name, "1"))
