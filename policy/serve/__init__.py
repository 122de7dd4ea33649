# SPDX-License-Identifier: Apache-2.0
"""The read-only process: metrics, users' questions and the page, by one rule of what each user may see."""
