# SPDX-License-Identifier: Apache-2.0
"""berth-guard: keeps a guest on a GPU from harming the job that owns the GPU (the owner; host in names)."""
