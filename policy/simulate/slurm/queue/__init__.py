# SPDX-License-Identifier: Apache-2.0
"""The simulated jobs: in which order they wait, why, and how they run."""
