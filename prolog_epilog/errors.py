# SPDX-License-Identifier: Apache-2.0
"""The errors of the node side, as one tree.

    NodeError                     one sentence: what, where, what to do
    ├── CannotShare               a share that cannot be set up here: the job is moved, the node stays in service
    │   ├── StateError            files under /run/berth cannot be read, written or trusted
    │   ├── Busy                  another Prolog or Epilog held the GPU too long
    │   ├── DriverError           the driver does not answer, or does not do what it was told
    │   └── ControlError          the MPS control program does not answer, or not as its manual says
    ├── HardwareFault             a GPU that needs a human: the node is drained, the text is the reason
    ├── ConfigError               the table [node] of berth.conf is wrong
    ├── ExtraError                a berth in a job's Extra that is not believed
    │   ├── Untied                Slurm has counted the job's share, and has tied it to no GPU of its own
    │   └── Disagreement          what Slurm gave the job and what its Extra says do not agree: it must not start
    ├── FormatError               a file that is not what docs/develop/formats.md says
    ├── SlurmError                scontrol failed or gave an answer that cannot be read
    │   └── Imitated              the job's own texts look like what scontrol prints
    ├── ChainError                a script of the site's own failed; carries its exit status
    ├── TookTooLong               a program was ended because its time was up
    ├── Interrupted               Slurm ends the Prolog or Epilog itself
    └── CalledWrongly             a program was not called by slurmd

The policy side has a tree of its own: the two share formats, never code.
"""


class NodeError(Exception):
    """The base of all errors; its text is one sentence for a person."""

    number = 910
    """The id of its messages (prolog_epilog.messages)."""


class CannotShare(NodeError):
    """The job cannot have its share on this node; nothing is wrong with the node."""

    number = 911


class StateError(CannotShare):
    """The state of the node cannot be kept."""

    number = 912


class Busy(CannotShare):
    """A lock could not be taken in time."""

    number = 913


class DriverError(CannotShare):
    """NVML failed."""

    number = 914


class ControlError(CannotShare):
    """The MPS control program failed."""

    number = 915


class HardwareFault(NodeError):
    """A GPU does not do what it must; the text is the reason for which the node is drained."""

    number = 916


class NodeConfigError(NodeError):
    """A wrong table [node] in berth.conf."""

    number = 917


class ExtraError(NodeError):
    """A job's Extra that does not say what Berth writes there."""

    number = 918


class Untied(ExtraError):
    """A job whose GPUs in the Prolog's environment are not those of its Extra.

    From a start of slurmctld until a node has registered, slurmctld ties a share to its GPU in its own books alone. The
    node hears of no GPU, and lets the job open none.
    """


class Disagreement(ExtraError):
    """A job whose Extra gives it another part of a GPU than Slurm counts for it."""

    number = 919

    def __init__(self, text: str, *, hold: bool = True) -> None:
        super().__init__(text)
        self.hold = hold
        """True if berthd can tell its user the reason; else the user sees only what SPANK says of the stopped job."""


class NodeFormatError(NodeError):
    """A text that does not follow docs/develop/formats.md."""

    number = 920


class NodeSlurmError(NodeError):
    """Slurm could not be asked or changed."""

    number = 921


class Imitated(NodeSlurmError):
    """Slurm answers, and a user's text makes the answer ambiguous."""

    number = 922


class ChainError(NodeError):
    """A script of the site's own failed."""

    number = 923

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class TookTooLong(NodeError):
    """A program did not end in its time."""

    number = 924


class Interrupted(NodeError):
    """SIGTERM came while a program ran."""

    number = 925


class CalledWrongly(NodeError):
    """The call lacks the environment that slurmd gives."""

    number = 926
