"""The Grafana board and the Prometheus rules that ship, as a server is asked for them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import yaml

from tests.support.paths import ROOT

BOARD = ROOT / "configs" / "grafana" / "soakd.json"
ALERTS = ROOT / "configs" / "prometheus" / "alerts.yaml"
PROMTOOL = shutil.which("promtool")
WITHOUT_PROMTOOL = "needs Debian's package prometheus"
_SUFFIXES = re.compile(r"_(bucket|sum|count|total)$")
_METRIC = re.compile(r"(?<![\w$\"=~])(?:soak|node|process)_\w+|\bup\b")


def panels() -> list[dict[str, Any]]:
    """Return all panels of the board but the rows."""
    found = json.loads(BOARD.read_text())["panels"]
    return [one for one in found if one["type"] != "row"]


def board_queries() -> Iterator[tuple[str, str]]:
    """Give panel and query, with Grafana's variables as Grafana sets them for all runs of a short time."""
    for panel in panels():
        for target in panel["targets"]:
            query = target["expr"].replace("$plan", ".*").replace("$run", ".*")
            yield (
                panel["title"],
                query.replace("$__rate_interval", "20s").replace("$__range", "1h"),
            )


def alerts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    return found


def metrics_in(query: str) -> set[str]:
    """Return the metrics of a query by the names of their families."""
    return {_SUFFIXES.sub("", name) for name in _METRIC.findall(query)}
