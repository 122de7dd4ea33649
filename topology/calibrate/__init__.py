# SPDX-License-Identifier: Apache-2.0
"""Calibration: from runs of kernels on every GPU to scores that hold for months."""
