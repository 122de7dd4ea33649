# SPDX-License-Identifier: Apache-2.0
"""Tests on a real GPU: elsewhere they are skipped with the reason."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest


def _lack() -> str:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as problem:
        return f"no NVIDIA driver here: {problem}"
    try:
        return "" if pynvml.nvmlDeviceGetCount() else "the driver knows no GPU"
    finally:
        pynvml.nvmlShutdown()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    lack = _lack() if here else ""
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if lack:
            item.add_marker(pytest.mark.skip(reason=lack))
