# SPDX-License-Identifier: Apache-2.0
"""The guard in a closed loop: its own code on a modelled device, in accelerated time."""
