# SPDX-License-Identifier: Apache-2.0
"""The simulated jobs: their order, the reasons of their waits, and their runs."""
