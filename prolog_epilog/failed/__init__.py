# SPDX-License-Identifier: Apache-2.0
"""Failed jobs: waits for what they wrote, and reports the class of the failure."""
