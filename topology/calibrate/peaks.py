"""Vendor peaks of GPU models, to show how near a measurement came. Never part of a score.

Dense rates at the boost clock: FP16 on tensor cores with sums in FP32, without sparsity, and FP32 without tensor cores.
Data sheets since Ampere print the tensor rates with sparsity, which is twice the dense one. A GPU at its power limit
stays below. Boards of which no public data sheet tells all three figures are left out: None is better than a guess.
"""

import re
from dataclasses import dataclass

from topology.calibrate.runs import KernelRun


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak rates of one model."""

    fp16_tflops: float
    """Tensor cores."""
    fp32_tflops: float
    gb_per_s: float


# By the names that NVML gives; the first that fits counts. Behind each: NVIDIA's publication, and what it prints where
# that is another number than ours.
_PEAKS = (
    # GB200 NVL72 product page, a superchip of two: FP16 10 PFLOPS sparse, FP32 160, 16 TB/s.
    (r"\bGB200\b", Peak(2500.0, 80.0, 8000.0)),
    # DGX B200 data sheet and HGX B200 page, eight of them: FP16 36 PFLOPS sparse, FP32 600, 64 TB/s.
    (r"\bB200\b", Peak(2250.0, 75.0, 8000.0)),
    # H200 data sheet, NVL: FP16 1,671 sparse.
    (r"\bH200 NVL\b", Peak(835.5, 60.0, 4800.0)),
    # H200 data sheet, SXM: FP16 1,979 sparse.
    (r"\bH200\b", Peak(989.5, 67.0, 4800.0)),
    # GH200 data sheet: FP16 1,979 sparse; 4.9 TB/s with HBM3e, 4 TB/s with HBM3.
    (r"\bGH200 144G", Peak(989.5, 67.0, 4900.0)),
    (r"\bGH200 480GB", Peak(989.5, 67.0, 4000.0)),
    # H100 data sheet, NVL: FP16 1,671 sparse.
    (r"\bH100 NVL\b", Peak(835.5, 60.0, 3900.0)),
    # H100 data sheet, PCIe: FP16 1,513 sparse.
    (r"\bH100 PCIe\b", Peak(756.5, 51.0, 2000.0)),
    # H100 data sheet, SXM: FP16 1,979 sparse.
    (r"\bH100 80GB HBM3\b", Peak(989.5, 67.0, 3350.0)),
    # A100 data sheet: dense and sparse are both printed.
    (r"\bA100 80GB PCIe\b", Peak(312.0, 19.5, 1935.0)),
    (r"\bA100-SXM4-80GB\b", Peak(312.0, 19.5, 2039.0)),
    (r"\bA100-(SXM4|PCIE)-40GB\b", Peak(312.0, 19.5, 1555.0)),
    # A30, A40 and A10 data sheets: dense and sparse are both printed.
    (r"\bA30\b", Peak(165.0, 10.3, 933.0)),
    (r"\bA40\b", Peak(149.7, 37.4, 696.0)),
    (r"\bA10\b", Peak(125.0, 31.2, 600.0)),
    # L40S and L40 data sheets: dense and sparse are both printed.
    (r"\bL40S\b", Peak(362.05, 91.6, 864.0)),
    (r"\bL40\b", Peak(181.05, 90.5, 864.0)),
    # L4 data sheet: FP16 242 sparse.
    (r"\bL4\b", Peak(121.0, 30.3, 300.0)),
    # Ada architecture white paper: FP16 with FP32 accumulate, dense.
    (r"\bRTX 6000 Ada\b", Peak(364.2, 91.1, 960.0)),
    # GA102 architecture white paper: FP16 with FP32 accumulate, dense.
    (r"\bRTX A6000\b", Peak(154.8, 38.7, 768.0)),
    # V100 and V100S data sheets; Volta has no sparsity.
    (r"\bV100S-PCIE-32GB\b", Peak(130.0, 16.4, 1134.0)),
    (r"\bV100-PCIE-", Peak(112.0, 14.0, 900.0)),
    (r"\bV100-SXM2-", Peak(125.0, 15.7, 900.0)),
)


def peak_of(model: str) -> Peak | None:
    """Returns the peak of a model as NVML names it; None where it is not known here."""
    return next((peak for pattern, peak in _PEAKS if re.search(pattern, model)), None)


def part_of_peak(model: str, run: KernelRun) -> float:
    """Returns the least time for a run's work by the vendor's figures over the time that it took; 0: not known."""
    peak = peak_of(model)
    if peak is None:
        return 0.0
    flops = peak.fp32_tflops if "fp32" in run.kernel else peak.fp16_tflops
    return run.tflops / flops + run.gb_per_s / peak.gb_per_s
