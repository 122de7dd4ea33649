# SPDX-License-Identifier: Apache-2.0
"""Exceptions of this package.

TopologyError
├── TopologyFileError        a file cannot be read or written, or does not keep to its format
├── HostlistError            a text is no host list
├── ProviderError            the machine cannot be asked
├── MachineError             a machine contradicts itself
├── UnknownError             what is known does not suffice for a right answer, so none is guessed
├── QuestionError            a question that has no answer: a level, vertex or demand that there cannot be
└── TooManySetsError         the GPUs of a node can be combined in more ways than can be looked at
"""


class TopologyError(Exception):
    """Base of every error that this package raises; its text is one sentence for an admin."""


class TopologyFileError(TopologyError):
    """A topology file cannot be read or written, or does not keep to its format."""


class HostlistError(TopologyError):
    """A text is no host list."""


class ProviderError(TopologyError):
    """The machine cannot be asked about its GPUs."""


class MachineError(TopologyError, ValueError):
    """A machine contradicts itself, such as a link to a GPU that it does not have."""


class UnknownError(TopologyError):
    """The known facts do not suffice for a right line of configuration, so none is guessed."""


class QuestionError(TopologyError, ValueError):
    """A question that has no answer, such as one about a level that there is not."""


class TooManySetsError(TopologyError):
    """The GPUs of a node can be combined in more ways than can be looked at."""
