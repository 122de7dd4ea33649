# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own programs and Prometheus, from Debian's packages, without a GPU."""
