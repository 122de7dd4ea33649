# SPDX-License-Identifier: Apache-2.0
"""The node's part of a pre-flight: a job's script runs on one GPU until its first step (docs/user/preflight.md)."""
