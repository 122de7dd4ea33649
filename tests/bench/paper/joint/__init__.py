# SPDX-License-Identifier: Apache-2.0
"""Berth in PAL's rounds: all jobs of a round are placed together, and may move."""
