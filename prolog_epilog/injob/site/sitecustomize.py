# SPDX-License-Identifier: Apache-2.0
"""Python loads this at its start if this folder is on PYTHONPATH: it waits for the program to import torch.

It never imports torch itself, never fails, and lets another sitecustomize further down the path run as before. Set
BERTH_INJOB=off to leave a program alone, BERTH_INJOB=verbose to be told why nothing happens.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import types
from contextlib import suppress
from pathlib import Path

_HERE = str(Path(__file__).resolve().parent)


def _install() -> None:
    try:
        import berth_injob  # type: ignore[import-not-found] # noqa: PLC0415 - only a program with torch pays for it

        why = berth_injob.install()
    except Exception as error:  # noqa: BLE001 - a program must never fail because of us
        why = repr(error)
    if why and os.environ.get("BERTH_INJOB") == "verbose":
        print(f"berth: {why} [BERTH-905]", file=sys.stderr)


class _TorchWatcher:
    """Finds torch as Python would, and hooks in once it has been loaded."""

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """Takes part in the import of torch alone."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                load(module)
                _install()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _others() -> None:
    """Runs the sitecustomize that Python would have found without this one."""
    rest = [one for one in sys.path if str(Path(one or ".").resolve()) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_others()
if os.environ.get("BERTH_INJOB") != "off" and sys.version_info >= (3, 10):
    if os.environ.get("BERTH_PREFLIGHT") == "1":
        with suppress(Exception):
            from berth_preflight import one_process  # type: ignore[import-not-found]

            sys.argv[:] = one_process(sys.argv, sys.orig_argv)
    if os.environ.get("BERTH_WORD"):
        sys.meta_path.insert(0, _TorchWatcher())
