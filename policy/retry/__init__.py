# SPDX-License-Identifier: Apache-2.0
"""Classifies failed jobs, and decides on another try (after Philly's study of 39,776 failed trials)."""
