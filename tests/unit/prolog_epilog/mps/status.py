# SPDX-License-Identifier: Apache-2.0
"""The status of the MPS server of a GPU, as the guard's loop would ask for it."""

from prolog_epilog.mps import lifecycle
from prolog_epilog.mps.control import MpsConfig
from prolog_epilog.node import processes
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import state as states


def server_status(paths: Paths, config: MpsConfig, uuid: str) -> str:
    """Returns ACTIVE, INITIALIZING or FAULT as MPS says; GONE: no server; NONE: no job shares the GPU."""
    state = states.load(paths, uuid)
    if state is None or state.boot != processes.boot_id(paths.boot_id):
        return "NONE"
    return lifecycle.status_of(paths, config, state)
