# SPDX-License-Identifier: Apache-2.0
"""Tests on real clusters. With pytest-xdist each worker has clusters of its own, and all use the same images."""

import os

if _WORKER := os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw0"):
    _prefix = os.environ.get("BERTH_CLUSTER_PREFIX") or "berth"
    os.environ.setdefault("BERTH_CLUSTER_IMAGES", _prefix)
    os.environ["BERTH_CLUSTER_PREFIX"] = f"{_prefix}-{_WORKER}-"
