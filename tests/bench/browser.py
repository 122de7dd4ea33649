# SPDX-License-Identifier: Apache-2.0
"""What a real browser makes of the page; called by tests/bench/web_page.py in an environment that has Playwright.

`python tests/bench/browser.py BROWSER ADDRESS FOLDER JOB NODE`: a line of JSON with times, bytes and axe-core's
findings; pictures of each view go to the folder.
"""

import json
import sys
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-not-found]
from playwright.sync_api import sync_playwright  # type: ignore[import-not-found]

LOOKS = {"light": (1200, 800), "dark": (1200, 800), "phone": (390, 844)}
ARGUMENTS = ["--no-sandbox", "--disable-gpu"]


def main(browser: str, address: str, folder: str, job: str, node: str) -> None:
    """Opens each view in each look."""
    views = {"room": "", "queue": "#/queue", "time": "#/time", "job": f"#/job/{job}", "node": f"#/node/{node}"}
    found: list[dict[str, Any]] = []
    first: dict[str, Any] = {}
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=ARGUMENTS)
        for look, (width, height) in LOOKS.items():
            scheme = "dark" if look == "dark" else "light"
            context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            if not first:
                first = opened(page, address)
            for view, part in views.items():
                page.goto(address + part)
                page.get_by_text("GPUs in use").first.wait_for(state="attached")
                page.wait_for_load_state("load")
                wide = page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
                page.screenshot(path=Path(folder) / f"{view}-{look}.png")
                axe = Axe().run(page).response["violations"]
                serious = [
                    f"{one['id']}: {one['nodes'][0]['html'][:120]}"
                    for one in axe
                    if one["impact"] in ("serious", "critical")
                ]
                found.append({"view": view, "look": look, "serious": serious, "all": len(axe), "too_wide": wide})
            context.close()
        chromium.close()
    print(json.dumps({**first, "views": found}))


def opened(page: Any, address: str) -> dict[str, Any]:
    """Opens the page for the first time: milliseconds to the first paint and to the drawn room, and bytes."""
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    sizes: list[float] = []
    network.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.goto(address)
    page.get_by_text("GPUs in use").first.wait_for(state="attached")
    drawn = page.evaluate("performance.now()")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    network.detach()
    return {"first_paint_ms": paint, "room_ms": drawn, "bytes": sum(sizes)}


if __name__ == "__main__":
    main(*sys.argv[1:])
