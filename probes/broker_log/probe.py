"""What a broker's log says it did: segments rolled and deleted, leaders moved, threads stopped.

Source:   the broker's log on this host, and others beside it such as that of the garbage collector; which
          lines are events is in `log_patterns/`.
Overhead: one stat a file and second, and a search of what was appended, about 8 ms a MB.
Caveats:  Begins at the end of the log. Times are the log's own, to the millisecond, on this host's clock;
          where lines have no calendar stamp they are placed by when we saw them. Half a second later than
          the line. What a client may write into a log (a topic, a client id) may be in an event, escaped.
          More than 1,000 events between two readings are counted, and not told. Of a log that is rotated
          twice between two looks the file between is not seen.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pydantic.dataclasses import dataclass

from probes.broker_log import patterns as log_patterns
from probes.broker_log.patterns import Match, Pattern, Scanner, Value, printable
from probes.broker_log.tail import LogTail
from probes.broker_log.timestamps import TimestampReader
from probes.common.polling import Prefetch, ReadingBuffer
from soak.core.errors import NotAvailableError, PlanError, ProbeError, SettingError
from soak.core.model import Column, Event, Reading
from soak.core.plan.config import STRICT
from soak.core.ports import Clock
from soak.core.series import Labels
from soak.core.units import SECOND_NS

FRESH_NS = 100 * SECOND_NS  # a log that was looked at so lately has fresh lines only
REPEAT_EVENT_NS = 60 * SECOND_NS
_PATIENCE_SECONDS = 10.0

Samples = list[tuple[Column, float]]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    log: str = ""  # empty: the lab broker's
    more_logs: tuple[str, ...] = ()  # such as the garbage collector's
    patterns: tuple[str, ...] = ("kafka", "pulsar", "redpanda", "jvm_gc")


def build(config: Config, clock: Clock) -> BrokerLog:
    return BrokerLog(config, clock)


def check_settings(config: Config) -> None:
    """Refuse patterns that cannot be read.

    Raises:
        SettingError: about the first of them.
    """
    if not config.patterns:
        raise SettingError(("patterns",), "must name at least one: without, no line is an event")
    try:
        log_patterns.load(config.patterns)
    except PlanError as error:
        raise SettingError(("patterns",), str(error)) from error


class _Log:
    """One file that is followed."""

    def __init__(self, path: Path, label: str) -> None:
        self.tail = LogTail(path)
        self.stamps = TimestampReader()
        self.labels: Labels = (("log", label),)
        self.looked_ns: int | None = None  # wall clock
        self.is_at_end = False
        self.said_ns: int | None = None  # when its absence was last told


class BrokerLog:
    """`look` is one round of the thread; tests call it themselves."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._paced = Prefetch("broker_log", self.look, clock, self.leave)
        self._handed = ReadingBuffer(clock, "broker_log")
        self._patterns: list[Pattern] = []
        # of the thread alone
        self._scan: Scanner | None = None
        self._logs: list[_Log] = []

    def read(self) -> Reading:
        """Return what the log said since the last reading; zero events are counted as such."""
        if not self._config.log and not self._config.more_logs:
            raise NotAvailableError("broker_log.log is not set: which file is to be followed?")
        begin_ns = self._clock.mono_ns()
        self._paced.check()
        busy = self._paced.busy_seconds()
        if busy > _PATIENCE_SECONDS:
            raise ProbeError(f"the log {self._config.log} has not been read for {busy:.0f} s")
        return self.taken(begin_ns)

    def taken(self, begin_ns: int) -> Reading:
        return self._handed.take(begin_ns)

    def close(self) -> None:
        self._paced.close()

    def look(self) -> None:
        """Read what was appended to each log; one that is not there is an event once a minute.

        Raises:
            ProbeError: none of them is there.
        """
        begin_ns = self._clock.mono_ns()
        scan = self._scan or self._begin()
        sums: Samples = []
        events: list[Event] = []
        failures = []
        for log in self._logs:
            try:
                events += self._look_at(log, scan, sums)
            except ProbeError as error:
                log.looked_ns = None
                failures.append(str(error))
                events += self._failed(log, str(error))
        if len(failures) == len(self._logs):
            raise ProbeError("; ".join(failures))
        self._handed.put(sums, (), events, begin_ns)
        self._handed.polled()

    def leave(self) -> None:
        """Close the files."""
        for log in self._logs:
            log.tail.close()

    def _begin(self) -> Scanner:
        try:
            self._patterns = log_patterns.load(self._config.patterns)
        except PlanError as error:
            raise NotAvailableError(str(error)) from error
        paths = [Path(name) for name in (self._config.log, *self._config.more_logs) if name]
        names = Counter(path.name for path in paths)
        self._logs = [
            _Log(path, path.name if names[path.name] == 1 else str(path)) for path in paths
        ]
        self._scan = Scanner(self._patterns)
        return self._scan

    def _look_at(self, log: _Log, scan: Scanner, sums: Samples) -> list[Event]:
        """Return the events of one log, and add to `sums` what they count."""
        piece = log.tail.read()
        now_ns = self._clock.wall_ns()
        since_ns = log.looked_ns if log.looked_ns is not None else now_ns - SECOND_NS
        is_fresh = log.is_at_end and log.looked_ns is not None and now_ns - since_ns <= FRESH_NS
        found = []
        for one in scan.found(piece.text):
            at_ns = log.stamps.wall_ns(one.line, now_ns, is_fresh=is_fresh)
            if at_ns is not None:
                found.append((one, at_ns))
        log.looked_ns, log.is_at_end = now_ns, piece.is_all
        sums += self._zeros(log.labels)
        for one, _ in found:
            sums += _amounts(one, log.labels)
        events = [_event(one, at_ns, now_ns, log.labels) for one, at_ns in found]
        if piece.lost_bytes:
            fields: dict[str, Value] = {"log": log.labels[0][1], "bytes": piece.lost_bytes}
            events.append(Event("log_skipped", now_ns, since_ns, fields))
        return events

    def _zeros(self, labels: Labels) -> Samples:
        """Let every kind of event be counted, those that did not come as zero."""
        columns = [_events_column(pattern, labels) for pattern in self._patterns]
        columns += [_sum_column(pattern, labels) for pattern in self._patterns if pattern.metric]
        return [(column, 0.0) for column in columns]

    def _failed(self, log: _Log, reason: str) -> list[Event]:
        now_ns = self._clock.mono_ns()
        if log.said_ns is not None and now_ns - log.said_ns < REPEAT_EVENT_NS:
            return []
        log.said_ns = now_ns
        at_ns = self._clock.wall_ns()
        fields: dict[str, Value] = {"log": log.labels[0][1], "reason": reason[:500]}
        return [Event("log_failed", at_ns, at_ns - SECOND_NS, fields)]


def _event(found: Match, at_ns: int, now_ns: int, labels: Labels) -> Event:
    fields = {**found.fields, "log": printable(labels[0][1]), "seen_ns": now_ns}
    return Event(found.pattern.kind, at_ns, at_ns, fields)


def _amounts(found: Match, labels: Labels) -> Samples:
    """Return what one event adds to the numbers of its second."""
    pattern = found.pattern
    amount = found.fields.get(pattern.sums, "")
    is_summed = pattern.metric and not isinstance(amount, str)
    summed = [(_sum_column(pattern, labels), float(amount))] if is_summed else []
    return [(_events_column(pattern, labels), 1.0), *summed]


def _events_column(pattern: Pattern, labels: Labels) -> Column:
    return Column("broker_log_events", (("kind", pattern.kind), *labels), "events")


def _sum_column(pattern: Pattern, labels: Labels) -> Column:
    return Column(pattern.metric, labels, "seconds")
