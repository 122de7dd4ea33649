# SPDX-License-Identifier: Apache-2.0
"""Records of calibration runs: what is written is read, what is wrong is named, what a node can judge is judged."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.calibrate.runs import FORMAT, GpuVisit, KernelRun, Visit, append, decode, encode, load, verdict
from topology.errors import TopologyFileError

RUN = KernelRun("compute", 151.2, mad_ms=0.1, samples=80, kernel="mma", seconds=10.0, sm_mhz=1410.0, power_w=298.0)
GPU = GpuVisit(0, "GPU-a", "V100", "580.1", 300.0, runs=(RUN,))
VISIT = Visit("n1", "2026-11-21T10:00:00Z", (GPU, replace(GPU, position=1, uuid="GPU-b")))

sizes = st.floats(0.0, 1e6)
runs = st.builds(
    KernelRun,
    st.sampled_from(["compute", "mixed", "memory"]),
    st.floats(0.001, 1e6),
    sizes,
    st.integers(0, 99),
    st.integers(0, 99),
    st.text(max_size=9),
    *[sizes] * 8,
    st.lists(st.integers(1, 9), max_size=2).map(tuple),
)
gpus = st.builds(
    GpuVisit,
    st.integers(0, 15),
    st.text(max_size=9),
    st.text(max_size=9),
    st.text(max_size=9),
    sizes,
    st.lists(st.integers(1, 99), max_size=2).map(tuple),
    st.lists(runs, max_size=3).map(tuple),
)
visits = st.builds(
    Visit,
    st.text(max_size=9),
    st.just("2026-11-21T10:00:00Z"),
    st.lists(gpus, max_size=3).map(tuple),
    st.sampled_from(["together", "alone"]),
)


@settings(deadline=None)
@given(st.lists(visits, max_size=3))
def test_what_is_written_is_read(some: list[Visit]) -> None:
    assert decode([f'{{"format": "{FORMAT}"}}', *map(encode, some)]) == tuple(some)


def test_visits_are_added_and_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    append([VISIT], path)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[-40:-1])

    assert load(path) == (VISIT,)
    append([replace(VISIT, node="n2")], path)
    assert [visit.node for visit in load(path)] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "line 2: it is not JSON"),
        ("[]", "line 2: a Visit is an object with node, at, gpus, way"),
        ('{"node":"n1","at":"2026-11-21T10:00:00Z"}', "line 2: a Visit lacks some of gpus, way"),
        ('{"node":"n1","at":"noon","gpus":[]}', '"noon" is no time'),
        ('{"node":"n1","at":"2026-11-21","gpus":[],"wey":"alone"}', 'unknown key "wey", did you mean "way"?'),
        ('{"node":"n1","at":"2026-11-21","gpus":[],"way":"x"}', "key way: x does not fit"),
        ('{"node":"n1","at":"2026-11-21","gpus":[{"position":true,"uuid":""}]}', "key position: True does not fit"),
        (
            '{"node":"n1","at":"2026-11-21","gpus":[{"position":0,"uuid":"","runs":[{"app_class":"c","time_ms":0}]}]}',
            "a run needs a class and a time above 0",
        ),
        (
            '{"node":"n1","at":"2026-11-21","gpus":[{"position":0,"uuid":"","runs":[{"app_class":"c","time_ms":NaN}]}]}',
            "key time_ms: nan does not fit",
        ),
    ],
)
def test_a_wrong_record_is_named(line: str, says: str) -> None:
    with pytest.raises(TopologyFileError, match=says.replace("[", r"\[").replace("?", r"\?")):
        decode([f'{{"format": "{FORMAT}"}}', line])


def test_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyFileError, match="line 1: it should be"):
        decode(['{"format": "berth-runs/9"}'])
    with pytest.raises(TopologyFileError, match="not nothing"):
        decode([])
    with pytest.raises(TopologyFileError, match="cannot read"):
        load(tmp_path / "none")
    with pytest.raises(TopologyFileError, match="cannot write"):
        append([VISIT], tmp_path / "none" / "runs")


@pytest.mark.parametrize(
    ("gpu", "run", "wrong"),
    [
        (GPU, RUN, ""),
        (GPU, replace(RUN, foreign=(4711,)), "foreign"),
        (replace(GPU, xids=(79,)), RUN, "xid"),
        (GPU, replace(RUN, thermal_s=0.2), "throttled"),
        (GPU, replace(RUN, hw_slow_s=5.0), "throttled"),
        (GPU, replace(RUN, capped_s=10.0), ""),
        (GPU, replace(RUN, dropped=9), "outliers"),
        (GPU, replace(RUN, mad_ms=1.5), "unsteady"),
    ],
)
def test_a_run_is_judged_where_it_was_made(gpu: GpuVisit, run: KernelRun, wrong: str) -> None:
    assert verdict(gpu, run) == wrong
