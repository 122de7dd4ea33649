# SPDX-License-Identifier: Apache-2.0
"""The guard's measurements: the devices, the owners' heartbeats, and how long an owner's step takes."""
