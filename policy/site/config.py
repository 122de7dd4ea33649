# SPDX-License-Identifier: Apache-2.0
"""Reads and checks berth.conf (docs/admin/keys.md)."""

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from policy.formats import flags
from policy.formats.errors import ConfigError, FormatError, nearest
from policy.request import tiers
from policy.request.locality import parse_rules
from policy.request.settings import RelocationRules, Settings, Sharing
from policy.site.keys import KEYS, Key

_TABLES = (*KEYS, "node", "guard")
"""The tables of berth.conf; the node's programs themselves check `node` and `guard`."""
_KINDS: dict[str, tuple[type[Any], str]] = {
    "int": (int, "a whole number"),
    "bool": (bool, "true or false"),
}
_TEXT: tuple[type[Any], str] = (str, "a text in quotes")


def _default(table: str, key: str) -> Any:
    return KEYS[table][key].default


def _names(listed: str) -> list[str]:
    return re.findall(r"[^, ]+", listed)


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """The table `[metrics]`: the address, the port and the readers of the metrics."""

    enabled: bool = False
    address: str = _default("metrics", "address")
    port: int = _default("metrics", "port")
    token_file: Path | None = None
    """The file of the token that a scrape has to send; None: Slurm's PrivateData decides (docs/admin/metrics.md)."""
    job_info: bool = False
    """True if a metric names the job that holds each GPU."""


@dataclass(frozen=True, slots=True)
class Config:
    """The part of berth.conf that berthd and the commands need; the plugin reads its own table itself."""

    socket: Path = Path(_default("hook", "socket"))
    topology_dir: Path = Path(_default("berthd", "topology_dir"))
    fabric: str = ""
    """Path of Slurm's topology.conf or topology.yaml, `none`, or empty for the one beside slurm.conf."""
    scores: Path | None = None
    """The score table; None: all GPUs count as equally fast."""
    steps: Path | None = None
    """The record of jobs' step times, which refreshes the scores; None: no record is kept."""
    costs: Path | None = None
    """The site's table of the costs of distance and neighbours; None: only published measurements count."""
    policy: str = _default("berthd", "policy")
    """The name of a placement policy (policy.placement.registry)."""
    observe: bool = False
    """True if Berth only plans and logs, and pins nothing."""
    plain: bool = False
    """True on the plain layout, where slurm.conf lists GPUs as without Berth: Slurm chooses nodes and GPUs."""
    tick: float = _default("berthd", "tick_ms") / 1_000
    settings: Settings = field(default_factory=Settings)
    gateway: str = _default("berthd", "gateway")
    pinned_file: Path = Path(_default("hook", "pinned_file"))
    skip_partitions: frozenset[str] = frozenset()
    """The partitions that Berth does not touch."""
    skipped_shards: bool = False
    """True if users may ask for shards in those partitions."""
    notice_port: int = 0
    """The port for Epilogs' notices, on every interface; 0: no notices are taken."""
    munge_socket: str = ""
    users_hosts: tuple[str, ...] = tuple(_names(_default("users", "hosts")))
    """Hosts on which users' commands find berthd, as in SlurmctldHost; empty: users cannot ask berthd."""
    users_port: int = _default("users", "port")
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    web_options: str | None = None
    """The options of `berth web` with which berthd serves the page; None: it does not serve it."""
    hook_log: Path | None = None
    """The file in which the plugin logs each of its calls; None: it writes none."""
    preflight_partitions: tuple[str, ...] = ()
    preflight_wait: float = float(flags.parse_time(_default("preflight", "wait")))
    """Seconds for which a pre-flight that could begin keeps its job waiting."""
    end_idle: Mapping[str, int] = field(default_factory=dict)
    """By partition, the seconds after which a job that holds its GPUs idle is ended; none for all others."""
    other_retries: tuple[str, ...] = tuple(_names(_default("berthd", "other_retries")))
    """Words in a job's comment that leave its retries to another system."""

    def cost_lines(self) -> list[str]:
        """Returns the lines of the site's table of costs; empty without one."""
        try:
            return self.costs.read_text(encoding="utf-8").splitlines() if self.costs else []
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(f"[berthd] costs: {self.costs} cannot be read: {problem}") from None

    @property
    def users_socket(self) -> Path:
        """Returns the socket at which users on berthd's own host ask."""
        return Path(f"{self.socket}.users")

    @property
    def listeners(self) -> frozenset[str]:
        """Returns the listeners of the read-only process that are switched on: metrics, questions, page."""
        wanted = {"metrics": self.metrics.enabled, "questions": self.users_hosts, "page": self.web_options is not None}
        return frozenset(name for name, is_wanted in wanted.items() if is_wanted)


def config_path() -> Path:
    """Returns the path of berth.conf: BERTH_CONF, else next to slurm.conf."""
    if "BERTH_CONF" in os.environ:
        return Path(os.environ["BERTH_CONF"])
    return _slurm_folder() / "berth.conf"


def _slurm_folder() -> Path:
    return Path(os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf")).parent


def fabric_file(fabric: str) -> Path | None:
    """Returns the file that `Config.fabric` means; None if the fabric is switched off, or Slurm has no such file."""
    from topology.providers import slurm_fabric  # noqa: PLC0415  most commands read no fabric

    if fabric == "none":
        return None
    return Path(fabric) if fabric else slurm_fabric.find(_slurm_folder())


def load(path: Path, *, must_exist: bool = False) -> Config:
    """Reads berth.conf; returns the defaults if there is none."""
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
    try:
        return _config({name: _checked(tables, name) for name in KEYS})
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None


def _config(tables: Mapping[str, dict[str, Any]]) -> Config:
    hook, berthd, notice, users, sharing = (tables[name] for name in ("hook", "berthd", "notice", "users", "sharing"))
    fabric, plain, observe = berthd["fabric"], hook["layout"] == "plain", berthd["mode"] == "observe"
    if fabric and fabric != "none" and not fabric.startswith("/"):
        raise ConfigError(f'[berthd] fabric is a path from / on, or "none", not {fabric!r}')
    rules = _sharing(sharing)
    if observe or plain:
        # No job has a tier there, so none is refused for one.
        rules = replace(rules, tier_allowed=())
    return Config(
        socket=Path(hook["socket"]),
        topology_dir=Path(berthd["topology_dir"]),
        fabric=fabric,
        policy=berthd["policy"],
        tick=berthd["tick_ms"] / 1_000,
        settings=replace(_settings(berthd), sharing=rules, moving=_moving(tables["moving"], berthd)),
        scores=_file(berthd["scores"]),
        steps=_file(berthd["steps"]),
        costs=_file(berthd["costs"]),
        observe=observe,
        plain=plain,
        gateway=berthd["gateway"],
        pinned_file=Path(hook["pinned_file"]),
        skip_partitions=frozenset(_names(hook["skip_partitions"])),
        skipped_shards=hook["skipped_shards"] == "site",
        notice_port=notice["port"] if notice["hosts"] else 0,
        munge_socket=notice["munge_socket"],
        users_hosts=tuple(_names(users["hosts"])),
        users_port=users["port"],
        metrics=_metrics(tables["metrics"]),
        web_options=tables["web"]["options"] if tables["web"]["enabled"] else None,
        hook_log=_file(hook["hook_log"]),
        preflight_wait=float(tables["preflight"]["wait"]),
        preflight_partitions=tuple(_names(tables["preflight"]["partition"])),
        other_retries=tuple(_names(berthd["other_retries"])),
        end_idle=_end_idle(berthd["end_idle"]),
    )


def _end_idle(text: str) -> dict[str, int]:
    """Returns seconds by partition.

    >>> _end_idle("debug@2:00:00 gpu@8:00:00")
    {'debug': 7200, 'gpu': 28800}
    """
    try:
        return {name: flags.parse_time(time) for name, _, time in (word.partition("@") for word in text.split())}
    except FormatError as problem:
        raise ConfigError(f"[berthd] end_idle is PARTITION@TIME ...: {problem}") from None


def _file(path: str) -> Path | None:
    return Path(path) if path else None


def _metrics(table: Mapping[str, Any]) -> MetricsOptions:
    try:
        ipaddress.ip_address(table["address"])
    except ValueError:
        raise ConfigError(f"[metrics] address is an IP address of this host, not {table['address']!r}") from None
    return MetricsOptions(**{**table, "token_file": _file(table["token_file"])})


def _settings(berthd: Mapping[str, Any]) -> Settings:
    """Returns the settings of the plan."""
    wait = berthd["locality_wait"]
    try:
        rules = parse_rules(berthd["locality_default"], wait)
    except FormatError as problem:
        raise ConfigError(f"[berthd] locality_default: {problem}") from None
    names = ("locality_wait", "locality_cap", "pin_ahead", "look_ahead", "exclude_others")
    return Settings(locality_rules=rules, **{name: berthd[name] for name in names})


def _sharing(table: Mapping[str, Any]) -> Sharing:
    """Returns the rules for packed jobs, owners and guests."""
    values = dict(table)
    for key, read in (("tier_default", tiers.parse_default), ("tier_allowed", tiers.parse_allowed)):
        try:
            values[key] = read(table[key])
        except FormatError as problem:
            raise ConfigError(f"[sharing] {key}: {problem}") from None
    return Sharing(**values)


def _moving(table: Mapping[str, Any], berthd: Mapping[str, Any]) -> RelocationRules:
    """Returns the rules for moving running jobs."""
    if table["enabled"] and not berthd["pin_ahead"]:
        raise ConfigError("[moving] enabled goes with pin_ahead = true in [berthd] only")
    return RelocationRules(**table)


def _checked(tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the values of a table, with defaults for missing keys; a key without a default is None."""
    table, known = tables.get(name, {}), KEYS[name]
    if not isinstance(table, dict):
        raise ConfigError(f"{name} is a table, [{name}]")
    for key in table:
        if key not in known:
            raise ConfigError(f"[{name}] has no key {key}{nearest(key, known)}")
    return {key: _value(f"[{name}] {key}", kind, table.get(key, kind.default)) for key, kind in known.items()}


def _value(key: str, wanted: Key, value: Any) -> Any:
    """Returns a checked value; a time is in seconds, a size in MiB."""
    if value is None:
        return None
    kind, said = _KINDS.get(wanted.kind, _TEXT)
    if type(value) is not kind:
        raise ConfigError(f"{key} is {said}, not {value!r}")
    if wanted.words and value not in wanted.words:
        raise ConfigError(f"{key} is one of {', '.join(wanted.words)}, not {value!r}")
    if wanted.kind == "path" and value and not value.startswith("/"):
        raise ConfigError(f"{key} is a path from / on, not {value!r}")
    try:
        found = flags.parse_time(value) if wanted.kind == "time" else value
        found = flags.mebibytes(value) if wanted.kind == "size" else found
    except FormatError as problem:
        raise ConfigError(f"{key}: {problem}") from None
    if wanted.least is not None and not wanted.least <= found <= (wanted.most or found):
        bounds = f"at least {wanted.least}" if wanted.most is None else f"from {wanted.least} to {wanted.most}"
        unit = " s" if wanted.kind == "time" else f" {wanted.unit}" if wanted.unit else ""
        raise ConfigError(f"{key} is {bounds}{unit}, not {value!r}")
    return found
