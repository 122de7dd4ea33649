# SPDX-License-Identifier: Apache-2.0
"""Writes study files for tests."""

import hashlib
import json
from pathlib import Path


def study(**keys: object) -> tuple[str, str]:
    """Writes a study file into the current folder, and returns the words that name it."""
    # Texts, numbers, lists and truth values are written alike in JSON and TOML.
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    path = Path(f"study-{hashlib.sha256(text.encode()).hexdigest()[:8]}.toml")
    path.write_text(text)
    return "--study", str(path)
