# SPDX-License-Identifier: Apache-2.0
"""Measures the GPUs of a node: a real one through the driver, or a simulated one."""
