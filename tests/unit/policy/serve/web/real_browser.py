# SPDX-License-Identifier: Apache-2.0
"""A real browser, driven through its pipe: each message is JSON with a zero byte behind it."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import until

_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--window-size=1280,1000")
_WHOLE = "document.documentElement.outerHTML"


class Page:
    """One page that a browser shows."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from, self._rest, self._number = to_browser, from_browser, b"", 0
        self._session: dict[str, str] = {}
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}

    def open(self, address: str) -> None:
        """Goes to an address."""
        self._call("Page.navigate", url=address)

    def text(self) -> str:
        """Returns the whole document as it is now."""
        return str(self.value(_WHOLE) or "")

    def value(self, expression: str) -> Any:
        """Returns what an expression of JavaScript is now."""
        return self._call("Runtime.evaluate", expression=expression)["result"].get("value")

    def text_with(self, texts: list[str]) -> str:
        """Waits until the document has all these texts; returns it."""

        def found() -> str | None:
            now = self.text()
            return now if all(text in now for text in texts) else None

        return until(lambda: f"the page to show {texts}; it shows {self.text()}", found)

    def _call(self, method: str, **words: object) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": words, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._message()
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                return dict(reply["result"])

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._from, 1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def browser_page(browser: str, folder: Path) -> Iterator[Page]:
    """Yields a page of a browser of its own, which keeps its files in that folder."""
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    # It reads descriptor 3 and writes descriptor 4.
    script = f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}'
    command = ["bash", "-c", script, browser, *_FLAGS, f"--user-data-dir={folder}"]
    with subprocess.Popen(command, pass_fds=(their_in, their_out), stderr=subprocess.DEVNULL) as process:
        os.close(their_in)
        os.close(their_out)
        try:
            yield Page(our_out, our_in)
        finally:
            process.kill()
            os.close(our_out)
            os.close(our_in)
