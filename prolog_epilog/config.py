"""Reads the table `[node]` of berth.conf, and checks every key; other programs read the other tables."""

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from prolog_epilog.errors import NodeConfigError

CONFIGLESS = "/etc/slurm/berth.conf"
"""The path of berth.conf on nodes to which the controller sends slurm.conf."""

_TABLE = re.compile(rb"^[^#\w\n]*node", re.MULTILINE)
"""The begin of a line that could open the table."""

_WORDS = {
    "inject": ("none", "hooks", "all"),
    "static_partitions": ("auto", "never"),
    "violation": ("warn", "terminate", "requeue"),
}
_KINDS = {str: "a text in quotes", int: "a whole number", float: "a number", bool: "true or false"}
_PATHS = ("inject_from", "jobs_for_dcgm", "jobs_for_jobstats", "mps_control", "scontrol", "log")
_IN_LISTS = ("inject_from",)
"""Keys whose values become elements of lists of paths."""
_LEAST = {"chain_timeout": 1, "mps_start_timeout": 1, "mps_stop_timeout": 1, "scontrol_timeout": 1}


class NodeConfig(NamedTuple):
    """The settings of the nodes."""

    chain_prolog: tuple[str, ...] = ()
    """The site's own Prolog scripts: absolute paths, or patterns of such."""
    chain_epilog: tuple[str, ...] = ()
    chain_timeout: int = 300
    """Seconds for all of these scripts together."""
    mps_control: str = "/usr/bin/nvidia-cuda-mps-control"
    mps_start_timeout: float = 60.0
    mps_stop_timeout: float = 20.0
    multi_user: bool = False
    """True if jobs of several users may share one MPS daemon."""
    static_partitions: str = "auto"
    """`auto`: where the driver can; `never`."""
    violation: str = "warn"
    """The hardest answer to a job that takes more than its share: `warn`, `terminate`, `requeue`."""
    inject: str = "none"
    """Code for jobs with an owner or guest beside them: `none`; `hooks`, PyTorch's; `all`, guests the library too."""
    count_launches: bool = False
    """With `all`: owners get the library too, so that one without a heartbeat is judged by how fast it launches."""
    inject_from: str = "/usr"
    """The place where both were installed: `prefix` of prolog_epilog/injob/c/Makefile."""
    jobs_for_dcgm: str = ""
    """A folder of files that say which jobs are on which GPU, for dcgm-exporter."""
    jobs_for_jobstats: str = ""
    """The same for the exporter of jobstats."""
    log: str = ""
    """A file for one line of each Prolog and Epilog."""
    failure_rules: tuple[str, ...] = ()
    """The site's own signs of failures: absolute paths (docs/failures.md)."""
    scontrol: str = ""
    """The path of Slurm's command scontrol; empty: where packages put it."""
    scontrol_timeout: float = 1.0
    """Seconds for Slurm to tell of a job."""


def find(environment: Mapping[str, str]) -> str:
    """Returns the path of berth.conf: beside the slurm.conf that slurmd names.

    BERTH_CONF is not read: root's programs call this, and only what slurmd says counts there.
    """
    beside = os.path.join(os.path.dirname(environment.get("SLURM_CONF") or "/etc/slurm/slurm.conf"), "berth.conf")  # noqa: PTH118, PTH120 - pathlib costs the Prolog 10 ms
    return beside if os.path.exists(beside) else CONFIGLESS  # noqa: PTH110 - the same


def load(path: str) -> NodeConfig:
    """Reads berth.conf; without one, returns the defaults."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs the Prolog 10 ms
            text = file.read()
    except FileNotFoundError:
        return NodeConfig()
    except OSError as problem:
        raise NodeConfigError(f"{path}: {problem.strerror}; let root read it") from None
    if not _TABLE.search(text):
        # Most sites set nothing here; reading TOML takes longer than all the rest of a Prolog.
        return NodeConfig()
    return _config(path, text)


def skipped(path: str) -> frozenset[str]:
    """Returns the partitions of [hook] skip_partitions; none if berth.conf does not say."""
    listed = _hook(path).get("skip_partitions", "")
    return frozenset(name.strip() for name in str(listed).split(",")) - {""}


def plain(path: str) -> bool:
    """Tells whether [hook] layout is "plain": no job shares a GPU then."""
    return _hook(path).get("layout") == "plain"


def _hook(path: str) -> Mapping[str, Any]:
    """Returns the table [hook]; an empty one if berth.conf has none that can be read."""
    import tomllib  # noqa: PLC0415 - see load()

    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs the Prolog 10 ms
            found = tomllib.load(file).get("hook")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _config(path: str, text: bytes) -> NodeConfig:
    import tomllib  # noqa: PLC0415 - see load()

    try:
        table = tomllib.loads(text.decode()).get("node", {})
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise NodeConfigError(f"{path}: {problem}") from None
    if not isinstance(table, dict):
        raise NodeConfigError(f"{path}: node is a table, [node]")
    known = NodeConfig()._asdict()
    return NodeConfig(**{key: _value(path, key, value, known) for key, value in table.items()})


def _value(path: str, key: str, value: Any, known: Mapping[str, Any]) -> Any:
    if key not in known:
        raise NodeConfigError(f"{path}: [node] has no key {key}{_nearest(key, known)}")
    if isinstance(known[key], tuple):
        return _patterns(path, key, value)
    if isinstance(known[key], float) and type(value) is int:
        value = float(value)
    if type(value) is not type(known[key]):
        raise NodeConfigError(f"{path}: [node] {key} is {_KINDS[type(known[key])]}, not {value!r}")
    if key in _WORDS and value not in _WORDS[key]:
        raise NodeConfigError(f"{path}: [node] {key} is one of {', '.join(_WORDS[key])}, not {value!r}")
    if key in _PATHS and value and not value.startswith("/"):
        raise NodeConfigError(f"{path}: [node] {key} is a path from / on, not {value!r}")
    if key in _IN_LISTS and (not value or not value.isascii() or any(sign <= " " or sign == ":" for sign in value)):
        raise NodeConfigError(f"{path}: [node] {key} is a path without blanks and colons, not {value!r}")
    if key in _LEAST and value < _LEAST[key]:
        raise NodeConfigError(f"{path}: [node] {key} is at least {_LEAST[key]}, not {value}")
    return value


def _patterns(path: str, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one.startswith("/") for one in value):
        raise NodeConfigError(f'{path}: [node] {key} is a list of paths from / on, such as ["/etc/slurm/prolog.d/*"]')
    return tuple(value)


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only where something is wrong

    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; it has {', '.join(known)}"
