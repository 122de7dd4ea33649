# SPDX-License-Identifier: Apache-2.0
"""Shared GPUs: the parts that several jobs hold of a GPU, and until when."""
