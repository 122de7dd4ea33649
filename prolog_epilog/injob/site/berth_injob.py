# SPDX-License-Identifier: Apache-2.0
"""`import berth_injob`: heartbeat, gate and memory scaling for a program that shares its GPU.

This folder stands on PYTHONPATH in jobs that share a GPU. It loads Berth's part of the job, and nothing else of Berth,
from beside it: no other package of Berth's own environment becomes visible. Standard library only.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]

if _PACKAGE.name not in sys.modules:
    _package = types.ModuleType(_PACKAGE.name)
    _package.__path__ = [str(_PACKAGE)]
    sys.modules[_PACKAGE.name] = _package

_injob = importlib.import_module(f"{_PACKAGE.name}.injob")

ready, step, gate, why = _injob.ready, _injob.step, _injob.gate, _injob.why


def install() -> str:
    """Hooks into PyTorch; returns the reason if that is of no use, or an empty text."""
    answer: str = importlib.import_module(f"{_PACKAGE.name}.injob.torch_hooks").install()
    return answer


if "torch" in sys.modules:
    install()

__all__ = ["gate", "install", "ready", "step", "why"]
