# SPDX-License-Identifier: Apache-2.0
"""The whole job_submit plugin in a test, with as much of slurmctld as it sees, for each Slurm whose headers lie here.

The headers come with the first image (`build/headers`); without any there is nothing to build against. Those of a
prefix that BERTH_TEST_SLURM names take their place.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from policy.daemon.write import pinned
from policy.formats import wire
from tests import building
from tests.told import Told

from . import fake_berthd

ROOT = Path(__file__).parents[2]
SOURCES = building.PLUGINS
_NOBODY = 1 << 30
FAKE = ROOT / "tests" / "fakes" / "slurmctld" / "slurmctld.c"
NO_HEADERS = "no headers of Slurm in build/headers; make demo and make test leave them there with the first image"
OWN = Path(os.environ.get("BERTH_TEST_SLURM") or "/nowhere") / "include"
HEADERS = [OWN] if OWN.is_dir() else sorted((ROOT / "build" / "headers").glob("*"))
USER = 12_345
"""Neither root nor who runs the tests."""

LISTS = {"arguments": "argument", "environment": "environment"}
"""Fields of several words, joined by newlines, and what one of them is called."""
SHOWN = (
    *("admin_comment", "cpus_per_task", "cpus_per_tres", "environment", "exc_nodes", "extra", "features"),
    *("licenses", "max_nodes", "mem_per_tres", "min_cpus", "min_nodes", "ntasks_per_node", "ntasks_per_tres"),
    *("partition", "pn_min_cpus"),
    *(
        "pn_min_memory",
        "req_nodes",
        "requeue",
        "segment_size",
        "tres_bind",
        "tres_per_job",
        "tres_per_node",
    ),
    *("tres_per_socket", "tres_per_task"),
)

Answer = Callable[[wire.Message], bytes | None]


@functools.cache
def library(headers: Path) -> ctypes.CDLL:
    """Built once for each Slurm."""
    names = [name for key in ("JOB_SUBMIT_SRCS", "PURE") for name in sources_of(key)]
    flags = ("-fPIC", "-shared", "-pthread", "-Wl,-Bsymbolic")
    target = building.built("plugin.so", [FAKE, *(SOURCES / name for name in names)], (SOURCES, headers), flags)
    # The plugin looks for slurmctld's symbols among those of the program.
    built = ctypes.CDLL(str(target), mode=os.RTLD_GLOBAL)
    built.fake_job.restype = ctypes.c_void_p
    return built


def release(headers: Path) -> tuple[int, int]:
    """The release of these headers, such as (26, 5)."""
    text = (headers / "slurm" / "slurm_version.h").read_text()
    found = re.search(r"#define\s+SLURM_VERSION_NUMBER\s+0x(..)(..)", text)
    assert found is not None, headers
    return int(found[1], 16), int(found[2], 16)


def sources_of(key: str) -> list[str]:
    """The C files that the plugins' Makefile names under this key."""
    text = (SOURCES / "Makefile").read_text().replace("\\\n", " ")
    line = re.search(rf"^{key}\s*:=(.*)$", text, re.MULTILINE)
    assert line is not None, key
    found: list[str] = re.findall(r"[a-z_0-9/]+\.c", line[1])
    return found


@dataclass(frozen=True, slots=True)
class Said:
    """What slurmctld does with a submission or a change, and what its user reads."""

    rc: int
    text: str
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Plugin:
    """The plugin as slurmctld has it."""

    built: ctypes.CDLL
    folder: Path

    def submit(self, user: int = USER, flags: Mapping[str, str] | None = None, /, **fields: str) -> Said:
        """A batch job, or with an empty `script` one without."""
        script = {} if fields.get("script") == "" else {"script": "#!/bin/sh"}
        return self._call("fake_submit", [(ctypes.c_uint32(user),)], {**script, **fields}, flags or {})[0]

    def modify(self, record: str, user: int = USER, /, **fields: str) -> Said:
        """A change of a job by its name in Slurm's log, such as `JobId=18_3(21)`."""
        return self.modify_each((record,), user, **fields)[0]

    def modify_each(self, records: Sequence[str], user: int = USER, /, **fields: str) -> Sequence[Said]:
        """One change that slurmctld hands to one record after the other, as of a job of several components."""
        return self._call("fake_modify", [(one.encode(), ctypes.c_uint32(user)) for one in records], fields, {})

    def site_licenses(self, licenses: str) -> None:
        """What `Licenses` of slurm.conf says."""
        self.built.fake_licenses(licenses.encode())

    def list(self, jobs: Mapping[int, int]) -> None:
        """Make these the jobs that berthd has listed."""
        pinned.write(self.folder / "pinned", jobs)

    def berthd(self, answer: Answer) -> AbstractContextManager[Sequence[int]]:
        """A berthd that says what the test wants, to each that asks; how many requests came over each connection."""
        return fake_berthd.berthd(self.folder / "sock", lambda request: answer(wire.decode(request)))

    def _call(
        self, function: str, each: Sequence[tuple[object, ...]], fields: Mapping[str, str], flags: Mapping[str, str]
    ) -> Sequence[Said]:
        job = ctypes.c_void_p(self.built.fake_job())
        said = ctypes.create_string_buffer(4_096)
        try:
            for name, value in fields.items():
                one = LISTS.get(name, name)
                for word in filter(None, value.split("\n")) if name in LISTS else [value]:
                    assert self.built.fake_set(job, one.encode(), word.encode()), name
            for name, value in flags.items():
                self.built.fake_flag(job, f"_SLURM_SPANK_OPTION_berth_{name.replace('-', '_')}={value}".encode())
            every = []
            for middle in each:
                rc = getattr(self.built, function)(job, *middle, said, ctypes.c_size_t(len(said)))
                every.append(Said(rc, said.value.decode(), self._fields(job)))
            return every
        finally:
            self.built.fake_end(job)

    def _fields(self, job: ctypes.c_void_p) -> Told:
        value = ctypes.create_string_buffer(70_000)
        size = ctypes.c_size_t(len(value))
        found = {name: value.value.decode() for name in SHOWN if self.built.fake_get(job, name.encode(), value, size)}
        return Told(found, "the job that the plugin has seen")


def reply(verb: str, request: wire.Message, /, **fields: str) -> bytes:
    """An answer to this very request."""
    return wire.encode(verb, {"nonce": request.fields["nonce"], **fields})


def place(request: wire.Message, /, nodes: str = "n1", gpus: str = "3", **more: str) -> bytes:
    """A place with whole GPUs, or with what `more` says of them."""
    seats = "0" if {"share", "guest", "way"} & more.keys() else "1"
    values = wire.words({"state": "placed", "id": "0"})
    return reply("place", request, nodes=nodes, gpus=gpus, seats=seats, segment=values, **more)


def refused(said: Said) -> bool:
    """Whether it is Berth that refused it."""
    return said.rc != 0 and said.text.startswith("berth: ")


def _forget(built: ctypes.CDLL) -> None:
    """Drive out what the plugin remembers of users, who submit in other tests too."""
    now = ctypes.c_uint64(int(time.monotonic() * 1e6))
    for uid in range(1_024):
        built.recent_note(_NOBODY + uid, 1 << 31, now)


@contextmanager
def loaded(
    headers: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    hook: str = "",
    deadline_ms: int = 1000,
    *,
    build: Callable[[Path], ctypes.CDLL] = library,
) -> Iterator[Plugin]:
    """The plugin between init and fini, with a berth.conf."""
    conf = folder / "berth.conf"
    conf.write_text(
        f'[hook]\nsocket = "{folder}/sock"\npinned_file = "{folder}/pinned"\ndeadline_ms = {deadline_ms}\n{hook}\n'
    )
    monkeypatch.setenv("BERTH_CONF", str(conf))
    built = build(headers)
    built.init()
    try:
        yield Plugin(built, folder)
    finally:
        built.fini()
        built.fake_licenses(None)
        _forget(built)


each_slurm = pytest.mark.parametrize(
    "headers",
    [pytest.param(path, marks=pytest.mark.headers) for path in HEADERS]
    or [pytest.param(None, marks=[pytest.mark.headers, pytest.mark.skip(NO_HEADERS)])],
    ids=lambda path: path and path.name,
)
