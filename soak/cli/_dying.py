"""The alert daemon that dies again and again says so itself, before it tries once more: nobody else would."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from soak.cli._alert_test import sinks_of
from soak.cli._failed import KEPT, LASTS_NS, told_so_far
from soak.cli._failed import tell as tell_each
from soak.core.errors import SoakError
from soak.core.ports import Clock, Message
from soak.core.units import SECOND_NS
from soak.core.wording import day, moment
from soak.daemons.context import host_name
from soak.service.again import in_a_row
from soak.service.notify import notifier

LOG = logging.getLogger("soak.cli.dying")
MANY = 8
"""So many quick starts in a row take some four minutes; each later one is a minute apart."""
_SECONDS = 120
"""What the sinks may take beside the start itself."""
_NOTE = "told.json"


def tell(
    run_dir: Path, telling: Path | None, clock: Clock, environment: Mapping[str, str] | None = None
) -> None:
    """Tell each sink once that this service has died at its start `MANY` times; do nothing before that.

    Who has it is kept beside the note of the starts, in memory: a full drive may be what it dies of.
    """
    if environment is None:
        environment = os.environ
    folder, starts = Path(environment.get("RUNTIME_DIRECTORY", "")), in_a_row(environment)
    if starts < MANY:
        if starts == 0 and folder.name:
            with suppress(OSError):
                (folder / _NOTE).unlink()
        return
    notifier(environment).more_time(_SECONDS)
    try:
        name, sinks = sinks_of(telling, None if telling else run_dir)
    except SoakError as error:
        LOG.warning("sinks_unknown why=%r", str(error))
        return
    told = told_so_far(folder / _NOTE, folder.name, clock.wall_ns())
    said = message(name, folder.name, host_name(), told.since_wall_ns)
    tell_each(said, sinks, told, folder / _NOTE)


def message(plan: str, unit: str, host: str, since: int) -> Message:
    """Return what people are told: that findings are kept, and reach nobody; `since` is of the first try."""
    key = f"dying-{plan}-{host}-{since // SECOND_NS}"
    return Message(
        key=key,
        subject=f"[soakd] {plan}: findings reach nobody, {unit} dies again and again on {host}",
        text=f"At {day(since)} {moment(since)} {unit} on {host} had died at {MANY} starts in a row; "
        f"it is tried once a minute.\nThis says nothing about the cluster. {KEPT}\n"
        f"What it said last: journalctl -u {unit} -n 50\n",
        at_wall_ns=since,
        labels={"finding": key, "plan": plan, "source": host, "severity": "warning"},
        begin_wall_ns=since,
        end_wall_ns=since + LASTS_NS,
    )
