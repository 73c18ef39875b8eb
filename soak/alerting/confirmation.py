"""The names and numbers of one incident that the command of its cause needs: host, device, level before."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from detectors.affected_brokers import host_seen, is_local
from soak.alerting.places import Places
from soak.core.model import Explanation, Finding
from soak.core.series import parse_series

_ADDRESS = re.compile(r"(?P<host>[\w.-]+|\[[\da-fA-F:.]+\]):(?P<port>\d+)")
_THING = re.compile(r"(?:JVM of (?P<gc_log>\S+)|(?P<thing>\S+)) on (?P<host>[\w.-]+)(?::\d+)?")
_TOPIC = re.compile(r"topic (?P<topic>\S+)")
_HOST = re.compile(r"[\w.-]+")
HOSTS = ("the broker's host", "the bookie's host", "the load host")
"""What tables of commands call the host of the suspect."""


def known_of(
    finding: Finding, places: Places, plan_names: Mapping[str, str | float]
) -> dict[str, str | float]:
    """Return what is known of the placeholders of a command: names ready for a shell, and numbers.

    `plan_names` are those that the plan tells, such as `run_topic`, not yet quoted. Of several suspects the
    first counts. A number is named by its metric, and is the level before the onset.
    """
    names = {**plan_names, **_of_suspect(finding, places)}
    found = {key: shlex.quote(one) if isinstance(one, str) else one for key, one in names.items()}
    if finding.causes:
        found |= _levels_before(finding.causes[0], str(names.get("device", "")))
    if parse_series(finding.series).unit == "seconds" and finding.kind == "step":
        found["step_seconds"] = finding.after - finding.before
    host = str(names.get("on_host", ""))
    return found | (dict.fromkeys(HOSTS, host) if host else {})


def is_loopback(suspect: str) -> bool:
    """True for the address of a broker that only its own machine reaches by it."""
    found = _ADDRESS.fullmatch(suspect)
    return found is not None and is_local(found["host"])


def _of_suspect(finding: Finding, places: Places) -> dict[str, str]:
    suspect = finding.suspect.split(", ")[0]
    source = parse_series(finding.series).source
    if found := _TOPIC.fullmatch(suspect):
        return {"topic": found["topic"]}
    if found := _ADDRESS.fullmatch(suspect):
        host = host_seen(found["host"], source)
        return {"host": found["host"], "port": found["port"], "on_host": host}
    if found := _THING.fullmatch(suspect):
        known = {key: text for key, text in found.groupdict().items() if text}
        thing, host = known.pop("thing", ""), known["host"]
        known["on_host"] = host_seen(host, source)
        if thing.startswith("/"):
            known["data_dir"] = thing
        elif thing:
            known["device"] = thing
            known |= _mounted(places, host, thing)
        return known
    if suspect and _HOST.fullmatch(suspect):
        return {"host": suspect, "on_host": host_seen(suspect, source)}
    return {}


def _mounted(places: Places, host: str, device: str) -> dict[str, str]:
    point = places.mount_points.get((host, device), "")
    return {"data_dir": point.split(", ")[0]} if point else {}


def _levels_before(cause: Explanation, device: str) -> dict[str, str | float]:
    """Return the levels before the onset of the channels in the evidence, those of other drives left out."""
    found: dict[str, str | float] = {}
    for one in cause.evidence:
        series, before = parse_series(str(one.numbers.get("series", ""))), one.numbers.get("before")
        is_of_suspect = series.label("device") in {"", device}
        if series.metric and is_of_suspect and isinstance(before, int | float):
            found.setdefault(series.metric, float(before))
    return found
