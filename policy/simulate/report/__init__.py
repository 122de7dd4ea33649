# SPDX-License-Identifier: Apache-2.0
"""Writes the results of a simulation: tables for people, files for programs, a page with pictures."""
