# SPDX-License-Identifier: Apache-2.0
"""The thread that looks at the node's GPUs and at their jobs, and tells berthd what it finds.

The driver is opened for each look alone: an open handle keeps a GPU from being reset.
"""

import socket
import time
from collections.abc import Callable

from prolog_epilog.errors import NodeError
from prolog_epilog.guard.options import NoticeOptions
from prolog_epilog.guard.tell import notice
from prolog_epilog.looks.gpu_use import GpuLooks, GpuNotice, parts_of
from prolog_epilog.looks.still import StillLooks
from prolog_epilog.messages import numbered
from prolog_epilog.node import devices
from prolog_epilog.node.paths import Paths

PERIOD = 15.0
"""Seconds between two looks: the driver remembers for about so long if a GPU worked."""


def watch(paths: Paths, options: NoticeOptions, say: Callable[[str], None], ends: Callable[[], bool]) -> None:
    """Looks and tells until the guard ends; runs in a thread of its own, for which the guard does not wait.

    A trouble that lasts is said once, and one that comes back once more.
    """
    found, node = GpuLooks(), socket.gethostname().partition(".")[0]
    still, said = StillLooks(paths, node), ""
    while not ends():
        time.sleep(PERIOD)
        try:
            known = devices.gpus(paths)
            with devices.driver() as driver:
                found.look(driver, known, time.monotonic(), parts_of(paths, known))
            if (gpus := found.due(time.monotonic())) is not None:
                notice.tell(options, GpuNotice(node, gpus))
            for one in still.look(time.monotonic(), found.seen):
                notice.tell(options, one)
            said = ""
        except (NodeError, OSError) as problem:
            if (trouble := numbered(problem)) != said:
                say(trouble)
            said = trouble
