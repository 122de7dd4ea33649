"""What can go wrong with a topology.

TopologyError
├── TopologyFileError        a file cannot be read, or does not keep to its format
├── ProviderError            the machine cannot be asked
├── MachineError             a machine contradicts itself
└── TooManySetsError         the GPUs of a node can be combined in more ways than can be looked at
"""

from __future__ import annotations

__all__ = ["MachineError", "ProviderError", "TooManySetsError", "TopologyError", "TopologyFileError"]


class TopologyError(Exception):
    """Base of every error that this package raises; its text is one sentence for an admin."""


class TopologyFileError(TopologyError):
    """A topology file cannot be read, or does not keep to its format."""


class ProviderError(TopologyError):
    """The machine cannot be asked about its GPUs."""


class MachineError(TopologyError, ValueError):
    """A machine contradicts itself, such as a link to a GPU that it does not have."""


class TooManySetsError(TopologyError):
    """The GPUs of a node can be combined in more ways than can be looked at."""
