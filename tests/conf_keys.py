# SPDX-License-Identifier: Apache-2.0
"""The keys of berth.conf as packaging/keys.py reads them, for tests and `python -m tests.bench.house`."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MADE: dict[str, Any] = runpy.run_path(str(ROOT / "packaging" / "keys.py"))
TABLES = MADE["read"]()
