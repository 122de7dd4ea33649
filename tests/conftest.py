"""For all tests: no deadline for a single example, since clusters and other tests share the machine's cores with it."""

from __future__ import annotations

import os

from hypothesis import settings

from tests.examples import examples

# Tests make files for processes of other users; what Berth itself makes under another umask has tests of its own.
os.umask(0o022)

settings.register_profile("berth", deadline=None, max_examples=examples(100))
settings.load_profile("berth")
