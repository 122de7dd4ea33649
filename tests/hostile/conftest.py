# SPDX-License-Identifier: Apache-2.0
"""The clusters of tests/slurm, attacked."""

from tests.slurm.conftest import clusters, quiet, slurm

__all__ = ["clusters", "quiet", "slurm"]
