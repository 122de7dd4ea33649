# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus: their table, values, paths and access rules."""
