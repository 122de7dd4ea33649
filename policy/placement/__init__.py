# SPDX-License-Identifier: Apache-2.0
"""Placement policies, which choose nodes and GPUs for jobs, and helpers for them."""
