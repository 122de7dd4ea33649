# SPDX-License-Identifier: Apache-2.0
"""The read-only process: metrics, users' questions and the page, with one rule for what each user may see."""
