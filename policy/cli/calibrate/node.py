# SPDX-License-Identifier: Apache-2.0
"""The command `berth calibrate node`, which measures the GPUs of the node where it runs."""

import argparse
import socket
import sys
import time
from collections.abc import Sequence

from policy.formats.errors import BerthError
from topology.calibrate.device.measure import Device, SimulatedDevice, measure_all
from topology.calibrate.runs import FORMAT, GpuVisit, Visit, append, encode, verdict


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    node = commands.add_parser(
        "node",
        help="measure this node's GPUs",
        description="Run compute, mixed and memory kernels on each GPU of this node for about 40 seconds, all GPUs at "
        "once, then copy between host and GPUs, and add the results to a file of runs. Nothing else should run "
        "on the node meanwhile.",
    )
    node.add_argument("--output", default="", metavar="RUNS", help="file to add to (default: print)")
    node.add_argument("--alone", action="store_true", help="one GPU after the other: colder, and no part of the scores")
    node.add_argument(
        "--own-kernels", action="store_true", help="use Berth's own kernels even where cuBLAS is installed"
    )
    node.add_argument(
        "--node", default="", metavar="NAME", help="the node's name in Slurm (default: the short host name)"
    )
    node.add_argument(
        "--simulated", type=int, default=0, metavar="GPUS", help="simulate so many GPUs, to try the command out"
    )
    node.add_argument(
        "--pace", type=float, default=0.0, metavar="PART", help="speed of simulated GPUs, as a part of real time"
    )
    node.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measures, prints the result or adds it to a file, and names the runs that do not count."""
    name = args.node or socket.gethostname().partition(".")[0]
    devices = (
        _simulated(name, args.simulated, args.pace) if args.simulated else _real(name, own_kernels=args.own_kernels)
    )
    gpus = measure_all(devices, together=not args.alone)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    visit = Visit(name, at, gpus, "alone" if args.alone else "together")
    if args.output:
        append([visit], args.output)
        _tell(visit)
    else:
        sys.stdout.write(f'{{"format": "{FORMAT}"}}\n{encode(visit)}\n')
    wrong = [f"GPU {gpu.position}: {verdict(gpu, run)}" for gpu in gpus for run in gpu.runs if verdict(gpu, run)]
    if wrong:
        raise BerthError(f"runs that do not count: {', '.join(dict.fromkeys(wrong))}; look at the node and try again")
    return 0


def _tell(visit: Visit) -> None:
    for gpu in visit.gpus:
        print(f"{visit.node} GPU {gpu.position}: {', '.join(_words(gpu))}")


def _words(gpu: GpuVisit) -> list[str]:
    """Returns for each phase its time and its throughput."""
    words = []
    for run in gpu.runs:
        told = f"{run.app_class} {run.time_ms:.2f} ms at {run.sm_mhz:.0f} MHz"
        rates = [f"{run.tflops:.1f} TFLOP/s"] if run.tflops else []
        rates += [f"{run.gb_per_s:.0f} GB/s"] if run.gb_per_s else []
        words.append(f"{told} ({run.kernel}{': ' if rates else ''}{', '.join(rates)})")
    words += [
        f"{link.kind}{f' {link.peer}' if link.peer is not None else ''} {link.gb_per_s:.1f} GB/s" for link in gpu.links
    ]
    return [*words, f"steady after {gpu.steady_s:.1f} s"] if gpu.steady_s else words


def _simulated(name: str, gpus: int, pace: float) -> Sequence[tuple[int, Device]]:
    seed = int(time.time())
    return [(position, SimulatedDevice(f"GPU-{name}-{position}", seed=seed, pace=pace)) for position in range(gpus)]


def _real(name: str, *, own_kernels: bool) -> Sequence[tuple[int, Device]]:
    from topology.calibrate.device.cublas import find  # noqa: PLC0415
    from topology.calibrate.device.cuda import CudaDevice  # noqa: PLC0415
    from topology.providers.nvml import discover  # noqa: PLC0415

    blas = None if own_kernels else find()
    return [(gpu.position, CudaDevice(gpu.uuid, blas=blas)) for gpu in discover(name).gpus]
