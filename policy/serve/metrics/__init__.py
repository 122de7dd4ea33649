# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus: their table, their values, their paths and their readers."""
