# SPDX-License-Identifier: Apache-2.0
"""A calibration campaign over a cluster: whom to measure next, and when to make way. Pure, as the rest of the core."""
