# SPDX-License-Identifier: Apache-2.0
"""Looks at the GPUs that jobs hold, every 15 s: which run no kernel, and in which jobs nothing moves any more."""
