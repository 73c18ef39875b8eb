"""Maintenance windows and the digest schedule of a plan, evaluated against the wall clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from soak.core.plan.plan import Alerts
from soak.core.units import SECOND_NS
from soak.runtime import crontab

_TICK = timedelta(microseconds=1)  # the resolution of a datetime
_MAX_MISSED = 1000


class Calendar:
    """The windows and the schedule of a plan; instants are nanoseconds since 1970."""

    def __init__(self, alerts: Alerts) -> None:
        self._windows = [(crontab.cron_trigger(one.cron), one.length) for one in alerts.maintenance]
        self._digest = crontab.cron_trigger(alerts.digest) if alerts.digest else None

    @property
    def has_digests(self) -> bool:
        return self._digest is not None

    def is_quiet(self, wall_ns: int) -> bool:
        """True within a maintenance window."""
        now = _moment(wall_ns)
        for trigger, length_ns in self._windows:
            began = trigger.get_next_fire_time(None, _moment(wall_ns - length_ns) + _TICK)
            if began is not None and began <= now:
                return True
        return False

    def digest_due_ns(self, after_wall_ns: int, wall_ns: int) -> int | None:
        """Return the last due instant of a digest after one instant and up to another, if any."""
        if self._digest is None:
            return None
        found, now, after = None, _moment(wall_ns), _moment(after_wall_ns)
        for _ in range(_MAX_MISSED):
            due = self._digest.get_next_fire_time(None, after + _TICK)
            if due is None or due > now:
                break
            found = after = due
        return None if found is None else round(found.timestamp()) * SECOND_NS


def bad_crons(alerts: Alerts) -> list[tuple[tuple[str | int, ...], str]]:
    """Return the key of each cron expression that is not valid, and the reason."""
    crons: list[tuple[tuple[str | int, ...], str]] = []
    if alerts.digest:
        crons.append((("digest",), alerts.digest))
    windows = enumerate(alerts.maintenance)
    crons += [(("maintenance", number, "cron"), one.cron) for number, one in windows]
    found = []
    for place, cron in crons:
        try:
            crontab.cron_trigger(cron)
        except ValueError as error:
            found.append((place, f"{cron!r} is not a cron expression: {error}"))
    return found


def _moment(wall_ns: int) -> datetime:
    return datetime.fromtimestamp(wall_ns / SECOND_NS, UTC)
