# SPDX-License-Identifier: Apache-2.0
"""Placement policies of published systems, for comparison."""
