# SPDX-License-Identifier: Apache-2.0
"""The sets of GPUs of one node: which of them are best joined."""
