# SPDX-License-Identifier: Apache-2.0
"""The errors of a word, as one tree.

InjobError
└── WordError  a word cannot be made, opened or read
"""


class InjobError(Exception):
    """Something inside the job does not work; the message is one sentence."""


class WordError(InjobError):
    """A word cannot be made, opened or read."""
