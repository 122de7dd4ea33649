# SPDX-License-Identifier: Apache-2.0
"""Last lines of failed GPU jobs in the words of many runtimes, written for this: the class, and whether it passes."""

import pytest

from policy.retry.classify import Facts, classify
from policy.retry.rules import shipped_rules

RULES = shipped_rules()
PASSES = {
    "job_preempted": ["start-worker GCP Metadata Service says termination is imminent"],
    "gpu_ecc_error": [
        "RuntimeError: CUDA error: hardware stack error",
        "kernel: amdgpu 0000:a1:00.0: amdgpu: Uncorrectable hardware errors (UE) detected",
    ],
    "cuda_failure": [
        "Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION: a hardware exception. code: 0x1016",
        "RuntimeError: miopenStatusInternalError",
        "UR error: UR_RESULT_ERROR_DEVICE_LOST",
        "XlaRuntimeError: INTERNAL: run time error: custom call 'xla.gpu.gemm' failed",
        "XlaRuntimeError: INTERNAL: the function failed to launch on the GPU",
        "RuntimeError: cublas runtime error : the GPU program failed to execute at THCBlas.cu:7",
        "solve.cu:9: Check failed: e == CUSPARSE_STATUS_SUCCESS: CUSPARSE ERROR: 6",
        "  driver: cusolverDnZgetrf failed",
    ],
    "cuda_init_failed": [
        "RuntimeError: No HIP GPUs are available",
        "docker: OCI runtime create failed: nvidia-container-cli: initialization error: nvml error: driver not loaded",
        "RuntimeError: CUDA error: initialization error",
        "clGetDeviceIDs: CL_DEVICE_NOT_FOUND",
        "Device ID 1 did not correspond to any of the 0 detected device(s)",
        "RuntimeError: Unexpected error from hipGetDeviceCount().",
        "Cuda failure 'initialization error'",
    ],
    "mpi_runtime_failure": [
        "MPIDI_OFI_handle_cq_error(7): OFI poll failed (Input/output error - UNDELIVERABLE)",
        "libfabric:12:cxi:ep_ctrl: message timed out",
        "At least one pair of MPI processes are unable to reach each other for MPI communications.",
        "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] got error: Timeout",
        "raylet: Some workers have not registered within the timeout. The process is dead",
        "The node with node id: ab12 has been marked dead because too many heartbeats are missing",
        "RuntimeError: Rank 0 failed to pass monitoredBarrier in 1800000 ms",
        "grpc._channel._InactiveRpcError: status = StatusCode.UNAVAILABLE",
        "srun: error: Task launch for StepId=12.0 failed on node n3: Communication connection failure",
        "ud_ep.c:278 Fatal: UD endpoint 0x1: unhandled timeout error",
        "Assertion failed in file src/mpid/ch4/netmod/ofi/util.c at line 18: 0",
        "srun: error: Task launch for 9.0 failed on node c7: Job credential expired",
        "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.",
        "distributed.worker - ERROR - Worker stream died during communication: tcp://10.0.0.7:2766",
        "distributed.worker - ERROR - Unexpected exception during heartbeat. Closing worker.",
    ],
    "model_ckpt_error": [
        "RuntimeError: File out/ckpt_9.pt cannot be opened.",
        "local_filesys.cc:4: Check failed: fwrite(p, 1, n, f) == n Write incomplete",
    ],
    "incorrect_inputs": [
        "requests.exceptions.HTTPError: 502 Server Error: Bad Gateway for url: https://data.example/set",
        "ConnectionError: Couldn't reach https://data.example/set.py",
        "2026-01-01 10:00:00 ERROR 503: Service Unavailable.",
        "DownloadError: check your internet connection",
        "OSError: We couldn't connect to 'https://x.example', and it is not the path to a directory containing",
        "ConnectionError: Couldn't reach 'a/set' on the Hub (ConnectionError)",
    ],
}
STAYS = {
    "gpu_out_of_memory": [
        "RuntimeError: UR error: UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        "error: failed to allocate 512 MB of VRAM",
        "EnforceNotMet: Cannot allocate 1.5GB memory on GPU 0, available memory is only 800MB.",
        "abort: CUDA error 2 in file /home/u/code/external/solver/base/memory/arena.cpp line 193: out of memory",
        "RuntimeError: Kokkos ERROR: HIP memory space failed to allocate",
        "errors_impl.ResourceExhaustedError: OOM when allocating tensor of shape [4096] and type float",
        "errors_impl.InternalError: Dst tensor is not initialized.",
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate",
        "Error Code 1: Cuda Runtime (out of memory)",
        "bfc_allocator.cc:2] Allocator (GPU_0_bfc) ran out of memory trying to allocate 16.0KiB.",
    ],
    "cpu_out_of_memory": [
        "ResourceExhaustedError: OOM when allocating tensor with shape[9] on /job:x/device:CPU:0 by allocator cpu",
        "slurmstepd: error: Exceeded step memory limit at some point.",
        "forrtl: severe (41): insufficient virtual memory",
        "RuntimeError: DataLoader 1 workers exit unexpectedly, pids: 461",
        "srun: error: gpu-12: task 0: Out Of Memory",
        "['python3', 'main.py'] exits with return code = -9",
        "Job failed with exit value -9",
        "=   EXIT CODE: 9\n\n[proxy:0:0@n1] HYD_pmcd_pmip_control_cmd_cb: assert (!closed) failed",
    ],
    "invalid_mem_access": [
        "Queue aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: beyond the address",
        "=   EXIT CODE: 11",
        "[n1:7] #1  Foam::sigSegv::sigHandler(int) at sigSegv.C:0",
        "exits with return code = -7",
    ],
    "core_dump": [
        "=   EXIT CODE: 134\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Terminated (signal 15)",
        "[n1:7] #1  Foam::sigFpe::sigHandler(int) at sigFpe.C:0",
        "forrtl: error (72): floating overflow",
    ],
    "cannot_load_libs": ["ImportError: dlopen(/opt/x/_fft.so, 2): Symbol not"],
    "cuda_failure": [
        "ERROR: LoadError: CUDA error (code 201, CUDA_ERROR_INVALID_CONTEXT)",
        'CUDA error at solve.cu:132 code=1(cudaErrorInvalidValue) "cudaMemcpy(a, b, n, kind)"',
        "error: GPU API call : invalid resource handle",
        "RuntimeError: HIP error: invalid argument",
        "clSetKernelArg: CL_INVALID_ARG_INDEX",
        "cuBLAS error 15: the requested functionality is not supported",
    ],
    "cuda_init_failed": [
        "Check failed: allow_missing: Device API gpu is not enabled",
        "RuntimeError: the package was compiled without CUDA",
        "Error: Requested GPU with id '2' but only 2GPU(s) available!",
        "[error] Invalid CUDA device index '7' from device string",
    ],
    "cuda_version_mismatch": [
        "nvrtc: error: invalid value for --gpu-architecture (-arch)",
        "ERROR: Device capability v1.1.0 not supported by available toolchain",
        "FATAL: the kernel requires 5.0 capability!",
        "CUDA driver version is insufficient for CUDA runtime version\n[ERROR]: No GPU was detected!",
    ],
    "mpi_error": [
        'The application appears to have been direct launched using "srun",',
        "It looks like pmix_init failed for some reason; your parallel process is",
    ],
    "model_diverged": [
        "ValueError: NaN or Inf encountered. Training failed!",
        "ERROR on proc 0: Bond atoms 10 11 missing on proc 0 at step 200",
        "ERROR: Out of range atoms - cannot compute PPPM",
        "FATAL ERROR: Low global exclusion count! System unstable or pairlistdist or cutoff too small.",
        "CFL number is nan, aborting",
        "Step 9, time 18 (ps)  LINCS WARNING\nrms 2.87, max 69.06 (between atoms 1 and 2)",
    ],
    "model_ckpt_error": [
        "RuntimeError: unexpected EOF, expected 12345 more bytes. The file might be corrupted.",
        "KeyError: 'ema_state_dict'",
    ],
    "incorrect_inputs": ["OSError: a/model does not appear to have a file named config.json."],
    "import_error": ["RuntimeError: Failed to import transformers.models.x because of the following error"],
    "traceback_from_crash": ["srun: raise KeyError(key) from None KeyError: 'RANK'"],
    "semantic_error": [
        "RuntimeError: \"LayerNormKernelImpl\" not implemented for 'Half'",
        "RuntimeError: the module has parameters that were not used in producing the loss",
        " local variable 'labels' referenced before assignment",
        "srun: error: Unable to create step for job 7: More processors requested than permitted",
        "ERROR: Illegal pair_style command (src/pair.cpp:99)",
        "Inconsistency in user input:",
        "[0]PETSC ERROR: Argument out of range\n[0]PETSC ERROR: or try http://x.example to find memory corruption",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
    ],
    "permission_error": ["RayTaskError(PermissionError)       Traceback (most recent call last)"],
}
LINES = [
    (kind, line, passes) for passes, part in ((True, PASSES), (False, STAYS)) for kind in part for line in part[kind]
]


@pytest.mark.parametrize(("kind", "line", "passes"), LINES, ids=[line[:60] for _, line, _ in LINES])
def test_the_words_of_many_runtimes(kind: str, line: str, passes: bool) -> None:
    found = classify(f"step 12 of 400\n{line}\n".encode(), Facts(), RULES)

    assert (found.failure, found.transient) == (kind, passes)


def test_what_nccl_says_of_its_plugins_is_no_failure() -> None:
    log = (
        "[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout\n"
        "n1:77:78 [1] NCCL INFO Plugin load returned 2 : libnccl-net.so: cannot open shared object file\n"
    )

    assert classify(log.encode(), Facts(), RULES).failure == "mpi_runtime_failure"
