# SPDX-License-Identifier: Apache-2.0
"""A simulated CUDA Multi-Process Service; README.md says what it knows.

Nothing is imported here: each command of the simulated MPS starts Python anew, and pathlib alone would double its time.
"""
