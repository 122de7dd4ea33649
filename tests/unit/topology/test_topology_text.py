# SPDX-License-Identifier: Apache-2.0
"""Machines from the text of `nvidia-smi topo -m`: recorded matrices, their many spellings, and broken ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import machines
from topology.errors import TopologyFileError
from topology.model import Machine, Nic, PathWord
from topology.providers.matrix_text import parse
from topology.sets.islands import islands
from topology.sets.wiring import positions

FIXTURES = Path(__file__).parents[2] / "fixtures" / "topo-m"


def recorded(name: str) -> str:
    return (FIXTURES / f"{name}.txt").read_text()


@dataclass(frozen=True)
class Expected:
    """What a recorded matrix says, read by eye."""

    model: str
    islands: Sequence[tuple[int, ...]]
    links: set[tuple[int, float, str]]
    nics: int
    gpu0_to_nics: str
    """To the first four."""
    gpu0_to_gpus: str
    """Words to the GPUs after it; where NVLink hides one, what the NICs and NUMA nodes tell of it."""
    cpus: tuple[str, str]
    """Of the first and the last GPU."""
    numa: tuple[int, int]


ALL_8 = [tuple(range(8))]
ALL_4 = [tuple(range(4))]
PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7)]
# Public sources: msccl (dgx-1v), NVIDIA/nccl issues 1505 and 1617 (dgx-a100, h100-4), vllm-project/vllm issue 6746
# (dgx-h100), NVIDIA/k8s-test-infra issue 371 (gb200-tray), warpem/miss-alignment issue 106 (l40s), user guides of
# Polaris, Princeton and Geneva (a100-4-polaris, a100-4, a6000-pairs).
RECORDED = {
    "dgx-1v": Expected(
        "v100",
        [(0, 1, 2, 3), (4, 5, 6, 7), (0, 4), (1, 5), (2, 6), (3, 7)],
        {(1, 25.781, "direct"), (2, 51.562, "direct")},
        4,
        "PIX SYS PHB SYS",
        "PIX PHB PHB SYS SYS SYS SYS",
        ("0-19,40-59", "20-39,60-79"),
        (-1, -1),
    ),
    "dgx-a100": Expected(
        "a100",
        ALL_8,
        {(12, 309.372, "switch")},
        12,
        "PXB PXB SYS SYS",
        "PXB SYS SYS SYS SYS SYS SYS",
        ("48-63,176-191", "80-95,208-223"),
        (3, 5),
    ),
    "dgx-h100": Expected(
        "h100",
        ALL_8,
        {(18, 478.116, "switch")},
        12,
        "PXB NODE NODE NODE",
        "NODE NODE NODE SYS SYS SYS SYS",
        ("0-55,112-167", "56-111,168-223"),
        (0, 1),
    ),
    "h100-vm": Expected(
        "h100",
        ALL_8,
        {(18, 478.116, "switch")},
        0,
        "",
        "NODE NODE NODE NODE NODE NODE NODE",
        ("0-63", "0-63"),
        (0, 0),
    ),
    "a100-4-polaris": Expected(
        "a100",
        ALL_4,
        {(4, 103.124, "direct")},
        2,
        "SYS SYS",
        "SYS SYS SYS",
        ("24-31,56-63", "0-7,32-39"),
        (3, 0),
    ),
    "a100-4": Expected("a100", ALL_4, {(4, 103.124, "direct")}, 1, "NODE", "NODE SYS SYS", ("0-23", "24-47"), (0, 1)),
    "h100-4": Expected(
        "h100",
        ALL_4,
        {(6, 159.372, "direct")},
        4,
        "PIX SYS SYS SYS",
        "SYS SYS SYS",
        ("6,14,22,30", "5,13,21,29"),
        (3, 5),
    ),
    "a6000-pairs": Expected(
        "a6000",
        PAIRS,
        {(4, 56.248, "direct")},
        2,
        "SYS SYS",
        "NODE NODE NODE SYS SYS SYS SYS",
        ("0-63", "64-127"),
        (0, 1),
    ),
    # Each GPU is as near to NICs of one NUMA node as the others, though their own NUMA nodes differ.
    "a100-4-confined": Expected(
        "a100", ALL_4, {(4, 103.124, "direct")}, 3, "NODE NODE NODE", "NODE NODE NODE", ("0", ""), (0, 1)
    ),
    "a100-pcie": Expected(
        "a100",
        PAIRS[:2],
        {(12, 309.372, "direct")},
        0,
        "",
        "NODE SYS SYS",
        ("0-51,104-155", "52-103,156-207"),
        (0, 1),
    ),
    "six-gpus": Expected(
        "a100",
        [(0, 3), (1, 2), (4, 5)],
        {(12, 309.372, "direct")},
        1,
        "NODE",
        "NODE NODE SYS SYS SYS",
        ("0-27,56-83", "28-55,84-111"),
        (0, 1),
    ),
    "gb200-tray": Expected("gb200", ALL_4, {(18, 956.25, "switch")}, 0, "", "NODE SYS SYS", ("0-71", "72-143"), (0, 1)),
    "l40s": Expected("l40s", [], set(), 2, "SYS SYS", "NODE SYS SYS", ("0-95,192-287", "96-191,288-383"), (0, 1)),
}


def check(machine: Machine, expected: Expected) -> None:
    assert [positions(island) for island in islands(machine.shape)] == expected.islands
    assert {(link.count, link.gbps, link.via) for link in machine.links} == expected.links
    assert len(machine.nics) == expected.nics
    assert list(machine.nic_paths[0][:4] if machine.nics else ()) == expected.gpu0_to_nics.split()
    assert list(machine.paths[0][1:]) == expected.gpu0_to_gpus.split()
    assert (machine.gpus[0].cpus, machine.gpus[-1].cpus) == expected.cpus
    assert (machine.gpus[0].numa, machine.gpus[-1].numa) == expected.numa


def test_each_recorded_matrix_is_expected() -> None:
    assert {path.stem for path in FIXTURES.glob("*.txt")} == set(RECORDED)


def blanks(text: str) -> str:
    return text.expandtabs(8)


def underlined(text: str) -> str:
    """As a terminal gets it: the header's cells underlined one by one, or as a whole."""
    head, rest = text.split("\n", 1)
    return re.sub(r"((?:GPU|NIC|mlx5_)\d+|NUMA Affinity)", "\x1b[4m\\1\x1b[0m", head) + "\n" + rest


def with_legend(text: str) -> str:
    legend = "  X    = Self\n  SYS  = Connection traversing PCIe and more\n  NV#  = Connection traversing NVLinks\n"
    return f"$ nvidia-smi topo -m\n{text}\nLegend:\n\n{legend}\nNIC Legend:\n\n  NIC0: mlx5_3\n  NIC1: mlx5_bond_0\n"


@pytest.mark.parametrize(
    "spell",
    [str, blanks, underlined, with_legend, lambda text: text.replace("\n", "\r\n"), lambda text: "\n\n" + text],
    ids=["as recorded", "blanks", "underlined", "legend", "carriage returns", "empty lines"],
)
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_matrices_in_all_spellings(name: str, spell: Callable[[str], str]) -> None:
    expected = RECORDED[name]
    check(parse(spell(recorded(name)), "n1", expected.model), expected)


@pytest.mark.parametrize(
    "lost",
    [
        "^[[4m|^[[0m",
        "[4m|[0m",
        "\\x1b[4m|\\x1b[0m",
        "\\033[4m|\\033[0m",
        "\u2190[4m|\u2190[0m",
        "\ufffd[4m|\ufffd[m",
    ],
)
@pytest.mark.parametrize("name", RECORDED)
def test_escape_codes_that_a_pager_or_a_web_page_changed(name: str, lost: str) -> None:
    begin, end = lost.split("|")
    text = underlined(recorded(name)).replace("\x1b[4m", begin).replace("\x1b[0m", end)
    check(parse(text, "n1"), replace(RECORDED[name], **measured(name)))


def measured(name: str) -> dict[str, Any]:
    """The links as they are guessed without a model."""
    machine = parse(recorded(name), "n1")
    return {"links": {(link.count, link.gbps, link.via) for link in machine.links}}


def cut_at(text: str, mark: str) -> str:
    """As a terminal of so many columns shows it: each line ends where this mark ends in the header."""
    lines = text.expandtabs(8).splitlines()
    width = next(line.index(mark) for line in lines if mark in line) + len(mark)
    return "\n".join(line[:width] for line in lines)


@pytest.mark.parametrize("mark", ["C", "CP", "CPU", "CPU A", "CPU Affinit", "CPU Affinity"])
@pytest.mark.parametrize("name", ["a100-4", "dgx-a100", "h100-4"])
def test_a_column_that_the_terminal_cut_is_left_out(name: str, mark: str) -> None:
    whole = parse(recorded(name), "n1")
    machine = parse(cut_at(recorded(name), f" {mark}"), "n1")
    assert (machine.links, machine.nic_paths) == (whole.links, whole.nic_paths)
    assert {gpu.numa for gpu in machine.gpus} == {-1}
    # Where every list is as long as the title, nothing was cut.
    same = [gpu.cpus for gpu in machine.gpus] == [gpu.cpus for gpu in whole.gpus]
    assert (same and mark == "CPU Affinity") or {gpu.cpus for gpu in machine.gpus} == {""}
    assert same or any("CPU Affinity is cut in the text and left out" in problem for problem in machine.problems)


def test_the_columns_before_a_cut_one_stay() -> None:
    machine = parse(cut_at(recorded("dgx-a100"), " NUMA Aff"), "n1")
    assert (machine.gpus[0].cpus, machine.gpus[-1].cpus) == ("48-63,176-191", "80-95,208-223")
    assert {gpu.numa for gpu in machine.gpus} == {-1}
    assert "NUMA Affinity is cut in the text and left out" in machine.problems[1]


def test_nics_go_by_the_names_of_the_legend() -> None:
    named = parse(with_legend(recorded("h100-4")), "n1")
    assert [nic.name for nic in named.nics] == ["mlx5_3", "mlx5_bond_0", "NIC2", "NIC3"]


def test_uuids_that_are_not_real_are_said_to_be_so() -> None:
    machine = parse(recorded("l40s"), "n7", "l40s")
    assert [gpu.uuid for gpu in machine.gpus] == [f"GPU-n7-{i}" for i in range(4)]
    assert machine.problems == (
        "UUIDs and device minor numbers are place-holders: nvidia-smi topo -m does not tell them",
    )
    assert machine.discovered is not None
    assert machine.discovered.by == "nvidia-smi topo -m"


def test_a_guessed_speed_is_said_to_be_guessed() -> None:
    guessed = parse(recorded("gb200-tray"), "n1")
    assert guessed.links[0].gbps == 478.116
    assert "26.562 GB/s, is guessed from 18 links a GPU: name the GPU model" in guessed.problems[-1]
    assert "the model x9 is not known" in parse(recorded("gb200-tray"), "n1", "x9").problems[-1]


# One of eight GPUs lost its links to the switches (vllm-project/vllm issue 16336).
BROKEN_BOARD = """
GPU0 GPU1 GPU2 GPU3 CPU Affinity NUMA Affinity GPU NUMA ID
GPU0 X NV18 NODE NV18 0-55,112-167 0 N/A
GPU1 NV18 X NODE NV18 0-55,112-167 0 N/A
GPU2 NODE NODE X NODE 0-55,112-167 0 N/A
GPU3 NV18 NV18 NODE X 0-55,112-167 0 N/A
"""


def test_a_board_with_an_unlinked_gpu_keeps_its_switched_links() -> None:
    machine = parse(BROKEN_BOARD, "n1", "b200")
    assert [positions(island) for island in islands(machine.shape)] == [(0, 1, 3)]
    assert {(link.gbps, link.via) for link in machine.links} == {(956.25, "switch")}


@pytest.mark.parametrize(
    ("text", "names", "words"),
    [
        ("GPU0 NIC0 NIC1CPU Affinity\nGPU0 X PIX SYS 0-3", "NIC0 NIC1", "PIX SYS"),
        ("GPU0 NIC0NIC1 CPU Affinity\nGPU0 X PIXSYS 0-3", "NIC0 NIC1", "PIX SYS"),
        ("\tGPU0\tmlx5_9mlx5_10\tCPU Affinity\nGPU0\t X \tNODEPHB\t0-3", "mlx5_9 mlx5_10", "NODE PHB"),
        ("\tGPU0\tmlx5_0 rdmap16s27\nGPU0\t X \tPXB\tSOC", "mlx5_0 rdmap16s27", "PXB SYS"),
    ],
)
def test_cells_that_were_glued_or_are_called_otherwise(text: str, names: str, words: str) -> None:
    machine = parse(text, "n1")
    assert ([nic.name for nic in machine.nics], list(machine.nic_paths[0])) == (names.split(), words.split())


@pytest.mark.parametrize(
    ("cells", "cpus", "numa"),
    [
        ("0-71    0,3-9,11-17     2", "0-71", 0),
        ("72-143  1,19-25,27-33   18", "72-143", 1),
        ("N/A     N/A             N/A", "", -1),
        ("        1               N/A", "", 1),
        ("0-3                     N/A", "0-3", -1),
        ("", "", -1),
    ],
    ids=["Grace", "second Grace", "unknown", "no CPUs", "no NUMA node", "nothing"],
)
def test_affinity_cells(cells: str, cpus: str, numa: int) -> None:
    header = "        GPU0    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID"
    gpu = parse(f"{header}\nGPU0     X      PIX     {cells}\nNIC0    PIX      X\n", "n1").gpus[0]
    assert (gpu.cpus, gpu.numa) == (cpus, numa)


def without(name: str, line: int) -> str:
    lines = recorded(name).splitlines()
    return "\n".join(lines[: line - 1] + lines[line:])


def twice(name: str, line: int) -> str:
    lines = recorded(name).splitlines()
    return "\n".join([*lines[:line], lines[line - 1], *lines[line:]])


def changed(name: str, old: str, new: str) -> str:
    text = recorded(name)
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no header with GPU0"),
        ("No devices were found\n", "no header with GPU0"),
        (without("dgx-1v", 1), "no header with GPU0"),
        ("\tCPU Affinity\nmlx5_0\t X \n", "no header with GPU0"),
        (without("dgx-1v", 9), "the row of GPU7 is missing; the text seems to be cut"),
        (
            "\n".join(recorded("dgx-1v").splitlines()[:7])[:-20],
            "line 7: the row of GPU5 has 10 cells; 12 are expected, one a device",
        ),
        (without("a100-pcie", 5) + "\nGPU3", "line 5: the row of GPU3 has 0 cells; 4 are expected"),
        (twice("dgx-a100", 3), "line 4: a second row of GPU1; the first one is line 3"),
        (recorded("l40s") + recorded("l40s"), "line 8: a second header; one node a text is expected"),
        (changed("a100-pcie", "\nGPU3", "\nGPU9"), "line 5: the header has no column GPU9"),
        (changed("a100-pcie", "\tGPU1", "\tGPU2"), "the columns are GPU0 GPU2 GPU2 GPU3; GPU0, GPU1, ... are expected"),
        (changed("h100-4", "NIC1 ", "NIC0 "), "line 1: NIC0 has two columns"),
        (changed("a100-pcie", "NV12", "NV6"), "line 3: GPU1 to GPU0 is NV12, but line 2 says NV6; both directions"),
        (changed("h100-4", "NIC0    PIX", "NIC0    SYS"), "line 6: NIC0 to GPU0 is SYS, but line 2 says PIX"),
        (changed("a100-pcie", "SYS", "QPI"), "line 2: GPU0 to GPU2 is 'QPI'; one of X, NV1 to NV99, PIX"),
        (changed("a100-pcie", "SYS", "NV0"), "line 2: GPU0 to GPU2 is 'NV0'"),
        (changed("a100-pcie", " X ", "SYS"), "line 2: GPU0 to GPU0 is SYS; X stands where a device meets itself"),
        (changed("a100-pcie", "SYS", " X "), "line 2: GPU0 to GPU2 is X; X stands where a device meets itself"),
        (changed("a100-pcie", "SYS", ""), "line 2: the row of GPU0 has 2 cells; 4 are expected"),
        (changed("a100-pcie", "\t0-51,104-155", "\tx-y"), "line 2: CPU Affinity of GPU0 is 'x-y'; a list such as"),
        (changed("a100-pcie", "\t0-51,104-155", "\t0-999999"), "line 2: CPU Affinity of GPU0 is '0-999999'"),
        (changed("a100-pcie", "\tN/A", "\tN/A\t7"), "the row of GPU0 has 4 cells, the header 3"),
        (changed("a100-pcie", "NUMA Affinity", "Colour"), "line 1: behind the devices stands 'CPU Affinity\\tColour"),
    ],
)
def test_a_broken_text_is_refused_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(TopologyFileError, match=re.escape(complaint)) as caught:
        parse(text, "n1", source="rack7.txt")
    assert str(caught.value).startswith("rack7.txt")


@given(
    name=st.sampled_from(sorted(RECORDED)),
    cut=st.integers(0, 2500),
    length=st.integers(0, 40),
    instead=st.text(alphabet="GPUNICVXSY0123456789-, \t\n\x1b[", max_size=12),
)
def test_no_damage_escapes_as_another_error(name: str, cut: int, length: int, instead: str) -> None:
    text = recorded(name)
    complaint, machine = "", None
    try:
        machine = parse(text[:cut] + instead + text[cut + length :], "n1")
    except TopologyFileError as error:
        complaint = str(error)
    assert complaint.startswith("the text") if machine is None else machine.size >= 1


def render(machine: Machine) -> str:
    """What nvidia-smi would print of a machine, with tabs."""
    joined = {(link.a, link.b): f"NV{link.count}" for link in machine.links}
    gpus = [f"GPU{i}" for i in range(machine.size)]
    nics = [nic.name for nic in machine.nics]
    lines = ["\t".join(["", *gpus, *nics, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for a, gpu in enumerate(machine.gpus):
        words = [joined.get((min(a, b), max(a, b)), machine.paths[a][b]) for b in range(machine.size)]
        words[a] = " X "
        affinity = [gpu.cpus, str(gpu.numa) if gpu.numa >= 0 else "", "", "N/A"]
        lines.append("\t".join([gpus[a], *words, *(machine.nic_paths[a] if nics else ()), *affinity]))
    for i, name in enumerate(nics):
        words = [machine.nic_paths[a][i] for a in range(machine.size)]
        lines.append("\t".join([name, *words, *(" X " if i == k else "SYS" for k in range(len(nics))), "", ""]))
    return "\n".join(lines) + "\n"


@st.composite
def printable(draw: st.DrawFn) -> Machine:
    """Any machine that the text can show whole: it has no unknown relations."""
    machine = draw(machines())
    paths = [[word if word != "?" else "SYS" for word in row] for row in machine.paths]
    count = draw(st.integers(0, 3))
    word = st.sampled_from(["PIX", "PXB", "PHB", "NODE", "SYS"])
    rows = draw(st.lists(st.lists(word, min_size=count, max_size=count), min_size=machine.size, max_size=machine.size))
    cpus = st.sampled_from(["", "0", "0-7,16-23", "112-127,240-255"])
    gpus = tuple(replace(gpu, cpus=draw(cpus), numa=draw(st.integers(-1, 7))) for gpu in machine.gpus)
    return replace(
        machine,
        gpus=gpus,
        paths=cast("tuple[tuple[PathWord, ...], ...]", tuple(map(tuple, paths))),
        nics=tuple(Nic(f"mlx5_{i}") for i in range(count)),
        nic_paths=cast("tuple[tuple[PathWord, ...], ...]", tuple(map(tuple, rows)) if count else ()),
    )


@given(machine=printable(), spell=st.sampled_from([str, blanks]))
def test_what_is_printed_is_read_back(machine: Machine, spell: Callable[[str], str]) -> None:
    found = parse(spell(render(machine)), "n1", machine.model)

    def seen(one: Machine) -> Any:
        linked = {(link.a, link.b) for link in machine.links}
        return (
            {(link.a, link.b, link.count) for link in one.links},
            [
                [word for b, word in enumerate(row) if (a, b) not in linked and (b, a) not in linked]
                for a, row in enumerate(one.paths)
            ],
            one.nic_paths,
            [(gpu.cpus, gpu.numa) for gpu in one.gpus],
        )

    assert seen(found) == seen(machine)
