# SPDX-License-Identifier: Apache-2.0
"""Backfill: which later jobs may start now without delaying the planned ones."""
