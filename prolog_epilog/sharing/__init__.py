# SPDX-License-Identifier: Apache-2.0
"""Sets up the share of a job that shares GPUs, and takes it back."""
