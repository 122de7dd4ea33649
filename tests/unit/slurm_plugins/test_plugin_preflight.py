# SPDX-License-Identifier: Apache-2.0
"""A request of any size that becomes one for one task with one GPU, and its part of a node."""

import functools
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import building
from tests.unit.plugin_whole import sources_of

DATA = Path(__file__).parents[1] / "data"
ALWAYS = {
    "nodes": "1", "ntasks": "1", "kill-on-invalid-dep": "yes", "output": "slurm-%j.out.preflight",
}  # fmt: skip


@functools.cache
def program() -> Path:
    return built("shrink", "text/tres.c", "text/tres_element.c", "text/text.c")


def built(name: str, *others: str) -> Path:
    own = [DATA / "sbatch" / f"{name}.c", DATA / "sbatch" / "sbatch_options.c"]
    sources = [*own, *(building.PLUGINS / one for one in ("cli_filter/preflight_shrink.c", *others))]
    return building.built(name, sources, (DATA / "stepd", DATA / "sbatch", building.PLUGINS))


@functools.cache
def whole() -> Path:
    return built("sbatch", "cli_filter/preflight.c", *sources_of("CLIENT"), *sources_of("PURE"))


def sbatch(tmp_path: Path, *words: str, child: str = "taken", conf: str = "") -> tuple[str, str]:
    """What sbatch says and what the job then asks for; both are empty where it submits nothing."""
    (tmp_path / "berth.conf").write_text(conf)
    env = {"CHILD": child, "BERTH_CONF": str(tmp_path / "berth.conf")}
    done = subprocess.run([whole(), *words], capture_output=True, text=True, check=False, env=env)
    return done.stderr, done.stdout


WITHOUT = "sbatch: berth: no pre-flight: {}; the job goes on without [BERTH-849]\n"


@pytest.mark.parametrize(
    ("child", "why"),
    [
        ("sbatch: error: berth: there is no partition big.\nsbatch: error: more\n", "there is no partition big"),
        ("sbatch: error: Batch job submission failed: Invalid qos\n", "Batch job submission failed: Invalid qos"),
        ("late", "Slurm did not take it in time"),
        ("", "sbatch ended without a reason"),
    ],
)
def test_a_pre_flight_that_is_not_submitted_says_why(tmp_path: Path, child: str, why: str) -> None:
    said, asked = sbatch(tmp_path, "gpus=2", "preflight=", child=child)

    assert said == WITHOUT.format(why)
    assert asked == "gpus=2\n"


def test_the_job_depends_on_its_pre_flight(tmp_path: Path) -> None:
    said, asked = sbatch(tmp_path, "gpus=2", "dependency=afterok:7", "preflight=5,must")

    assert said.startswith("sbatch: berth: pre-flight 41 runs first, on one GPU for at most 300 s; if it fails")
    assert asked == "gpus=2\ndependency=afterany:41,afterok:7\n"


ABOVE = "[preflight]\nabove = 1\n"
HET = ["gpus=2", ":", "gpus=4"]


def test_a_part_of_a_job_speaks_for_the_parts_behind_it(tmp_path: Path) -> None:
    assert sbatch(tmp_path, "preflight=no", *HET, conf=ABOVE) == ("", "gpus=4\n")
    assert sbatch(tmp_path, *HET, conf=ABOVE)[0] == WITHOUT.format("a heterogeneous job has none [BERTH-854]")
    refused = sbatch(tmp_path, "preflight=no", *HET, "preflight=,must", conf=ABOVE)
    assert "a heterogeneous job has none; nothing is submitted" in refused[0]
    assert refused[1] == ""


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
