# SPDX-License-Identifier: Apache-2.0
"""The decisions of the guard for one guest on one GPU, and the control laws that say how much the guest may run."""
