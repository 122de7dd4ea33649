# SPDX-License-Identifier: Apache-2.0
"""docs/admin/metrics.md tells every metric and every alert, and no other."""

import re
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from policy.serve.metrics.families import TABLE
from prolog_epilog.guard.seats import metrics as guard

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "admin" / "metrics.md").read_text()


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(berth_\w+)` \| (\w+) \| (.*?) \|", PAGE, re.MULTILINE)

    told = [(page, name, kind, tuple(re.findall(r"`(\w+)`", labels))) for page, name, kind, labels in rows]
    assert told == [(spec.page, spec.name, spec.kind, spec.labels) for spec in TABLE]


def test_the_guards_metrics_are_those_of_its_code() -> None:
    source = Path(guard.__file__).read_text()
    names = {f"berth_guard_{name}" for name in (*guard._GAUGES, *re.findall(r'_head\("(\w+)"', source))}

    assert set(re.findall(r"`(berth_guard_\w+)`", PAGE)) == names


def test_each_alert_says_what_to_do() -> None:
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "berth.rules.yml").read_text())["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"]]

    assert re.findall(r"^\| `(Berth\w+)` \| [^|]+ \| [^|]+ \|$", PAGE, re.MULTILINE) == alerts


def test_queries_use_metrics_that_exist() -> None:
    known = {spec.name for spec in TABLE} | set(re.findall(r"`(berth_guard_\w+)`", PAGE))
    for path in [*(ROOT / "deploy" / "grafana").glob("*.json"), ROOT / "deploy" / "prometheus" / "berth.rules.yml"]:
        used = set(re.findall(r"\b(berth_\w+?)(?:_bucket)?\b(?=[\[{) ])", path.read_text()))
        assert {name.removesuffix("_bucket") for name in used} <= known, path.name
