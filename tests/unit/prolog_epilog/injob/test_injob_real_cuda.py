# SPDX-License-Identifier: Apache-2.0
"""The library held against NVIDIA's own CUDA runtimes and headers, of CUDA 12 and 13."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.all import ROOT
from tests.fakes import cuda
from tests.nvidia import VERSIONS, cuda_files

pytestmark = pytest.mark.hard

SOURCE = ROOT / "prolog_epilog/injob/c"
PROGRAM = """
int cudaMalloc(void **, unsigned long);
int main(void)
{
    void *made;
    return cudaMalloc(&made, 1) != 0;
}
"""
STRUCTS = {
    "CUDA_ARRAY_DESCRIPTOR": ("CUarrayDescriptor", {"NumChannels": "channels", "Height": "height"}),
    "CUDA_ARRAY3D_DESCRIPTOR": ("CUarray3DDescriptor", {"Flags": "flags", "Depth": "depth"}),
    "CUmemAllocationProp": ("CUmemProp", {"location.id": "location.id"}),
    "CUlaunchConfig": ("CUlaunchConfig", {"hStream": "stream", "numAttrs": "attribute_count"}),
    "CUDA_LAUNCH_PARAMS": ("CUlaunchParams", {"hStream": "stream", "kernelParams": "parameters"}),
    "CUDA_MEM_ALLOC_NODE_PARAMS": (
        "CUmemAllocNodeParams",
        {"poolProps.location.id": "pool.location.id", "bytesize": "bytes", "dptr": "pointer"},
    ),
    "CUgraphNodeParams": ("CUgraphNodeParams", {"alloc.bytesize": "of.alloc.bytes", "alloc": "of.alloc"}),
}
"""Names in cuda.h, and ours."""
NUMBERS = {
    "CU_GRAPH_NODE_TYPE_MEM_ALLOC": "GRAPH_NODE_MEM_ALLOC",
    "CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT": "GRAPH_MEM_RESERVED_CURRENT",
    "CU_MEM_LOCATION_TYPE_DEVICE": "LOCATION_DEVICE",
    "CUDA_ARRAY3D_SPARSE": "ARRAY_SPARSE",
    "CUDA_ARRAY3D_DEFERRED_MAPPING": "ARRAY_DEFERRED_MAPPING",
    "CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM": "GET_PROC_PER_THREAD_STREAM",
    "CU_STREAM_CAPTURE_MODE_RELAXED": "CAPTURE_MODE_RELAXED",
}


@pytest.fixture(scope="module")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return cuda_files(tmp_path_factory.mktemp("nvidia"))


def built(folder: Path, source: str, *flags: str) -> Path:
    (folder / "one.c").write_text(source)
    program = folder / "one"
    subprocess.run(["gcc", "-w", "-o", str(program), str(folder / "one.c"), *flags], check=True)
    return program


def names(pattern: str, text: str) -> set[str]:
    return set(re.findall(pattern, text))


@pytest.mark.parametrize("linked", ["shared", "static"])
@pytest.mark.parametrize("version", VERSIONS)
def test_whatever_a_real_runtime_looks_up_that_works_or_takes_memory_is_hooked(
    nvidia: dict[str, Path], version: str, linked: str, tmp_path: Path
) -> None:
    (shared,) = nvidia[version].rglob("libcudart.so.*")
    (static,) = nvidia[version].rglob("libcudart_static.a")
    others = [str(one) for one in nvidia[version].rglob("libculibos.a")]
    flags = [str(shared)] if linked == "shared" else [str(static), *others, "-ldl", "-lrt", "-lpthread"]
    log = tmp_path / "log"
    environment = cuda.environment(BERTH_FAKE_CUDA_LOG=str(log))
    environment["LD_LIBRARY_PATH"] += os.pathsep + str(shared.parent)
    # The simulated driver has not all that a runtime wants, so the call itself fails after the look-ups.
    subprocess.run([built(tmp_path, PROGRAM, *flags)], env=environment, check=False)

    asked = names(r"look up (\w+)", log.read_text())
    hooks, source = ((SOURCE / "driver" / name).read_text() for name in ("hooks.h", "hooks.c"))
    hooked = names(r'X\(\w+, "(\w+)"', hooks)
    begins, harmless = (
        names(r'"(\w+)"', source.split(f"const {name}[] = {{")[1].split("};")[0]) for name in ("governed", "harmless")
    )
    assert len(asked) > 300
    assert "cuLaunchKernel" in asked & hooked
    governed = {name for name in asked if name.startswith(tuple(begins))}
    assert governed - harmless - hooked == set()


def values(folder: Path, header: str, include: Path, expressions: list[str]) -> list[str]:
    """Return the value of each constant expression, by a program that includes the header."""
    lines = "".join(f'printf("%ld\\n", (long)({one}));\n' for one in expressions)
    source = f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\nint main(void) {{ {lines} return 0; }}\n'
    folder.mkdir()
    program = built(folder, source, f"-I{include}")
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("version", VERSIONS)
def test_our_structures_and_numbers_are_those_of_the_real_header(
    nvidia: dict[str, Path], version: str, tmp_path: Path
) -> None:
    (header,) = nvidia[version].rglob("cuda.h")
    pairs = list(NUMBERS.items())
    for real, (ours, fields) in STRUCTS.items():
        pairs += [(f"sizeof({real})", f"sizeof({ours})")]
        pairs += [(f"offsetof({real}, {one})", f"offsetof({ours}, {other})") for one, other in fields.items()]

    theirs = values(tmp_path / "real", "cuda.h", header.parent, [real for real, _ in pairs])
    mine = values(tmp_path / "ours", "driver/cuda_abi.h", SOURCE, [ours for _, ours in pairs])
    assert dict(zip(pairs, mine, strict=True)) == dict(zip(pairs, theirs, strict=True))
