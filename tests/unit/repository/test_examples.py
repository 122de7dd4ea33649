# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings say what is so."""

from __future__ import annotations

import doctest
import importlib
import re

import pytest

from tests.reach import ROOT

WITH_EXAMPLES = sorted(
    str(path.relative_to(ROOT))
    for top in ("policy", "topology", "prolog_epilog", "tests")
    for path in (ROOT / top).rglob("*.py")
    if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
)


@pytest.mark.parametrize("path", WITH_EXAMPLES)
def test_each_example_gives_what_its_docstring_says(path: str) -> None:
    module = importlib.import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))

    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)

    assert found.attempted, f"the examples of {path} stand where doctest does not see them"
    assert not found.failed, f"{found.failed} of {found.attempted} examples of {path} are not so; see above"
