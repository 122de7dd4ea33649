# SPDX-License-Identifier: Apache-2.0
"""Philly's failure classes, and what another try of the same job is worth for each.

The classes are those of table 7 of "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads"
(USENIX ATC 2019). Which of them pass by themselves is our reading of the same table: a job that ran out of memory or
read a wrong path failed 2 to 4 times in a row there.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FailureClass:
    """One way to fail."""

    name: str
    what: str
    """For a person: what went wrong."""
    transient: bool = False
    """True if the same job may well succeed elsewhere or later."""
    suspect: bool = False
    """True if a GPU or a node may be at fault."""


NO_SIGNATURE = "no_signature"

CLASSES: Mapping[str, FailureClass] = {
    one.name: one
    for one in (
        FailureClass("cpu_out_of_memory", "the job needs more memory than it asked for"),
        FailureClass("incorrect_inputs", "a file, a data set or a service that the job reads is missing or broken"),
        FailureClass("semantic_error", "the program, its arguments or its libraries do not fit together"),
        FailureClass("core_dump", "the program aborted itself"),
        FailureClass("invalid_mem_access", "the program used memory that is not its own"),
        FailureClass(
            "model_ckpt_error", "a checkpoint or another output could not be written or read back", transient=True
        ),
        FailureClass("cuda_failure", "a CUDA call failed while the program ran", transient=True, suspect=True),
        FailureClass("syntax_error", "a script or a source file cannot be parsed"),
        FailureClass("traceback_from_crash", "the program ended with an exception of its own"),
        FailureClass("mpi_error", "MPI was called or launched in a wrong way"),
        FailureClass("gpu_out_of_memory", "the job needs more memory than the GPU has"),
        FailureClass(
            "mpi_runtime_failure", "a peer, a node or the network between them was lost", transient=True, suspect=True
        ),
        FailureClass("permission_error", "the job may not do what it tried"),
        FailureClass("import_error", "a module or package is not installed"),
        FailureClass("job_preempted", "the job was told to end from outside", transient=True),
        FailureClass("cuda_init_failed", "the GPUs could not be opened", transient=True, suspect=True),
        FailureClass("model_diverged", "the loss or the gradients are no longer finite"),
        FailureClass("cuda_version_mismatch", "driver, CUDA and program are of versions that do not fit"),
        FailureClass("gpu_ecc_error", "a GPU reported a fault of its hardware", transient=True, suspect=True),
        FailureClass("output_node_error", "the model has no output of the name that was asked for"),
        FailureClass("cannot_load_libs", "a shared library is missing, or is of another version"),
        FailureClass(NO_SIGNATURE, "nothing known was found", transient=True),
    )
}
"""By name, in the order of the published table."""
