"""The page in a real browser."""

from pathlib import Path

import pytest

from policy.serve.web.simulated import SimulatedSource
from tests.unit.policy.serve.web.real_browser import browser_page
from tests.unit.policy.serve.web.web_world import BROWSER, HOSTILE, served, simulated_day


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed; install the package chromium")
@pytest.mark.parametrize(
    ("address", "texts"),
    [
        ("", ["of 8 GPUs in use", 'aria-current="page"', "<canvas"]),
        ("#/queue", ["Planned place", "boris", "n0 (GPU 0-7)"]),
        ("#/time", ["The last", "start 1"]),
        ("#/job/7", ["Job 7", "It started", "&lt;img src=x onerror=alert(1)&gt;"]),
        ("#/node/n0", ["GPU 7", "takes jobs"]),
        ("#/node/%3Cb%3E", ["There is no such node here"]),
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
