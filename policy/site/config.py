"""berth.conf (docs/formats.md, section 4), checked to the last key."""

import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from policy.formats import flags
from policy.formats.errors import ConfigError, FormatError, nearest
from policy.request import tiers
from policy.request.locality import parse_rules
from policy.request.settings import RelocationRules, Settings, Sharing
from policy.retry.other_systems import DEFAULT, others_of

_HOOK = {
    "socket": str,
    "deadline_ms": int,
    "breaker_failures": int,
    "breaker_seconds": int,
    "fail": str,
    "skip_partitions": str,
    "skipped_shards": str,
    "def_cpu_per_gpu": int,
    "message": str,
    "layout": str,
    "hook_log": str,
    "pinned_file": str,
}
_BERTHD = {
    "topology_dir": str,
    "fabric": str,
    "scores": str,
    "steps": str,
    "policy": str,
    "mode": str,
    "tick_ms": int,
    "reserve_seconds": int,
    "locality_wait": str,
    "locality_default": str,
    "locality_cap": str,
    "repin": bool,
    "pin_ahead": bool,
    "look_ahead": bool,
    "exclude_others": int,
    "other_retries": str,
    "node_weight": bool,
    "gateway": str,
}
_NOTICE = {"hosts": str, "port": int, "munge_socket": str, "log": str}
_USERS = {"hosts": str, "port": int}
_METRICS = {"enabled": bool, "address": str, "port": int, "token_file": str, "job_info": bool}
_SHARING = {
    "multi_user": bool,
    "way": str,
    "gpu_mem_reserve": str,
    "tier_default": str,
    "tier_allowed": str,
    "guest_way": str,
    "guest_after": str,
    "profiles": str,
    "fit": str,
    "unsure": str,
    "trials": int,
    "least_speed": int,
    "company_wait": str,
    "evict_grace": int,
    "evict_signal": str,
}
_MOVING = {
    "enabled": bool,
    "grace": int,
    "signal": str,
    "cost": str,
    "restart": int,
    "margin": float,
    "after": str,
    "per_job": int,
    "per_hour": int,
    "at_once": int,
}
_PREFLIGHT = {
    "above": int,
    "time": str,
    "wait": str,
    "partition": str,
}
_TABLES = ("hook", "berthd", "notice", "users", "metrics", "sharing", "moving", "preflight", "node", "guard")
"""The node's own programs check theirs, `node` and `guard`."""
NOTICE_PORT, USERS_PORT, METRICS_PORT = 6826, 6827, 6828
MOST_GRACE = 45
"""Seconds: the rest of an owner's minute is for the requeue, the Epilog and a pass."""
_SIGNALS = ("USR1", "USR2", "HUP", "INT", "TERM", "QUIT", "CONT")
_WORDS = {
    "fail": ("open", "closed"),
    "message": ("always", "flags", "never"),
    "skipped_shards": ("refuse", "site"),
    "layout": ("exact", "plain"),
    "mode": ("act", "observe"),
    "way": ("mps", "time"),
    "guest_way": ("time", "mps"),
    "unsure": ("try", "wait"),
    "evict_signal": _SIGNALS,
    "signal": _SIGNALS,
    "gateway": ("auto", "pyslurm", "libslurm", "command"),
}
_BY_SIZE = "give PriorityWeightJobSize a weight in slurm.conf, with PriorityFavorSmall=YES"
_GONE = {"order": _BY_SIZE, "order_weight": _BY_SIZE}
_LOOPBACK = "127.0.0.1"
_KINDS = {str: "a text in quotes", int: "a whole number", bool: "true or false", float: "a number with a point"}


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """Holds the `[metrics]` section: the address, the port and the readers of the metrics."""

    enabled: bool = False
    address: str = _LOOPBACK
    port: int = METRICS_PORT
    token_file: Path | None = None
    """A file with the token that a scrape has to show; None: Slurm's PrivateData decides (docs/metrics.md)."""
    job_info: bool = False
    """True if one series tells which job holds which GPU."""


@dataclass(frozen=True, slots=True)
class Config:
    """The part of berth.conf that berthd and the commands need; the plugin reads its own table itself."""

    socket: Path = Path("/run/berth/berthd.sock")
    topology_dir: Path = Path("/etc/slurm/berth/topology")
    fabric: str = ""
    """Slurm's topology.conf or topology.yaml, `none`, or empty for the one beside slurm.conf."""
    scores: Path | None = None
    """The score table; None: all GPUs count as equally fast."""
    steps: Path | None = None
    """The record of jobs' step times, which refreshes the scores; None: none is kept."""
    policy: str = "berth"
    """A placement policy by name (policy.placement.registry)."""
    observe: bool = False
    """Plan and log, but pin nothing."""
    plain: bool = False
    """True if slurm.conf lists GPUs as a site without Berth does: Slurm chooses nodes and GPUs."""
    tick: float = 1.0
    reserve_seconds: int = 10
    settings: Settings = field(default_factory=Settings)
    gateway: str = "auto"
    pinned_file: Path = Path("/run/berth/pinned")
    skip_partitions: frozenset[str] = frozenset()
    """Those that Berth does not touch."""
    skipped_shards: bool = False
    """True if users may ask for shards there."""
    notice_port: int = 0
    """Port for the Epilogs' notices, on every interface; 0: no notices are taken."""
    munge_socket: str = ""
    users_hosts: tuple[str, ...] = ()
    """Hosts on which users' commands find berthd; none: they do without."""
    users_port: int = USERS_PORT
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    hook_log: Path | None = None
    """The plugin's file of one line for each call; None: it writes none."""
    preflight_partition: str = ""
    preflight_wait: float = 3_600.0
    """Seconds for which a pre-flight that could begin keeps its job waiting."""
    other_retries: tuple[str, ...] = others_of(DEFAULT)
    """Words of a job's comment that leave its retries to another system."""


def config_path() -> Path:
    """Returns where berth.conf is: BERTH_CONF, else next to slurm.conf."""
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
        if name not in _TABLES:
            raise ConfigError(f"{path}: unknown table [{name}]{nearest(name, _TABLES)}")
    hook = _checked(path, tables, "hook", _HOOK)
    berthd = _checked(path, tables, "berthd", _BERTHD)
    notice = _checked(path, tables, "notice", _NOTICE)
    notice_port = _port(path, notice, "notice", NOTICE_PORT)
    users = _checked(path, tables, "users", _USERS)
    defaults = Config()
    fabric = berthd.get("fabric", defaults.fabric)
    sharing = _sharing(path, _checked(path, tables, "sharing", _SHARING))
    if berthd.get("mode") == "observe" or hook.get("layout") == "plain":
        # No job has a tier there, so none is refused for one.
        sharing = replace(sharing, tier_allowed=())
    if fabric and fabric != "none" and not fabric.startswith("/"):
        raise ConfigError(f'{path}: [berthd] fabric is a path from / on, or "none", not {fabric!r}')
    return Config(
        socket=Path(hook.get("socket", defaults.socket)),
        topology_dir=Path(berthd.get("topology_dir", defaults.topology_dir)),
        fabric=fabric,
        policy=berthd.get("policy", defaults.policy),
        tick=_at_least(path, berthd, "tick_ms", 50, 1_000) / 1_000,
        reserve_seconds=_at_least(path, berthd, "reserve_seconds", 1, defaults.reserve_seconds),
        settings=replace(
            _settings(path, berthd),
            sharing=sharing,
            moving=_moving(path, _checked(path, tables, "moving", _MOVING), berthd),
        ),
        scores=Path(berthd["scores"]) if "scores" in berthd else None,
        steps=_steps(path, berthd),
        observe=berthd.get("mode", "act") == "observe",
        plain=hook.get("layout", "exact") == "plain",
        gateway=berthd.get("gateway", defaults.gateway),
        pinned_file=Path(hook.get("pinned_file", defaults.pinned_file)),
        skip_partitions=frozenset(re.findall(r"[^, ]+", hook.get("skip_partitions", ""))),
        skipped_shards=hook.get("skipped_shards") == "site",
        notice_port=notice_port if notice.get("hosts") else 0,
        munge_socket=notice.get("munge_socket", ""),
        users_hosts=tuple(re.findall(r"[^, ]+", users.get("hosts", ""))),
        users_port=_port(path, users, "users", USERS_PORT),
        metrics=_metrics(path, _checked(path, tables, "metrics", _METRICS)),
        hook_log=Path(hook["hook_log"]) if hook.get("hook_log") else None,
        preflight_wait=_preflight(path, _checked(path, tables, "preflight", _PREFLIGHT)),
        preflight_partition=tables.get("preflight", {}).get("partition", ""),
        other_retries=others_of(berthd.get("other_retries", DEFAULT)),
    )


def _preflight(path: Path, table: dict[str, Any]) -> float:
    """Checks the table that sbatch reads here too, where somebody sees what is wrong."""
    if not 0 <= table.get("above", 0) <= 1_000_000:
        raise ConfigError(f"{path}: [preflight] above is from 0 to 1000000 GPUs, not {table['above']}")
    times = {"time": 600, "wait": 3_600}
    for key in times.keys() & table.keys():
        most = 31_536_000 if key == "wait" else 86_400
        try:
            times[key] = flags.parse_time(table[key])
        except FormatError as problem:
            raise ConfigError(f"{path}: [preflight] {key}: {problem}") from None
        if not 1 <= times[key] <= most:
            raise ConfigError(f"{path}: [preflight] {key} is from 1 to {most} s, not {table[key]!r}")
    return float(times["wait"])


def _metrics(path: Path, table: dict[str, Any]) -> MetricsOptions:
    address, token_file = table.get("address", _LOOPBACK), table.get("token_file", "")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise ConfigError(f"{path}: [metrics] address is an IP address of this host, not {address!r}") from None
    if token_file and not token_file.startswith("/"):
        raise ConfigError(f"{path}: [metrics] token_file is a path from / on, not {token_file!r}")
    return MetricsOptions(
        enabled=table.get("enabled", False),
        address=address,
        port=_port(path, table, "metrics", METRICS_PORT),
        token_file=Path(token_file) if token_file else None,
        job_info=table.get("job_info", False),
    )


def _steps(path: Path, berthd: dict[str, Any]) -> Path | None:
    steps: str = berthd.get("steps", "")
    if steps and not steps.startswith("/"):
        raise ConfigError(f"{path}: [berthd] steps is a path from / on, not {steps!r}")
    return Path(steps) if steps else None


def _port(path: Path, table: dict[str, Any], name: str, default: int) -> int:
    port: int = table.get("port", default)
    if not 1 <= port <= 65_535:
        raise ConfigError(f"{path}: [{name}] port is a whole number from 1 to 65535, not {port}")
    return port


def _settings(path: Path, berthd: dict[str, Any]) -> Settings:
    """Returns the settings of the plan."""
    defaults = Settings()
    key = "locality_wait"
    try:
        wait = flags.parse_time(berthd[key]) if key in berthd else defaults.locality_wait
        key = "locality_cap"
        cap = flags.parse_time(berthd[key]) if key in berthd else None
        key = "locality_default"
        rules = parse_rules(berthd.get(key, ""), wait)
    except FormatError as problem:
        raise ConfigError(f"{path}: [berthd] {key}: {problem}") from None
    return Settings(
        locality_wait=wait,
        locality_rules=rules,
        locality_cap=cap,
        repin=berthd.get("repin", True),
        pin_ahead=berthd.get("pin_ahead", True),
        look_ahead=berthd.get("look_ahead", defaults.look_ahead),
        node_weight=berthd.get("node_weight", defaults.node_weight),
        exclude_others=_at_least(path, berthd, "exclude_others", 0, defaults.exclude_others),
    )


def _sharing(path: Path, table: dict[str, Any]) -> Sharing:
    """The rules for packed jobs, hosts and guests."""
    read: dict[str, Callable[[str], Any]] = {
        "gpu_mem_reserve": flags.mebibytes,
        "tier_default": tiers.parse_default,
        "tier_allowed": tiers.parse_allowed,
        "guest_after": flags.parse_time,
        "company_wait": flags.parse_time,
    }
    values = dict(table)
    for key in read.keys() & table.keys():
        try:
            values[key] = read[key](table[key])
        except FormatError as problem:
            raise ConfigError(f"{path}: [sharing] {key}: {problem}") from None
    if not 0 <= values.get("evict_grace", 0) <= MOST_GRACE:
        found = f"not {values['evict_grace']}: an owner waits for a minute at most"
        raise ConfigError(f"{path}: [sharing] evict_grace is from 0 to {MOST_GRACE} s, {found}")
    if not 0 <= values.get("least_speed", 0) <= 100:
        raise ConfigError(f"{path}: [sharing] least_speed is from 0 to 100 percent, not {values['least_speed']}")
    if values.get("trials", 0) < 0:
        raise ConfigError(f"{path}: [sharing] trials is 0 or more a day, not {values['trials']}")
    for key in ("profiles", "fit"):
        if key in values and not values[key].startswith("/"):
            raise ConfigError(f"{path}: [sharing] {key} is a path from / on, not {values[key]!r}")
    return Sharing(**values)


_LEAST = {"grace": 0, "restart": 0, "margin": 1, "per_job": 1, "per_hour": 1, "at_once": 1}


def _moving(path: Path, table: dict[str, Any], berthd: Mapping[str, Any]) -> RelocationRules:
    """The rules for moving running jobs."""
    values = dict(table)
    if values.get("enabled") and not (berthd.get("repin", True) and berthd.get("pin_ahead", True)):
        raise ConfigError(f"{path}: [moving] enabled goes with repin = true and pin_ahead = true in [berthd] only")
    for key in {"cost", "after"} & table.keys():
        try:
            values[key] = flags.parse_time(table[key])
        except FormatError as problem:
            raise ConfigError(f"{path}: [moving] {key}: {problem}") from None
    for key, least in _LEAST.items():
        if values.get(key, least) < least:
            raise ConfigError(f"{path}: [moving] {key} is at least {least}, not {values[key]}")
    return RelocationRules(**values)


def _checked(path: Path, tables: dict[str, Any], name: str, known: dict[str, type]) -> dict[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {name} is a table, [{name}]")
    for key, value in table.items():
        if key in _GONE:
            raise ConfigError(f"{path}: [{name}] {key} is gone; {_GONE[key]}")
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
