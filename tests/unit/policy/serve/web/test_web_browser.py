# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser."""

from pathlib import Path

import pytest

from policy.serve.web.simulated import SimulatedSource
from tests.unit.policy.serve.web.real_browser import browser_page
from tests.unit.policy.serve.web.web_world import BROWSER, HOSTILE, served, simulated_day
from tests.unit.policy.site.test_ahead import SECRETS, overview, page_of_ada
from tests.waiting import until


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed; install the package chromium")
@pytest.mark.parametrize(
    ("address", "texts"),
    [
        ("", ["of 8 GPUs in use", 'aria-current="page"', "<canvas"]),
        (
            "#/queue",
            ["Planned place", "boris", "n0 (GPU 0-7)", "<h2>The plan</h2>", "n0 GPU 0-7: job 7 of ada, from day 1"],
        ),
        ("#/time", ["The last", "start 1"]),
        ("#/job/7", ["Job 7", "It started", "&lt;img src=x onerror=alert(1)&gt;"]),
        ("#/node/n0", ["GPU 7", "takes jobs"]),
        ("#/node/%3Cb%3E", ["There is no such node here"]),
        ("#/gpu/n0/3", ['<li aria-current="true"', "#/gpu/n0/7"]),
        ("#/domain/none", ["Nothing has this name here"]),
        ("#/queue?state=runs&user=ada", ["No job waits", "1 job runs", 'aria-label="1 job runs"']),
    ],
)
def test_each_address_shows_its_view(tmp_path: Path, address: str, texts: list[str]) -> None:
    assert BROWSER is not None
    with served(SimulatedSource(simulated_day(tmp_path / "day.json"))) as server:
        page = f"http://127.0.0.1:{server.server_address[1]}/?at=100{address}"
        with browser_page(BROWSER, tmp_path / "browser") as view:
            view.open(page)
            shown = view.text_with(texts)

    assert HOSTILE not in shown


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed; install the package chromium")
def test_a_page_with_a_job_beside_it_fits(tmp_path: Path) -> None:
    assert BROWSER is not None
    source = SimulatedSource(simulated_day(tmp_path / "day.json", nodes=8))
    with served(source) as server, browser_page(BROWSER, tmp_path / "browser") as view:
        view.open(f"http://127.0.0.1:{server.server_address[1]}/?at=100#/job/7")
        view.text_with(["It started"])
        too_high = view.value("document.documentElement.scrollHeight - innerHeight")
        hidden = view.value("document.querySelector('canvas').clientWidth - find('floor').clientWidth")

    assert too_high == 0
    assert hidden < 0, "some of the room is below the job"


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed; install the package chromium")
def test_gpus_of_hidden_jobs_do_not_look_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BROWSER is not None
    source, access = page_of_ada("jobs", monkeypatch)
    with served(source, access) as server, browser_page(BROWSER, tmp_path / "browser") as view:
        view.open(f"http://127.0.0.1:{server.server_address[1]}/?token={'a' * 16}#/node/n1")
        view.text_with(["another user's job"])
        free, taken = (view.value(f"styled('--{name}')") for name in ("free", "edge"))
        seen = view.value("[...document.querySelectorAll('#side circle')].map(one => one.getAttribute('fill')).join()")

    assert taken in seen
    assert free not in seen


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed; install the package chromium")
@pytest.mark.parametrize(
    ("private", "address", "texts"),
    [
        ("none", "#/node/n1", ["clara", "93&nbsp;% busy, 70&nbsp;GiB, 698&nbsp;W"]),
        ("none", "#/job/4711", ["93&nbsp;% busy (93 to 93), 557&nbsp;GiB, 5584&nbsp;W"]),
        ("jobs", "#/node/n1", ["another user's job"]),
        ("jobs", "#/gpu/n2/3", ["0&nbsp;% busy, 0.0&nbsp;GiB, 70&nbsp;W"]),
        ("jobs,nodes", "#/node/n2", ["you may not see it"]),
    ],
)
def test_what_a_gpu_does_stands_beside_it_unless_its_job_is_hidden(
    private: str, address: str, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BROWSER is not None
    source, access = page_of_ada(private, monkeypatch)
    with served(source, access) as server, browser_page(BROWSER, tmp_path / "browser") as view:
        view.open(f"http://127.0.0.1:{server.server_address[1]}/?token={'a' * 16}{address}")
        shown = view.text_with(texts)
        until(lambda: "the page to ask", lambda: view.value("state.gauged") is not None)
        view.value("document.querySelector('[value=use]').click()")
        legend = view.text_with(["no node tells" if private == "jobs,nodes" else "time with a kernel"])
        assert view.value("find('colours').parentElement.hidden") == (private == "jobs,nodes")

    assert "93&nbsp;% busy" not in (shown + legend if private != "none" else "")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed; install the package chromium")
def test_an_open_page_follows_the_nodes_that_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BROWSER is not None
    source, access = page_of_ada("none", monkeypatch)
    more = overview()
    more["nodes"].insert(0, {**more["nodes"][1], "name": "n0"})
    with served(source, access) as server, browser_page(BROWSER, tmp_path / "browser") as view:
        view.open(f"http://127.0.0.1:{server.server_address[1]}/?token={'a' * 16}#/job/4711")
        view.text_with(["(n1 (GPU 0-7))"])
        monkeypatch.setattr(source, "_overview", lambda: more)
        source.read()
        server.exhibit.publish()
        until("the page to know the node", lambda: view.value("state.room.nodes.length") == 3)
        view.text_with(["(n1 (GPU 0-7))"])
        assert view.value("find('problem').textContent") == ""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed; install the package chromium")
def test_a_waiting_job_shows_the_plan_of_its_gpus_and_an_ended_one_no_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BROWSER is not None
    source, access = page_of_ada("none", monkeypatch)
    with served(source, access) as server, browser_page(BROWSER, tmp_path / "browser") as view:
        page = f"http://127.0.0.1:{server.server_address[1]}/?token={'a' * 16}"
        view.open(page)
        view.text_with(["2</span>"])
        view.open(f"{page}#/job/5")
        shown = view.text_with(["The plan of its GPUs", "n2 GPU 0-7: kept for job 4712 of boris", "this job"])
        assert ">null" not in shown
        view.open(f"{page}#/queue?user=boris")
        view.text_with(["1 job waits", "No job runs"])


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed; install the package chromium")
@pytest.mark.parametrize(
    ("private", "told"),
    [
        ("none", ["n1 GPU 0-7: job 4711 of clara", "n2 GPU 0-7: job 4712 of boris", "n1 GPU 0-1: job 5 of ada"]),
        (
            "jobs",
            ["n1 GPU 0-7: another user's job", "n1 GPU 0-1: job 5 of ada", "Slurm shows you your own jobs only."],
        ),
        ("jobs,nodes", ["1 job waits", "Slurm shows you your own jobs only, and no nodes.", "of your jobs waits"]),
    ],
)
def test_the_plan_of_the_cluster_tells_what_its_viewer_may_see(
    private: str, told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BROWSER is not None
    source, access = page_of_ada(private, monkeypatch)
    with served(source, access) as server, browser_page(BROWSER, tmp_path / "browser") as view:
        view.open(f"http://127.0.0.1:{server.server_address[1]}/?token={'a' * 16}#/queue")
        shown = view.text_with(told)

    assert private == "none" or [secret for secret in SECRETS if secret in shown] == []
    assert ("The plan" in shown) == ("all take jobs" in shown) == ("GPUs in use" in shown) == ("nodes" not in private)
    assert ("Slurm shows" in shown) == (private != "none")
