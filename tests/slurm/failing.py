# SPDX-License-Identifier: Apache-2.0
"""Jobs that fail in earnest: programs with a fault of their own, and places at which something breaks under them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from .harness import Slurm, until
from .nodes import Node, nodes_of

PYTHON = "/opt/berth/bin/python"
CUDA = "LD_LIBRARY_PATH=/usr/lib/berth-fake/cuda"
"""The simulated driver: whoever wants it has to name it."""
MACHINE = "/etc/berth-fake/machine"
CUDA_INIT = "/etc/berth-fake/cuda-init"
"""What `cuInit` fails with on a node."""

# Opens the first GPU and takes so many blocks of 256 MiB; the simulated one has 1 GiB.
_TRAINS = """
import ctypes, sys
names = {2: "CUDA_ERROR_OUT_OF_MEMORY", 100: "CUDA_ERROR_NO_DEVICE", 802: "CUDA_ERROR_SYSTEM_NOT_READY"}
cuda, context, taken = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
def check(call, *words):
    code = getattr(cuda, call)(*words)
    if code:
        raise RuntimeError(f"{call} failed: {names.get(code, code)}")
check("cuInit", 0)
check("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
check("cuCtxSetCurrent", context)
for _ in range(int(sys.argv[1])):
    check("cuMemAlloc_v2", ctypes.byref(taken), ctypes.c_size_t(256 << 20))
print("trained")
"""


def trains(blocks: int, *settings: str) -> str:
    """A shell line that runs a program on the simulated CUDA driver."""
    return f"{' '.join([CUDA, *settings])} {PYTHON} - {blocks} <<'END'\n{_TRAINS}\nEND"


def runs(source: str) -> str:
    """A shell line that runs Python from a file of the job's own."""
    return f"cat >/tmp/train.$SLURM_JOB_ID.py <<'END'\n{source}\nEND\n{PYTHON} /tmp/train.$SLURM_JOB_ID.py"


OWN_FAULTS = {
    "syntax_error": ("a syntax error", runs("def train(:")),
    "incorrect_inputs": ("a data set that is not there", runs("open('/data/imagenet/train.idx')")),
    "permission_error": ("a file that it may not read", runs("open('/etc/shadow')")),
    "import_error": ("a module that is not installed", runs("import apex_is_not_here")),
    "gpu_out_of_memory": ("2 GiB taken of a GPU that has 1", trains(8)),
    "cpu_out_of_memory": ("400 MiB taken with --mem=60", runs("data = b'x' * (400 << 20)\nprint(len(data))")),
    "invalid_mem_access": ("a segmentation fault", runs("import ctypes\nctypes.string_at(0)")),
}
"""For each class that is the program's own fault, wherever it runs: what happens, and a body; with `--mem=60`."""


# Of each run the node; the first one waits for a sign, or for whatever ends it, the others do the same work at once.
_TWICE = """
echo $SLURMD_NODENAME >>/home/tests/ran.$SLURM_JOB_ID
[ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] || until [ -e /home/tests/go.$SLURM_JOB_ID ]; do sleep 0.1; done
{work}
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Something that breaks under a job."""

    failure: str
    """The class."""
    by: str
    """Who puts the job back into the queue: berthd or Slurm."""
    breaks: Callable[[Slurm, Node, int], None]
    """Breaks it under a job that runs; nothing happens to it before `go`, where it has to fail by itself."""
    mends: Callable[[Slurm, Node], None]
    work: str = "true"
    options: tuple[str, ...] = ()

    @property
    def body(self) -> str:
        """Returns the job's script."""
        return _TWICE.format(work=self.work)


def go(slurm: Slurm, job: int) -> None:
    """Lets the job's first run go on."""
    slurm.target.bash(f"touch /home/tests/go.{job}", user="root")


def ran(slurm: Slurm, job: int) -> list[str]:
    """The nodes of its runs."""
    return slurm.target.bash(f"cat /home/tests/ran.{job} 2>/dev/null", user="root", check=False).out.split()


def _break_driver(slurm: Slurm, node: Node, job: int) -> None:
    node.bash(f"echo 802 >{CUDA_INIT}")
    go(slurm, job)


def _mend_driver(_slurm: Slurm, node: Node) -> None:
    node.bash(f"rm -f {CUDA_INIT}")


def _break_memory(slurm: Slurm, node: Node, job: int) -> None:
    """The driver reports a double-bit error, of which the program only knows that it failed."""

    def heard() -> bool:
        # Nobody is told of an event who did not listen yet, and the guard has only just found the job.
        return "Xid 48 on GPU" in node.bash(f"echo 'xid 0 48' >>{MACHINE}.live; sleep 0.5; svc berth-guard log")

    until("the guard to hear of it", heard)
    go(slurm, job)


def _mend_memory(slurm: Slurm, node: Node) -> None:
    node.bash(f"rm -f {MACHINE}.live; svc berth-guard restart")
    resume(slurm, node.name)


def _lose_node(slurm: Slurm, node: Node, _job: int) -> None:
    node.bash("touch /run/cluster/slurmd.stopped; svc slurmd kill")
    # Its last words, worked off after the update, might bring the node back.
    time.sleep(1)
    # Slurm itself would find that out after SlurmdTimeout, which is minutes.
    slurm.target.run(["scontrol", "update", f"NodeName={node.name}", "State=DOWN", "Reason=lost"], user="root")


def _find_node(slurm: Slurm, node: Node) -> None:
    node.bash("svc slurmd start")
    resume(slurm, node.name)


def _preempt(slurm: Slurm, node: Node, _job: int) -> None:
    """A job of a partition that goes first takes the whole node for a moment."""
    words = ["sbatch", "-p", "urgent", "-w", node.name, "--exclusive", "-n1", "--mem=0", "-t1", "-o", "/dev/null"]
    slurm.target.run([*words, "--wrap", "sleep 1"], user="root")


def resume(slurm: Slurm, node: str) -> None:
    """Puts a node back into service; where its slurmd has registered meanwhile, Slurm has done so by itself."""
    slurm.target.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], user="root", check=False)


PLACES = {
    "CUDA init fails on the node": Place(
        "cuda_init_failed", "berthd", _break_driver, _mend_driver, work=trains(1)
    ),
    "a double-bit ECC error (Xid 48)": Place(
        "gpu_ecc_error", "berthd", _break_memory, _mend_memory,
        work='[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]', options=("--gpu-tier=guaranteed",),
    ),
    "the node is lost": Place("mpi_runtime_failure", "Slurm", _lose_node, _find_node),
    "preempted": Place("job_preempted", "Slurm", _preempt, lambda _slurm, _node: None),
}  # fmt: skip


@contextmanager
def preemption(slurm: Slurm) -> Iterator[None]:
    """A partition that goes before all others, for a time."""
    conf = "/etc/slurm/slurm.conf"
    more = "PreemptType=preempt/partition_prio\\nPreemptMode=REQUEUE\\n"
    more += "PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP\\n"
    slurm.target.bash(f"cp {conf} {conf}.before && printf '{more}' >>{conf}", user="root")
    try:
        slurm.restart_controller("berth")
        yield
    finally:
        slurm.target.bash(f"cat {conf}.before >{conf}; rm {conf}.before", user="root")
        slurm.restart_controller("berth")


@contextmanager
def memory_is_held(slurm: Slurm, name: str) -> Iterator[None]:
    """A node that holds jobs to their memory, as a site's do; the test cluster's claim more than there is."""
    node = nodes_of(slurm)[name]

    def say(word: str) -> None:
        change = f"sed -i 's/^ConstrainRAMSpace=.*/ConstrainRAMSpace={word}/' /etc/slurm/cgroup.conf"
        node.bash(f"{change}; svc slurmd restart")
        states = ["sinfo", "-h", "-N", "-n", name, "-o", "%T"]
        until("its slurmd", lambda: "idle" in slurm.target.run(states, user="root").out or None)

    say("yes")
    try:
        yield
    finally:
        say("no")


@contextmanager
def breaking(slurm: Slurm, jobs: dict[str, int]) -> Iterator[dict[str, Node]]:
    """Breaks what is under these jobs; afterwards everything is as it was."""
    nodes = nodes_of(slurm)
    where = {how: nodes[slurm.show(job)["NodeList"]] for how, job in jobs.items()}
    with ExitStack() as later:
        for how, node in where.items():
            later.callback(PLACES[how].mends, slurm, node)
            PLACES[how].breaks(slurm, node, jobs[how])
        yield where
