# SPDX-License-Identifier: Apache-2.0
"""The named machines. Each names its source; a NIC of which no source tells the rate has 0.

A matrix is the text of `nvidia-smi topo -m`. It hides the PCIe relation of GPUs with NVLinks between them: there the
places say NODE within a NUMA node, unless a network card beside both GPUs tells more.

Memory is the total that nvidia-smi prints for the GPU model in public logs; a driver may keep more or less of it back.
It is a plan's number: placement does not look at it.
"""

from topology.machines.kinds import Card, NodeKind

_DGX_1V = NodeKind(
    source="matrix of a DGX-1V (msccl test data), 4 EDR InfiniBand cards of 100 Gb/s (a reseller's page)",
    gpu="Tesla V100-SXM2-32GB",
    memory_mib=32768,
    gpus=("0/0/0/0", "0/0/0/0", "0/0/1/0", "0/0/1/0", "1/0/0/0", "1/0/0/0", "1/0/1/0", "1/0/1/0"),
    cpus={0: "0-19,40-59", 1: "20-39,60-79"},
    cards=(
        Card("mlx5_0", "0/0/0/0", "infiniband", 12.5),
        Card("mlx5_1", "0/0/1/0", "infiniband", 12.5),
        Card("mlx5_2", "1/0/0/0", "infiniband", 12.5),
        Card("mlx5_3", "1/0/1/0", "infiniband", 12.5),
    ),
    # A cube mesh: two fully joined faces, and an edge between each two opposite corners.
    wires=(
        *((0, 1, 1), (0, 2, 1), (0, 3, 2), (1, 2, 2), (1, 3, 1), (2, 3, 2)),
        *((4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)),
        *((0, 4, 2), (1, 5, 2), (2, 6, 1), (3, 7, 1)),
    ),
)

_DGX_A100 = NodeKind(
    source="matrix and NCCL topology of a DGX A100 (NVIDIA/nccl issue 1505), 8 HDR InfiniBand cards of"
    " 200 Gb/s (its specification, as sites that run it quote it)",
    gpu="NVIDIA A100-SXM4-80GB",
    memory_mib=81920,
    gpus=("3/0/0/0", "3/0/0/1", "1/0/0/0", "1/0/0/1", "7/0/0/0", "7/0/0/1", "5/0/0/0", "5/0/0/1"),
    cpus={3: "48-63,176-191", 1: "16-31,144-159", 7: "112-127,240-255", 5: "80-95,208-223"},
    cards=(
        Card("mlx5_0", "3/0/0/2", "infiniband", 25.0),
        Card("mlx5_1", "3/0/0/3", "infiniband", 25.0),
        Card("mlx5_2", "1/0/0/2", "infiniband", 25.0),
        Card("mlx5_3", "1/0/0/3", "infiniband", 25.0),
        Card("mlx5_4", "-1/0/0/0"),
        Card("mlx5_5", "-1/0/0/0"),
        Card("mlx5_6", "7/0/0/2", "infiniband", 25.0),
        Card("mlx5_7", "7/0/0/3", "infiniband", 25.0),
        Card("mlx5_8", "5/0/0/2", "infiniband", 25.0),
        Card("mlx5_9", "5/0/0/3", "infiniband", 25.0),
        Card("mlx5_10", "-1/1/0/0"),
        Card("mlx5_11", "-1/1/0/0"),
    ),
    mesh=12,
    via="switch",
    switches=6,
)

_HGX_H100 = NodeKind(
    source="matrix of a DGX H100 (vllm-project/vllm issue 6746), its four NVSwitches (NVIDIA/nccl issue 1182),"
    " 8 InfiniBand cards of 400 Gb/s (DGX BasePOD reference architecture)",
    gpu="NVIDIA H100 80GB HBM3",
    memory_mib=81559,
    gpus=("0/0/0/0", "0/1/0/0", "0/2/0/0", "0/3/0/0", "1/0/0/0", "1/1/0/0", "1/2/0/0", "1/3/0/0"),
    cpus={0: "0-55,112-167", 1: "56-111,168-223"},
    cards=(
        Card("mlx5_0", "0/0/0/1", "infiniband", 50.0),
        Card("mlx5_1", "0/4/0/0"),
        Card("mlx5_2", "0/4/0/0"),
        Card("mlx5_3", "0/1/0/1", "infiniband", 50.0),
        Card("mlx5_4", "0/2/0/1", "infiniband", 50.0),
        Card("mlx5_5", "0/3/0/1", "infiniband", 50.0),
        Card("mlx5_6", "1/0/0/1", "infiniband", 50.0),
        Card("mlx5_7", "1/4/0/0"),
        Card("mlx5_8", "1/4/0/0"),
        Card("mlx5_9", "1/1/0/1", "infiniband", 50.0),
        Card("mlx5_10", "1/2/0/1", "infiniband", 50.0),
        Card("mlx5_11", "1/3/0/1", "infiniband", 50.0),
    ),
    mesh=18,
    via="switch",
    switches=4,
)

_HGX_B200 = NodeKind(
    source="matrix of a DGX B200, its GPU without NVLink mended (vllm-project/vllm issue 16336),"
    " two NVSwitches, 8 InfiniBand cards of 400 Gb/s (DGX B200 User Guide), memory (NVIDIA/TensorRT-LLM issue 10278)",
    gpu="NVIDIA B200",
    memory_mib=183359,
    gpus=("0/0/0/0", "0/1/0/0", "0/2/0/0", "0/3/0/0", "1/0/0/0", "1/1/0/0", "1/2/0/0", "1/3/0/0"),
    cpus={0: "0-55,112-167", 1: "56-111,168-223"},
    cards=(
        *(Card(f"mlx5_{i}", f"0/{i}/0/1", "infiniband", 50.0) for i in range(4)),
        *(Card(f"mlx5_{i + 4}", f"1/{i}/0/1", "infiniband", 50.0) for i in range(4)),
        Card("mlx5_8", "0/4/0/0"),
        Card("mlx5_9", "0/4/0/0"),
        Card("mlx5_10", "1/4/0/0"),
        Card("mlx5_11", "1/4/0/0"),
    ),
    mesh=18,
    via="switch",
    switches=2,
)

_A100_4 = NodeKind(
    source="matrix of a node with an HGX A100 4-GPU board (Princeton, della-i16g1)",
    gpu="NVIDIA A100-SXM4-80GB",
    memory_mib=81920,
    gpus=("0/0/0/0", "0/1/0/0", "1/0/0/0", "1/1/0/0"),
    cpus={0: "0-23", 1: "24-47"},
    cards=(Card("mlx5_0", "0/2/0/0"),),
    mesh=4,
)

_H100_4 = NodeKind(
    source="matrix of a node with an HGX H100 4-GPU board (NVIDIA/nccl issue 1617)",
    gpu="NVIDIA H100 80GB HBM3",
    memory_mib=81559,
    gpus=("3/0/0/0", "1/0/0/0", "7/0/0/0", "5/0/0/0"),
    cpus={3: "6,14,22,30", 1: "4,12,20,28", 7: "7,15,23,31", 5: "5,13,21,29"},
    cards=(
        Card("mlx5_0", "3/0/0/0"),
        Card("mlx5_1", "1/0/0/0"),
        Card("mlx5_2", "7/0/0/0"),
        Card("mlx5_3", "5/0/0/0"),
    ),
    mesh=6,
)

_A6000_PAIRS = NodeKind(
    source="matrix of a node with bridged pairs (University of Geneva, gpu048)",
    gpu="NVIDIA RTX A6000",
    memory_mib=49140,
    gpus=("0/0/0/0", "0/1/0/0", "0/2/0/0", "0/3/0/0", "1/0/0/0", "1/1/0/0", "1/2/0/0", "1/3/0/0"),
    cpus={0: "0-63", 1: "64-127"},
    cards=(Card("mlx5_0", "1/2/1/0"), Card("mlx5_1", "1/2/1/0")),
    wires=((0, 1, 4), (2, 3, 4), (4, 5, 4), (6, 7, 4)),
)

_A100_PCIE = NodeKind(
    source="matrix of a node with bridged pairs of A100 PCIe cards",
    gpu="NVIDIA A100 80GB PCIe",
    memory_mib=81920,
    gpus=("0/0/0/0", "0/1/0/0", "1/0/0/0", "1/1/0/0"),
    cpus={0: "0-51,104-155", 1: "52-103,156-207"},
    wires=((0, 1, 12), (2, 3, 12)),
)

_L40S = NodeKind(
    source="matrix of a node without NVLink (warpem/miss-alignment issue 106)",
    gpu="NVIDIA L40S",
    memory_mib=46068,
    gpus=("0/0/0/0", "0/1/0/0", "1/0/0/0", "1/1/0/0"),
    cpus={0: "0-95,192-287", 1: "96-191,288-383"},
    cards=(Card("mlx5_0", "1/2/0/0"), Card("mlx5_1", "1/2/0/0")),
)

_GB200_TRAY = NodeKind(
    source="matrix of a GB200 NVL72 compute tray (NVIDIA/k8s-test-infra issue 371), without its network cards;"
    " five chip-to-chip links of 44.712 GB/s a GPU, as NCCL lists them",
    gpu="NVIDIA GB200",
    memory_mib=189471,
    gpus=("0/0/0/0", "0/1/0/0", "1/0/0/0", "1/1/0/0"),
    cpus={0: "0-71", 1: "72-143"},
    mesh=18,
    via="switch",
    c2c_gbps=223.56,
)

KINDS = {
    "dgx-1v": _DGX_1V,
    "dgx-a100": _DGX_A100,
    "hgx-h100": _HGX_H100,
    "hgx-b200": _HGX_B200,
    "a100-4": _A100_4,
    "h100-4": _H100_4,
    "a6000-pairs": _A6000_PAIRS,
    "a100-pcie": _A100_PCIE,
    "l40s": _L40S,
    "gb200-tray": _GB200_TRAY,
}

#: Kind of its nodes, and how many it has room for.
RACKS = {"gb200-nvl72": ("gb200-tray", 18)}
