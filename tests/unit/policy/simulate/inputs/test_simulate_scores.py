# SPDX-License-Identifier: Apache-2.0
"""Score tables, and the GPUs that a cluster on paper gets from them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.formats.errors import FormatError
from policy.simulate.inputs.scores import grids
from topology.errors import TopologyFileError
from topology.machines import machine
from topology.scores import FORMAT, Score, decode, decode_pal, dump, encode, load

HEAD = f"# {FORMAT}\nnode,position,uuid,class,score,runs,spread,at\n"
PAL = "GPU_ID,Node_ID,PerfVar_classA,PerfVar_classB,PerfVar_classD\n"

names = st.text("abcdefghij-0123456789", min_size=1, max_size=8)


@given(
    st.dictionaries(
        st.tuples(names, st.integers(0, 15), st.sampled_from(["compute", "mixed", "memory"])),
        st.tuples(st.floats(0.01, 100), st.integers(0, 99), st.floats(0, 9)),
    )
)
def test_what_is_written_is_read(some: dict[tuple[str, int, str], tuple[float, int, float]]) -> None:
    table = tuple(
        Score(node, position, f"GPU-{node}-{position}", kind, score, runs, spread, "2026-11-21T10:00:00Z")
        for (node, position, kind), (score, runs, spread) in some.items()
    )

    assert decode(encode(table).splitlines()) == table


def test_a_file_is_written_whole_and_read_back(tmp_path: Path) -> None:
    table = (Score("n1", 0, "GPU-a", "compute", 1.02, 5, 0.004),)
    dump(table, tmp_path / "scores.csv")

    assert load(tmp_path / "scores.csv") == table
    assert [file.name for file in tmp_path.iterdir()] == ["scores.csv"]
    with pytest.raises(TopologyFileError, match="cannot write"):
        dump(table, tmp_path / "none" / "scores.csv")
    with pytest.raises(TopologyFileError, match="cannot read"):
        load(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", 'line 1 should be "# berth-scores/1", not "nothing"'),
        ("# berth-scores/2\n", 'not "# berth-scores/2"'),
        (f"# {FORMAT}\nnode,gpu\n", "line 2 should be node,position,uuid"),
        (HEAD + "n1,0,GPU-a,compute,1.0,5,0.1\n", "line 3: 8 values are expected, 7 are there"),
        (
            HEAD + "n1,-1,GPU-a,compute,1.0,5,0.1,\n",
            'line 3, column position: a whole number from 0 on is expected, not "-1"',
        ),
        (HEAD + "n1,0,GPU-a,compute,fast,5,0.1,\n", 'column score: a number is expected, not "fast"'),
        (HEAD + "n1,0,GPU-a,compute,0,5,0.1,\n", "a score lies between 0.01 and 100, not 0"),
        (HEAD + "n1,0,GPU-a,compute,nan,5,0.1,\n", "column score"),
        (HEAD + "n1,0,GPU-a,compute,1,5,-1,\n", "column spread"),
        (HEAD + ",0,GPU-a,compute,1,5,0,\n", "node and class must not be empty"),
        (HEAD + "n1,0,GPU-a,mixed,1,5,0,\nn1,1,GPU-a,mixed,1,5,0,\n", "line 4: GPU-a has a score for mixed in line 3"),
        (HEAD + "n1,0,,mixed,1,5,0,\nn1,0,,mixed,1,5,0,\n", "line 4: n1:0 has a score for mixed in line 3"),
    ],
)
def test_a_broken_table_is_named_with_its_place(text: str, says: str) -> None:
    with pytest.raises(TopologyFileError) as caught:
        decode(text.splitlines(), "scores.csv")

    assert str(caught.value).startswith("scores.csv")
    assert says in str(caught.value)


def test_pals_table_is_read_with_our_words() -> None:
    table = decode_pal((PAL + "0,0,1.1,1.2,1.3\n1,0,2.1,2.2,2.3\n2,1,3.1,3.2,3.3\n").splitlines())

    assert [(one.node, one.position, one.app_class, one.score) for one in table[:4]] == [
        ("n0", 0, "compute", 1.1),
        ("n0", 0, "mixed", 1.2),
        ("n0", 0, "D", 1.3),
        ("n0", 1, "compute", 2.1),
    ]
    with pytest.raises(TopologyFileError, match="line 2, column PerfVar_classB"):
        decode_pal((PAL + "0,0,1.1,slow,1.3\n").splitlines())


def test_scores_fill_the_cluster_in_its_order(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    file.write_text(PAL + "0,0,1.1,1,1\n1,0,1.2,1,1\n2,1,1.3,1,1\n3,1,1.4,1,1\n")

    grid = grids([str(file)], 2, 2)["compute"]

    assert grid.tolist() == [[1.1, 1.2], [1.3, 1.4]]
    for nodes, gpus, has in ((4, 2, "2 nodes"), (2, 1, "GPU 1 of node n0")):
        with pytest.raises(FormatError, match=f"it has {has}, but the cluster has {nodes} nodes of {gpus} GPUs"):
            grids([str(file)], nodes, gpus)


def test_scores_of_real_gpus_find_them_by_uuid(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    machines = [machine("dgx-a100", "a"), machine("dgx-a100", "b")]
    moved, gone = machines[1].gpus[3].uuid, "GPU-gone"
    dump(
        [Score("a", 0, moved, "compute", 1.5), Score("a", 1, gone, "compute", 9), Score("a", 2, "", "compute", 1.2)],
        file,
    )

    grid = grids([str(file)], 2, 8, machines)["compute"]

    assert (grid[1, 3], grid[0, 2]) == (1.5, 1.2)
    assert (grid != 1).sum() == 2
    with pytest.raises(FormatError, match="class compute has scores from another file"):
        grids([str(file), str(file)], 2, 8, machines)
    dump([Score("a", 1, gone, "compute", 9)], file)
    with pytest.raises(FormatError, match="no score of any GPU of this cluster"):
        grids([str(file)], 2, 8, machines)


@pytest.fixture
def runs(tmp_path: Path) -> str:
    """Ten nodes of two GPUs; GPUs of node k take 100 + k ms in the median of three runs."""
    lines = [
        f"gpu{node}-{device},c1,{node},{device},{100 + node + off}"
        for node in range(10)
        for device in range(2)
        for off in (-50, 0, 50)
    ]
    file = tmp_path / "runs.csv"
    file.write_text("uuid,cabinet,node,device,perf\n" + "\n".join(lines) + "\n")
    return f"compute={file}"


def test_whole_nodes_are_drawn_together(runs: str) -> None:
    grid = grids([runs], 10, 2, way="nodes")["compute"]

    assert (grid[:, 0] == grid[:, 1]).all()
    assert sorted(grid[:, 0].tolist()) == pytest.approx([(100 + node) / 104.5 for node in range(10)])
    assert np.array_equal(grid, grids([runs], 10, 2, way="nodes")["compute"])
    assert not np.array_equal(grid, grids([runs], 10, 2, way="nodes", seed=1)["compute"])
    # More GPUs on a node than were measured on one: parts of two are put together.
    assert grids([runs], 7, 3, way="nodes")["compute"].shape == (7, 3)


def test_single_runs_are_wilder_than_medians(runs: str) -> None:
    single = grids([runs], 10, 2, way="one-run")["compute"]
    medians = grids([runs], 10, 2, way="median")["compute"]

    assert single.std() > 3 * medians.std()
    assert sorted(np.unique(medians).tolist()) == pytest.approx([(100 + node) / 104.5 for node in range(10)])


def test_runs_without_nodes_cannot_be_drawn_by_node(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text("uuid,perf\na,1\nb,2\n")

    with pytest.raises(FormatError, match="profile_way = median"):
        grids([f"mixed={file}"], 1, 2, way="nodes")
