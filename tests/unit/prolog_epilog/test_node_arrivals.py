# SPDX-License-Identifier: Apache-2.0
"""The note of a Prolog to the guard: a job with whole GPUs comes to a GPU with a guest."""

from __future__ import annotations

from pathlib import Path

import pytest

from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import arrivals
from prolog_epilog.tenants.arrivals import Arrival

NOTE = "berth-arrival/1\nuuids=GPU-a,GPU-b\nplanned=1\n"


def test_the_guard_reads_what_prologs_wrote(tmp_path: Path) -> None:
    written = {
        Arrival(7, ("GPU-a", "GPU-b"), planned=True),
        Arrival(8, ("GPU-c",), planned=False),
    }
    for one in written:
        arrivals.announce(Paths(tmp_path), one)

    assert set(arrivals.pending(Paths(tmp_path))) == written
    assert (tmp_path / "arrivals" / "7").read_text() == NOTE


def test_an_answer_to_an_earlier_run_of_the_job_is_none_to_this_one(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    arrivals.announce(paths, Arrival(7, ("GPU-a",), planned=True))
    arrivals.answer(paths, 7)

    arrivals.announce(paths, Arrival(7, ("GPU-a",), planned=True))

    assert not (tmp_path / "arrivals" / "7.safe").exists()


@pytest.mark.parametrize(
    "text", ["", NOTE.replace("/1", "/2"), NOTE.replace("planned=1", "planned=2"), NOTE + "more=1\n", NOTE.strip()]
)
def test_a_note_that_cannot_be_read_is_passed_over(tmp_path: Path, text: str) -> None:
    arrivals.announce(Paths(tmp_path), Arrival(7, ("GPU-a",), planned=True))
    (tmp_path / "arrivals" / "9").write_text(text)

    assert [one.job for one in arrivals.pending(Paths(tmp_path))] == [7]
