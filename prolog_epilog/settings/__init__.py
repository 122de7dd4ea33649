# SPDX-License-Identifier: Apache-2.0
"""Reads the tables of berth.conf that nodes use."""
