# SPDX-License-Identifier: Apache-2.0
"""Pictures: current, well formed, readable, and small."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pictures import FOLDER, PICTURES, cluster
from tests.strategies import machines
from topology.drawing import draw_cluster, draw_node
from topology.drawing.places import is_mesh, panels_of, put_mesh, tints
from topology.machines import machine, names, rack
from topology.model import Gpu, Link, Machine, Nic, PathWord
from topology.network.fabric import Fabric
from topology.sets.islands import islands

SVG = "{http://www.w3.org/2000/svg}"


def near(a: int, b: int) -> PathWord:
    return "SELF" if a == b else "PIX" if a // 2 == b // 2 else "NODE" if a // 8 == b // 8 else "SYS"


SIXTEEN = Machine(
    "n1",
    "v100",
    tuple(Gpu(i, i, f"GPU-{i}", "Tesla V100-SXM3-32GB", numa=i // 8, memory_mib=32_768) for i in range(16)),
    tuple(Link(a, b, 6, 154.8, "switch") for a, b in combinations(range(16), 2)),
    tuple(tuple(near(a, b) for b in range(16)) for a in range(16)),
    nics=tuple(Nic(f"mlx5_{i}", "", i // 4, "infiniband", 12.5) for i in range(8)),
    nic_paths=tuple(
        tuple(near(gpu, 2 * nic + gpu % 2) if gpu // 2 != nic else "PIX" for nic in range(8)) for gpu in range(16)
    ),
    switches=12,
)
NODES = [*(machine(name, "n1") for name in names()), rack("gb200-nvl72", ["t1", "t2"])[0]]


def parsed(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)  # noqa: S314  our own text, written a moment ago


@dataclass(frozen=True)
class Text:
    words: str
    x: float
    y: float
    width: float
    height: float


def texts(picture: str) -> Iterator[Text]:
    for element in parsed(picture).iter(f"{SVG}text"):
        size, words = float(element.get("font-size", "")), element.text or ""
        # As wide as in a common sans-serif.
        width = 0.55 * size * len(words)
        x = float(element.get("x", "")) - {"middle": width / 2, "end": width}.get(element.get("text-anchor", ""), 0)
        yield Text(words, x, float(element.get("y", "")) - 0.75 * size, width, 0.75 * size)


def overlap(a: Text, b: Text) -> bool:
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


def assert_readable(picture: str) -> None:
    root = parsed(picture)
    width, height = map(float, root.get("viewBox", "").split()[2:])
    found = list(texts(picture))
    assert [text.words for text in found if text.x < 0 or text.x + text.width > width or text.y + 12 > height] == []
    assert [(a.words, b.words) for a, b in combinations(found, 2) if overlap(a, b)] == []


@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_in_the_documents_are_what_is_drawn(name: str) -> None:
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == PICTURES[name](), "run python -m tests.pictures"


@pytest.mark.parametrize("node", [*NODES, SIXTEEN], ids=lambda node: f"{node.model}-{node.size}-{node.domain[:4]}")
def test_no_text_hides_another_or_leaves_the_picture(node: Machine) -> None:
    assert_readable(draw_node(node))


@pytest.mark.parametrize("node", [*NODES, SIXTEEN], ids=lambda node: f"{node.model}-{node.size}-{node.domain[:4]}")
def test_a_window_of_1200_pixels_shows_a_node_whole_with_letters_to_read(node: Machine) -> None:
    root = parsed(draw_node(node))
    shown = float(root.get("width", ""))
    scale = shown / float(root.get("viewBox", "").split()[2])
    assert shown <= 1180
    assert min(float(text.get("font-size", "")) for text in root.iter(f"{SVG}text")) * scale >= 9


def test_sixteen_gpus_stand_in_one_row_of_narrow_cards() -> None:
    picture = draw_node(SIXTEEN)
    words = {text.words: text for text in texts(picture)}
    assert len({words[str(gpu)].y for gpu in range(16)}) == 1
    tips = [title.text or "" for title in parsed(picture).iter(f"{SVG}title")]
    assert all(any(f"/dev/nvidia{gpu}" in tip for tip in tips) for gpu in range(16))


def test_nics_of_no_gpu_stand_below_where_a_row_would_be_too_wide() -> None:
    words = {text.words: text for text in texts(draw_node(machine("dgx-a100", "n1")))}
    assert words["elsewhere"].y > words["NUMA node 7, CPUs 112-127,240-255"].y
    assert words["mlx5_4"].y > words["mlx5_1"].y


@pytest.mark.parametrize("nodes", [1, 40, 200, 256])
def test_nodes_without_a_fabric_carry_their_names(nodes: int) -> None:
    every = {f"gpu-{i:04}": replace(machine("hgx-h100", "x"), node=f"gpu-{i:04}") for i in range(nodes)}
    picture = draw_cluster(every, Fabric.flat(tuple(every)))
    assert_readable(picture)
    assert set(every) <= {text.words for text in texts(picture)}
    assert float(parsed(picture).get("width", "")) <= 1180


def test_no_text_of_a_cluster_hides_another() -> None:
    assert_readable(draw_cluster(*cluster()))


@pytest.mark.parametrize("node", NODES, ids=lambda node: f"{node.model}-{node.size}-{node.domain[:4]}")
def test_a_picture_shows_every_gpu_nic_and_link(node: Machine) -> None:
    picture = draw_node(node)
    words = Counter(text.words for text in texts(picture))
    tips = [title.text or "" for title in parsed(picture).iter(f"{SVG}title")]
    for gpu in node.gpus:
        assert words[f"GPU {gpu.position}"] >= 1
        assert sum(gpu.uuid in tip for tip in tips) == 1
    for nic in node.nics:
        assert words[nic.name] == 1
    switched = {end for link in node.links if link.via == "switch" for end in (link.a, link.b)}
    lines = [tip for tip in tips if "NV" in tip and "GPU " in tip and "GB/s" in tip]
    assert len(lines) == len(switched) + sum(link.via == "direct" for link in node.links)


@settings(max_examples=examples(60))
@given(machines(max_gpus=10), st.text(max_size=30))
def test_any_machine_makes_a_picture(node: Machine, problem: str) -> None:
    root = parsed(draw_node(replace(node, problems=(problem,))))
    assert root.tag == f"{SVG}svg"
    assert root.find(f"{SVG}title") is not None


def test_overlapping_text_would_be_noticed() -> None:
    picture = draw_node(NODES[0]).replace(">GPU 1<", ">GPU 1 with very many words<")
    with pytest.raises(AssertionError, match="very many words"):
        assert_readable(picture)


def test_names_from_outside_cannot_break_out_of_the_text() -> None:
    gpus = (Gpu(0, 0, 'GPU-"<script>&', name="<b>\x00\x1b[31m&amp;"),)
    picture = draw_node(Machine("n1", "</svg>", gpus, problems=("GPU 0: <a href='x'>]]>",)))
    root = parsed(picture)
    assert not {element.tag for element in root.iter()} - {
        SVG + tag for tag in ("svg", "title", "desc", "rect", "path", "text")
    }
    assert "GPU 0: <a href='x'>]]>" in {text.words for text in texts(picture)}


def test_a_picture_tells_itself_to_who_cannot_see_it() -> None:
    root = parsed(draw_node(machine("dgx-1v", "n1")))
    assert (root.get("role"), root.get("aria-labelledby")) == ("img", "title description")
    assert root.findtext(f"{SVG}title") == "n1: 8 x Tesla V100-SXM2-32GB"
    assert "GPU 0 and GPU 3: NV2, 51.6 GB/s." in (root.findtext(f"{SVG}desc") or "")


def test_a_problem_is_shown_in_words_and_on_its_gpu() -> None:
    words = [text.words for text in texts(draw_node(replace(NODES[0], problems=("GPU 4: NVLink 2 is down",))))]
    assert "GPU 4: NVLink 2 is down" in words
    assert words.count("!") == 2  # on the card and in the legend


def test_a_gpu_with_fewer_links_to_the_switches_stands_out() -> None:
    node = machine("hgx-h100", "n1")
    links = tuple(replace(one, count=17, gbps=451.5) if 3 in {one.a, one.b} else one for one in node.links)
    words = Counter(text.words for text in texts(draw_node(replace(node, links=links))))
    assert (words["NV17"], words["NV18"]) == (1, 0)
    assert words["NV17, 451.5 GB/s"] == words["NV18, 478.1 GB/s"] == 1


def test_a_machine_without_gpus_is_a_picture_too() -> None:
    assert_readable(draw_node(Machine("n1", "x", ())))


def test_cube_mesh_stands_as_two_squares_with_their_edges_side_by_side() -> None:
    node = machine("dgx-1v", "n1")
    assert is_mesh(node, panels_of(node))
    places = put_mesh(node, [(0, 1, 2, 3), (4, 5, 6, 7)])
    assert {gpu: places[gpu][1] for gpu in range(8)} == {0: 0, 1: 0, 4: 0, 5: 0, 2: 1, 3: 1, 6: 1, 7: 1}
    # 1-5 and 3-7 are next to each other, 0-4 and 2-6 are the outer ends.
    assert [abs(places[a][0] - places[b][0]) for a, b in ((1, 5), (3, 7), (0, 4), (2, 6))] == [1, 1, 3, 3]


@given(machines(max_gpus=9))
def test_a_tint_is_an_island_of_its_own_and_the_first_is_the_widest(node: Machine) -> None:
    numbers = tints(node)
    groups = [[gpu for gpu in numbers if numbers[gpu] == number] for number in sorted(set(numbers.values()))]
    for group in groups:
        assert all(node.gbps[a][b] for a, b in combinations(group, 2))
    widest = max((mask.bit_count() for mask in islands(node.shape)), default=0)
    assert (len(groups[0]) if groups else 0) == widest
    assert [len(group) for group in groups] == sorted(map(len, groups), reverse=True)


# Clusters


def large(nodes: int, leaf: int, pod: int, problems: int = 0) -> str:
    kinds = [machine("hgx-h100", "x"), machine("dgx-a100", "x")]
    every = {f"n{i}": replace(kinds[i // 3000 % 2], node=f"n{i}") for i in range(nodes)}
    for i in range(problems):
        name = f"n{i * 7919 % nodes}"
        every[name] = replace(every[name], problems=("GPU 1: NVLink 3 is down",))
    unknown, numbers = np.full(nodes, -1), np.arange(nodes)
    return draw_cluster(every, Fabric(tuple(every), unknown, numbers // leaf, numbers // pod))


def test_a_cluster_of_12500_nodes_is_a_small_picture() -> None:
    picture = large(12_500, 32, 512)
    assert len(picture) < 60_000
    assert_readable(picture)
    words = [text.words for text in texts(picture)]
    assert "Cluster of 12,500 nodes with 100,000 GPUs" in words
    assert "h100, 8 GPUs: 6,500 nodes" in words


def test_a_large_cluster_with_many_odd_nodes_stays_below_a_megabyte() -> None:
    picture = large(12_500, 32, 512, problems=1_250)
    assert len(picture) < 1_000_000
    assert "1,250 nodes with problems, crossed: berth topo show names them" in picture


def test_folding_loses_no_leaf() -> None:
    words = [text.words for text in texts(large(2_048, 32, 512))]
    assert "pod 0 and 3 more like it" in words
    assert "leaf 0 and 15 more like it" in words


def test_nodes_of_which_nothing_is_known_are_counted_by_model() -> None:
    every = {f"n{i}": replace(machine("l40s", "x"), node=f"n{i}") for i in range(1_500)}
    words = [text.words for text in texts(draw_cluster(every, Fabric.flat(tuple(every))))]
    assert "no leaf known" in words
    assert "1,500 nodes" in words


def test_an_empty_cluster_is_a_picture_too() -> None:
    assert "Cluster of 0 nodes" in draw_cluster({}, Fabric.flat(()))


def test_drawing_a_node_needs_the_standard_library_only(tmp_path: Path) -> None:
    code = """
import sys
for heavy in ("numpy", "networkx", "scipy", "ClusterShell"):
    sys.modules[heavy] = None
from topology.drawing import draw_node
from topology.machines import machine
print(len(draw_node(machine("dgx-1v", "n1"))))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=FOLDER.parents[1], capture_output=True, text=True
    )
    assert int(done.stdout) > 5_000
