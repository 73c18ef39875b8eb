"""The message about a unit that systemd has given up: it is about us, and not about the cluster.

Who has it is kept in a file from one try to the next: a sink that is away has nobody told twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from soak.cli.main import EXIT_BAD_PLAN
from soak.core.ports import Message, Sink
from soak.core.units import duration_ns
from soak.core.wording import day, moment
from soak.daemons.alert_attempt import attempt
from soak.store.run_folder import write_atomically

LASTS_NS = duration_ns("1d")
"""An alert about it ends by itself so long after it."""
KEPT = "The load is measured on; what is found meanwhile is kept, and told as soon as the service stays."
"""What becomes of findings without the alert daemon."""
_ALERT = "soak-alert@"


def is_to_be_told(unit: str, environment: Mapping[str, str]) -> bool:
    """False where somebody knows, or hears of it otherwise.

    A run is begun by a person, who waits for it and sees that it was refused. An alert daemon is started
    again however it ends but for a bad plan (from 254 on systemd asks at each such end), and fails too when
    no run begins, which is told already.
    """
    is_refused = environment.get("MONITOR_EXIT_STATUS") == str(EXIT_BAD_PLAN)
    if unit.startswith("soak-begin@"):
        return not is_refused
    return is_refused or not unit.startswith(_ALERT)


@dataclass(slots=True)
class Told:
    """How far people have been told of one failure; `tell` goes on with it."""

    key: str
    since_wall_ns: int  # of the first try: the message says when it failed
    settled: list[str] = field(default_factory=list)  # sinks that took it, or never will
    so_far: dict[str, str] = field(default_factory=dict)  # by sink: what it noted at its last try


def told_so_far(path: Path, key: str, now_wall_ns: int) -> Told:
    """Return what `path` has of this failure; of another one, or where it is damaged, nothing."""
    with suppress(OSError, ValueError, TypeError):
        kept = Told(**json.loads(path.read_text()))
        if kept.key == key:
            return kept
    return Told(key, now_wall_ns)


def tell(message: Message, sinks: Mapping[str, Sink], told: Told, path: Path) -> bool:
    """Send to those who wait for it, print and keep what became of it; True when nobody waits any more."""
    for name, sink in sinks.items():
        if name in told.settled:
            continue
        before = told.so_far.get(name, "")
        outcome = attempt(partial(sink.send, replace(message, so_far=before)))
        print(f"{name}: {outcome.result} {outcome.detail}".rstrip())
        if outcome.result == "retry":
            told.so_far[name] = outcome.so_far or before
        else:
            told.settled.append(name)
        with suppress(OSError):  # a full drive may be what failed: then somebody is told twice
            write_atomically(path, json.dumps(asdict(told)) + "\n")
    return all(name in told.settled for name in sinks)


def key_of(plan: str, environment: Mapping[str, str], now_wall_ns: int) -> str:
    """Return what one failure has and no other: each life of a unit has an id of systemd's."""
    return f"failed-{plan}-{environment.get('MONITOR_INVOCATION_ID', now_wall_ns)}"


def message(
    plan: str, unit: str, host: str, environment: Mapping[str, str], now_wall_ns: int
) -> Message:
    """Return what people are told; `environment` has systemd's words on the unit, see systemd.exec(5)."""
    result = environment.get("MONITOR_SERVICE_RESULT", "failed")
    status = environment.get("MONITOR_EXIT_STATUS", "")
    key, at = key_of(plan, environment, now_wall_ns), f"{day(now_wall_ns)} {moment(now_wall_ns)}"
    is_alert = unit.startswith(_ALERT)
    means = KEPT if is_alert else "A run may not go on, or have no report."
    return Message(
        key=key,
        subject=f"[soakd] {plan}: {'findings reach nobody, ' if is_alert else ''}{unit} failed on {host}",
        text=f"systemd on {host} gave {unit} up at {at}: {result} {status}".rstrip()
        + f".\nThis says nothing about the cluster. {means}\n"
        f"What it said last: journalctl -u {unit} -n 50\n",
        at_wall_ns=now_wall_ns,
        labels={"finding": key, "plan": plan, "source": host, "severity": "warning"},
        begin_wall_ns=now_wall_ns,
        end_wall_ns=now_wall_ns + LASTS_NS,
    )
