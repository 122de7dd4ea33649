# SPDX-License-Identifier: Apache-2.0
"""Simulates policies on recorded or drawn workloads, with the same code that berthd runs."""
