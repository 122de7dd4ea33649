"""For all tests: no deadline for a single example, since clusters and other tests share the machine's cores with it."""

from __future__ import annotations

from hypothesis import settings

from tests.examples import examples

settings.register_profile("berth", deadline=None, max_examples=examples(100))
settings.load_profile("berth")
