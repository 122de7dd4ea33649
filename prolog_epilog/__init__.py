# SPDX-License-Identifier: Apache-2.0
"""Berth on a compute node: standard library only; shares file formats with the rest of Berth, never code."""
