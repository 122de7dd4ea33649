# SPDX-License-Identifier: Apache-2.0
"""CUDA's Multi-Process Service, from the first job that shares a GPU to the last.

    control       one command at a time to NVIDIA's control program
    daemon        start and end of a control daemon, outside every job
    limits        the common part of both methods to hold a share: set, then read back
    namespaces    a method for drivers that give each job limits of its own
    ceiling       the method for all other drivers
    lifecycle     attach a job, detach a job
    modes         compute modes: whether a GPU may be used without MPS
    losses        the jobs that lost MPS, also those that ended before the guard looked
    walls         the kernel's limit of memory, where there is one
    trouble       the guard's actions when a server fails

Facts about MPS are from NVIDIA's manual (r550 to r615) and its control programs of drivers 535, 550, 580 and 595.
"""

from prolog_epilog.mps.lifecycle import Attached, Detached, attach, detach, sweep, tenants
from prolog_epilog.mps.limits import Level
from prolog_epilog.tenants.state import Tenant

__all__ = ["Attached", "Detached", "Level", "Tenant", "attach", "detach", "sweep", "tenants"]
