# SPDX-License-Identifier: Apache-2.0
"""Predicts how jobs get along on one GPU, decides which may share it, and matches guests to GPUs.

In this package `host` is the owner, the job that lends its GPU; a guest is the job that borrows it.
"""
