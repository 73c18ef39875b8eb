"""The names and numbers of one incident that the command of its cause needs: host, device, level before."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from detectors.affected_brokers import host_seen, is_local
from soak.alerting.places import Places
from soak.core.model import Explanation, Finding
from soak.core.plan.plan import Plan
from soak.core.series import host_of, parse_series

# A name that began with a hyphen would be an option of the command.
_NAME = r"\w[\w.-]*|\[[\da-fA-F:.]+\]"
_ADDRESS = re.compile(rf"(?P<host>{_NAME}):(?P<port>\d+)")
_PLACE = re.compile(rf"(?:[a-zA-Z][\w+]*://)?(?P<host>{_NAME})(?::(?P<port>\d+))?")
_THING = re.compile(
    rf"(?:JVM of (?P<gc_log>[\w/]\S*)|(?P<thing>[\w/]\S*)) on (?P<host>{_NAME})(?::\d+)?"
)
_TOPIC = re.compile(r"topic (?P<topic>\w\S*)")
_HOST = re.compile(r"\w[\w.-]*")
_OF_BOOKIES = ("bookie_", "bookkeeper_server_")
_LOGIN = " --command-config admin.properties"


def known_of(finding: Finding, places: Places, plan: Plan, rate: float) -> dict[str, str | float]:
    """Return what is known of the placeholders of a command: names ready for a shell, and numbers.

    `rate` is that of the load before the onset, in messages a second; 0 where it is not known. Of several
    suspects the first counts. A number is named by its metric, and is the level before the onset.
    """
    suspect = finding.suspect.split(", ")[0]
    names = {**_of_plan(plan), **_of_suspect(suspect, finding, places)}
    found: dict[str, str | float] = {key: shlex.quote(one) for key, one in names.items()}
    found["admin"] = _admin_option(plan)
    found["ask_every_broker"] = _ask_every_broker(plan, places)
    if finding.causes:
        found |= _levels_before(finding.causes[0], str(names.get("device", "")))
    if parse_series(finding.series).unit == "seconds" and finding.kind == "step":
        found["step_seconds"] = finding.after - finding.before
    if rate > 0.0:
        found["rate"] = rate
    return found | _hosts(suspect, finding, str(found.get("on_host", "")), names.get("server", ""))


def addresses_of(plan: Plan) -> list[str]:
    """Return the addresses by which clients find the cluster."""
    found = next(iter(plan.broker_config.addresses.values()), "")
    return [one.strip() for one in found.split(",") if one.strip()]


def _ask_every_broker(plan: Plan, places: Places) -> str:
    """Return a command for each known address: `nc -zv -w 3 b1 9092; nc -zv -w 3 b2 9092`.

    Where none is known, the one with capitals.
    """
    usual = _usual_port(plan)
    known = [*addresses_of(plan), *sorted(places.broker_ids)]
    found = [
        (shlex.quote(_bare(one["host"])), one["port"] or usual)
        for one in map(_PLACE.fullmatch, known)
        if one
    ]
    asked = dict.fromkeys(found or [("HOST", "PORT")])
    return "; ".join(f"nc -zv -w 3 {host} {port}" for host, port in asked)


def _usual_port(plan: Plan) -> str:
    """Return the port of an address without one, as clients take it."""
    if plan.broker_kind != "pulsar":
        return "9092"
    return "6651" if addresses_of(plan)[:1] and "+ssl://" in addresses_of(plan)[0] else "6650"


def is_loopback(suspect: str) -> bool:
    """True for the address of a broker that only its own machine reaches by it."""
    found = _ADDRESS.fullmatch(suspect)
    return found is not None and is_local(found["host"])


def _of_plan(plan: Plan) -> dict[str, str]:
    first = addresses_of(plan)[:1]
    log = getattr(plan.probes.get("broker_log"), "log", "")
    return {
        "run_topic": plan.topic.names[0],
        **({"server": first[0]} if first else {}),
        **({"log_dir": str(Path(log).parent)} if log else {}),
    }


def _admin_option(plan: Plan) -> str:
    """Return the option of Kafka's tools with the login of an administrator; "" where clients need none."""
    settings = getattr(plan.broker_config, "common", {})
    protocol = str(settings.get("security.protocol", "PLAINTEXT"))
    return "" if protocol.upper() == "PLAINTEXT" else _LOGIN


def _hosts(suspect: str, finding: Finding, on_host: str, server: str) -> dict[str, str]:
    """Return the hosts by the names that tables of commands have for them, those that are known."""
    found: dict[str, str] = {}
    own = host_of(parse_series(finding.series).source)
    if own and is_loopback(server):
        found["a host with the cluster's tools"] = f"{own}, with the cluster's tools"
    if reader := _own_consumer(suspect):
        found["the load host"] = reader
    if not on_host:
        return found
    found["the broker's host"] = on_host
    if _THING.fullmatch(suspect) or _is_of_bookie(finding):
        found["the bookie's host"] = on_host
    if is_loopback(suspect):
        found |= {"another host": on_host, "both hosts": on_host}
    if is_loopback(suspect) or _HOST.fullmatch(suspect):
        found["the load host"] = on_host
    return found


def _own_consumer(suspect: str) -> str:
    """Return the host of a consumer of soakd itself, "" of anything else."""
    return host_of(suspect) if suspect.startswith("consume.") else ""


def _is_of_bookie(finding: Finding) -> bool:
    """True where a bookie reported what the best cause has for evidence."""
    evidence = finding.causes[0].evidence if finding.causes else ()
    series = [parse_series(str(one.numbers.get("series", ""))) for one in evidence]
    return any(one.label("bookie") or one.metric.startswith(_OF_BOOKIES) for one in series)


def _of_suspect(suspect: str, finding: Finding, places: Places) -> dict[str, str]:
    source = parse_series(finding.series).source
    if found := _TOPIC.fullmatch(suspect):
        return {"topic": found["topic"]}
    if found := _ADDRESS.fullmatch(suspect):
        host = host_seen(found["host"], source)
        return {"host": _bare(found["host"]), "port": found["port"], "on_host": _bare(host)}
    if found := _THING.fullmatch(suspect):
        known = {key: text for key, text in found.groupdict().items() if text}
        thing, host = known.pop("thing", ""), known["host"]
        known |= {"host": _bare(host), "on_host": _bare(host_seen(host, source))}
        if thing.startswith("/"):
            known["data_dir"] = thing
        elif thing:
            known["device"] = thing
            known |= _mounted(places, host, thing)
        return known
    if suspect and _HOST.fullmatch(suspect):
        return {"host": suspect, "on_host": host_seen(suspect, source)}
    return {}


def _bare(host: str) -> str:
    """Return a host without the brackets that an IPv6 address has before a port."""
    return host.strip("[]")


def _mounted(places: Places, host: str, device: str) -> dict[str, str]:
    point = places.mount_points.get((host, device), "")
    return {"data_dir": point.split(", ")[0]} if point.startswith("/") else {}


def _levels_before(cause: Explanation, device: str) -> dict[str, str | float]:
    """Return the levels before the onset of the channels in the evidence, those of other drives left out."""
    found: dict[str, str | float] = {}
    for one in cause.evidence:
        series, before = parse_series(str(one.numbers.get("series", ""))), one.numbers.get("before")
        is_of_suspect = series.label("device") in {"", device}
        if series.metric and is_of_suspect and isinstance(before, int | float):
            found.setdefault(series.metric, float(before))
    return found
