"""berth.conf (docs/formats.md, section 4), checked to the last key."""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policy import flags
from policy.errors import ConfigError, FormatError, nearest

_HOOK = {
    "socket": str,
    "deadline_ms": int,
    "breaker_failures": int,
    "breaker_seconds": int,
    "fail": str,
    "skip_partitions": str,
    "def_cpu_per_gpu": int,
    "message": str,
    "hook_log": str,
}
_BERTHD = {
    "topology_dir": str,
    "fabric": str,
    "policy": str,
    "tick_ms": int,
    "reserve_seconds": int,
    "locality_wait": str,
    "repin": bool,
}
_WORDS = {"fail": ("open", "closed"), "message": ("always", "flags", "never")}
_KINDS = {str: "a text in quotes", int: "a whole number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Config:
    """What berthd and the commands need of it; the plugin reads its own table itself."""

    socket: Path = Path("/run/berth/berthd.sock")
    topology_dir: Path = Path("/etc/slurm/berth/topology")
    fabric: str = ""
    """Slurm's topology.conf or topology.yaml, `none`, or empty for the one beside slurm.conf."""
    policy: str = "berth"
    """A placement policy by name (policy.placement.registry)."""
    tick: float = 1.0
    reserve_seconds: int = 30
    locality_wait: int = 600
    repin: bool = True


def config_path() -> Path:
    """Where berth.conf is: BERTH_CONF, else next to slurm.conf."""
    if "BERTH_CONF" in os.environ:
        return Path(os.environ["BERTH_CONF"])
    return _slurm_folder() / "berth.conf"


def _slurm_folder() -> Path:
    return Path(os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf")).parent


def fabric_file(fabric: str) -> Path | None:
    """The file that `Config.fabric` means; None where the fabric is switched off, or Slurm has no such file."""
    from topology.providers import slurm_fabric  # noqa: PLC0415  most commands read no fabric

    if fabric == "none":
        return None
    return Path(fabric) if fabric else slurm_fabric.find(_slurm_folder())


def load(path: Path, *, must_exist: bool = False) -> Config:
    """Read berth.conf; without one, the defaults."""
    try:
        tables = tomllib.loads(path.read_text())
    except FileNotFoundError:
        if must_exist:
            raise ConfigError(f"{path} does not exist") from None
        return Config()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise ConfigError(f"{path}: {problem}") from None
    for name in tables:
        if name not in {"hook", "berthd"}:
            raise ConfigError(f"{path}: unknown table [{name}]{nearest(name, ('hook', 'berthd'))}")
    hook = _checked(path, tables, "hook", _HOOK)
    berthd = _checked(path, tables, "berthd", _BERTHD)
    defaults = Config()
    try:
        wait = flags.parse_time(berthd["locality_wait"]) if "locality_wait" in berthd else defaults.locality_wait
    except FormatError as problem:
        raise ConfigError(f"{path}: [berthd] locality_wait: {problem}") from None
    fabric = berthd.get("fabric", defaults.fabric)
    if fabric and fabric != "none" and not fabric.startswith("/"):
        raise ConfigError(f'{path}: [berthd] fabric is a path from / on, or "none", not {fabric!r}')
    return Config(
        socket=Path(hook.get("socket", defaults.socket)),
        topology_dir=Path(berthd.get("topology_dir", defaults.topology_dir)),
        fabric=fabric,
        policy=berthd.get("policy", defaults.policy),
        tick=_at_least(path, berthd, "tick_ms", 50, 1_000) / 1_000,
        reserve_seconds=_at_least(path, berthd, "reserve_seconds", 1, defaults.reserve_seconds),
        locality_wait=wait,
        repin=berthd.get("repin", defaults.repin),
    )


def _checked(path: Path, tables: dict[str, Any], name: str, known: dict[str, type]) -> dict[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {name} is a table, [{name}]")
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{path}: [{name}] has no key {key}{nearest(key, known)}")
        if type(value) is not known[key]:
            raise ConfigError(f"{path}: [{name}] {key} is {_KINDS[known[key]]}, not {value!r}")
        if key in _WORDS and value not in _WORDS[key]:
            raise ConfigError(f"{path}: [{name}] {key} is one of {', '.join(_WORDS[key])}, not {value!r}")
    return dict(table)


def _at_least(path: Path, table: dict[str, Any], key: str, least: int, default: int) -> int:
    value: int = table.get(key, default)
    if value < least:
        raise ConfigError(f"{path}: [berthd] {key} is at least {least}, not {value}")
    return value
