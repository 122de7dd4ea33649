# SPDX-License-Identifier: Apache-2.0
"""Known faults in the programs of a node, planted one by one: `python -m tests.world.nodes.planted`."""

from __future__ import annotations

import inspect
import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from prolog_epilog import chain, remembered
from prolog_epilog.guard.hold import guest_hold
from prolog_epilog.guard.seats import watch
from prolog_epilog.mps import ceiling, daemon, lifecycle, modes
from prolog_epilog.node import files, freezer, mounts
from prolog_epilog.sharing import tenancy
from prolog_epilog.tenants import share_file, state
from tests.world.clock import Replaced
from tests.world.kinds import NODES
from tests.world.planted import PlantedFault, main


def _an_epilog_takes_the_share_of_a_later_run(put: Replaced) -> None:
    put.set(state.Tenant, "is_later_than", lambda _tenant, _start: False)
    put.set(share_file, "has_later", lambda _paths, _job, _start: False)
    read = tenancy._file
    put.set(tenancy, "_file", lambda job, here: replace(read(job, here), start=0))


def _shares_are_not_added_up(put: Replaced) -> None:
    text = inspect.getsource(lifecycle._join).replace("total > 100", "total > 10_000")
    made: dict[str, Any] = {}
    exec(text, vars(lifecycle), made)  # noqa: S102 - the product's own text
    put.set(lifecycle, "_join", made["_join"])


def _a_server_is_left(put: Replaced) -> None:
    put.set(daemon, "_await_end", lambda _ours, _boot: None)
    put.set(daemon, "_ours", lambda _control, one: [one.daemon] if one.daemon else [])
    put.set(daemon, "running", lambda _state: False)


def _a_killed_prolog_is_not_swept(put: Replaced) -> None:
    put.set(lifecycle, "sweep", lambda *_, **__: ())


def _modes_are_not_restored(put: Replaced) -> None:
    put.set(modes, "restore", lambda _nvml, _uuid, _mode: [])


def _the_ceiling_is_not_lowered(put: Replaced) -> None:
    put.set(ceiling.Ceiling, "leave", lambda *_: None)


def _a_frozen_guest_is_not_let_go(put: Replaced) -> None:
    hold = guest_hold.GuestHold.hold

    def broken(one: Any, now: float, duty: float, *, by_freezer: bool) -> None:
        hold(one, now, 0.0 if one.frozen else duty, by_freezer=by_freezer or one.frozen)

    put.set(guest_hold.GuestHold, "hold", broken)


def _the_dead_man_thaws_nobody(put: Replaced) -> None:
    put.set(freezer, "thaw_expired", lambda *_, **__: [])


def _owners_are_frozen(put: Replaced) -> None:
    def broken(job: int, root: Any = freezer.ROOT) -> bool:
        groups = [one for group in (root / "system.slice").glob("*/job_*") for one in group.glob("step_*/user/task_*")]
        return freezer._write(groups, frozen=True)

    put.set(freezer, "freeze", broken)


def _an_epilog_leaves_the_share_file(put: Replaced) -> None:
    put.set(share_file, "remove", lambda *_: None)


def _lost_epilogs_are_not_looked_for(put: Replaced) -> None:
    put.set(watch.Watch, "clear_lost", lambda _: None)


def _running_jobs_look_over(put: Replaced) -> None:
    put.set(tenancy, "is_over", lambda _job, _slurm: True)


def _a_full_disk_ends_a_prolog_badly(put: Replaced) -> None:
    def broken(here: Any, file: Any) -> bool:
        share_file.write(here.paths, file)
        return True

    put.set(tenancy, "_write", broken)


def _books_are_written_in_place(put: Replaced) -> None:
    system = vars(files)

    def broken(path: Any, content: str, mode: int = 0o600) -> None:
        with files._told("write", path):
            handle = system["os"].open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with system["os"].fdopen(handle, "w") as file:
                file.write(content)

    put.set(files, "write", broken)


def _gpus_are_not_locked(put: Replaced) -> None:
    @contextmanager
    def broken(paths: Any, uuids: Any, seconds: float) -> Iterator[None]:
        for uuid in uuids:
            files.own_folder(paths.gpu(uuid), files.THROUGH)
        yield

    put.set(files, "locked", broken)


def _guests_end_for_no_reason(put: Replaced) -> None:
    put.set(watch, "_SELDOM", 60.0)
    seat = sys.modules["prolog_epilog.guard.seats.seat"].GuardedSeat
    changed = seat._host_changed

    def broken(one: Any, now: float) -> None:
        changed(one, now)
        if one.held is not None:
            one._do(now, one.decider.end_now(now, "planted"))

    put.set(seat, "_host_changed", broken)


def _gpus_are_not_kept_for_the_epilog(put: Replaced) -> None:
    put.set(remembered, "keep", lambda _job, _gpus, _here: None)


def _minors_are_taken_for_positions(put: Replaced) -> None:
    put.set(chain, "indices", lambda gpus, _known: tuple(gpus))


def _pages_stay_mounted(put: Replaced) -> None:
    put.set(mounts, "unmount", lambda _folder: None)


def _the_second_gpu_has_no_limit(put: Replaced) -> None:
    text = inspect.getsource(ceiling.Ceiling.set_memory)
    made: dict[str, Any] = {}
    exec(textwrap.dedent(text).replace(" {ordinal}", " 0"), vars(ceiling), made)  # noqa: S102 - the product's own text
    put.set(ceiling.Ceiling, "set_memory", made["set_memory"])


NODE_PLANTED = (
    PlantedFault("a repeated Epilog takes the next run's share", _an_epilog_takes_the_share_of_a_later_run, 200),
    PlantedFault("shares are not added up", _shares_are_not_added_up, 200),
    PlantedFault("an Epilog leaves MPS running", _a_server_is_left, 200),
    PlantedFault("nobody sweeps after a killed Prolog", _a_killed_prolog_is_not_swept, 200),
    PlantedFault("compute modes are not restored", _modes_are_not_restored, 200),
    PlantedFault("the ceiling stays when its job leaves", _the_ceiling_is_not_lowered, 200),
    PlantedFault("a frozen guest is not thawed", _a_frozen_guest_is_not_let_go, 200),
    PlantedFault("the dead-man thaws nobody", _the_dead_man_thaws_nobody, 200),
    PlantedFault("owners are frozen with their guests", _owners_are_frozen, 200),
    PlantedFault("an Epilog leaves the share file", _an_epilog_leaves_the_share_file, 200),
    PlantedFault("lost Epilogs are not looked for", _lost_epilogs_are_not_looked_for, 200),
    PlantedFault("a running job's share is taken back", _running_jobs_look_over, 200),
    PlantedFault("a full disk is a fault of the Prolog", _a_full_disk_ends_a_prolog_badly, 200),
    PlantedFault("books are written in place", _books_are_written_in_place, 200),
    PlantedFault("GPUs are not locked", _gpus_are_not_locked, 200),
    PlantedFault("a guest is ended when its owner comes", _guests_end_for_no_reason, 200),
    PlantedFault("GPUs are not kept for the Epilog", _gpus_are_not_kept_for_the_epilog, 200),
    PlantedFault("minors are taken for positions", _minors_are_taken_for_positions, 200),
    PlantedFault("pages stay mounted", _pages_stay_mounted, 200),
    PlantedFault("the second GPU of a share has no limit", _the_second_gpu_has_no_limit, 200),
)


if __name__ == "__main__":
    sys.exit(main(NODE_PLANTED, NODES))
