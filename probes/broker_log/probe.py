"""The probe `broker_log`: reads the logs of a broker on a thread of its own and returns their events."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pydantic.dataclasses import dataclass

from probes.broker_log import patterns
from probes.broker_log.patterns import Match, Pattern, Scanner, Value, added_by, printable
from probes.broker_log.tail import LogTail
from probes.broker_log.timestamps import TimestampReader, continues_previous
from probes.common.polling import Prefetch, ReadingBuffer
from soak.core.errors import NotAvailableError, PlanError, ProbeError, SettingError
from soak.core.model import Column, Event, Reading
from soak.core.plan.config import STRICT
from soak.core.ports import Clock
from soak.core.retry import Once
from soak.core.series import Labels
from soak.core.units import SECOND_NS

FRESH_NS = 100 * SECOND_NS  # all new lines of a log that was read this recently are fresh
REPEAT_EVENT_NS = 60 * SECOND_NS
_MAX_SECONDS = 10.0

Samples = list[tuple[Column, float]]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    log: str = ""  # empty: that of the lab broker
    more_logs: tuple[str, ...] = ()  # such as that of the garbage collector
    patterns: tuple[str, ...] = ("kafka", "pulsar", "redpanda", "jvm_gc")


def build(config: Config, clock: Clock) -> BrokerLog:
    return BrokerLog(config, clock)


def check_settings(config: Config) -> None:
    """Raise `SettingError` if there are no patterns, or if they cannot be read."""
    if not config.patterns:
        raise SettingError(
            ("patterns",), "must name at least one file; without patterns no line is an event"
        )
    try:
        patterns.load(config.patterns)
    except PlanError as error:
        raise SettingError(("patterns",), str(error)) from error


def preflight(config: Config, clock: Clock) -> list[str]:
    """Return a warning for each log that cannot be read on this host."""
    del clock
    warnings = []
    for name in (config.log, *config.more_logs):
        tail = LogTail(Path(name))
        try:
            if name:
                tail.read()
        except ProbeError as error:
            warnings.append(
                f"the probe broker_log: {error}; name the broker's log on this host, or let this user read it"
            )
        finally:
            tail.close()
    return warnings


class _Log:
    """The state of one log."""

    def __init__(self, path: Path, label: str) -> None:
        self.tail = LogTail(path)
        self.timestamps = TimestampReader()
        self.labels: Labels = (("log", label),)
        self.read_ns: int | None = None  # wall clock
        self.is_at_end = False
        self.metrics: set[str] = set()  # of the patterns that it has had lines of
        self.newest: dict[str, Match] = {}  # of the last read, by kind


class BrokerLog:
    """`poll` is one round of the thread; `taken` returns its results. Tests call both themselves."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._prefetch = Prefetch("broker_log", self.poll, clock, self.close_logs)
        self._buffer = ReadingBuffer(clock, "broker_log")
        self._patterns: list[Pattern] = []
        # used by the thread only
        logs = (config.log, *config.more_logs)
        self._failures = Once(max_messages=len(logs), period_ns=REPEAT_EVENT_NS)
        self._scanner: Scanner | None = None
        self._logs: list[_Log] = []

    def read(self) -> Reading:
        """Return the events since the last reading; kinds without events are counted as zero."""
        if not self._config.log and not self._config.more_logs:
            raise NotAvailableError("broker_log.log is not set: name the log of the broker")
        begin_ns = self._clock.mono_ns()
        self._prefetch.check()
        busy = self._prefetch.busy_seconds()
        if busy > _MAX_SECONDS:
            raise ProbeError(f"the log {self._config.log} has not been read for {busy:.0f} s")
        return self.taken(begin_ns)

    def taken(self, begin_ns: int) -> Reading:
        return self._buffer.take(begin_ns)

    def close(self) -> None:
        self._prefetch.close()

    def poll(self) -> None:
        """Read what was appended to each log; one that is missing is an event, once a minute.

        Raises:
            ProbeError: all of them are missing.
        """
        begin_ns = self._clock.mono_ns()
        scanner = self._scanner or self._open()
        sums: Samples = []
        events: list[Event] = []
        failures = []
        for log in self._logs:
            try:
                events += self._read_log(log, scanner, sums)
            except ProbeError as error:
                is_missing = isinstance(error.__cause__, FileNotFoundError)
                log.read_ns = self._clock.wall_ns() if is_missing else None
                log.is_at_end = is_missing  # then all that it holds once it is there is new
                failures.append(str(error))
                events += self._failed(log, str(error))
        if len(failures) == len(self._logs):
            raise ProbeError("; ".join(failures))
        self._buffer.put(sums, (), events, begin_ns)
        self._buffer.polled()

    def close_logs(self) -> None:
        for log in self._logs:
            log.tail.close()

    def _open(self) -> Scanner:
        try:
            self._patterns = patterns.load(self._config.patterns)
        except PlanError as error:
            raise NotAvailableError(str(error)) from error
        paths = [Path(name) for name in (self._config.log, *self._config.more_logs) if name]
        names = Counter(path.name for path in paths)
        self._logs = [
            _Log(path, path.name if names[path.name] == 1 else str(path)) for path in paths
        ]
        self._scanner = Scanner(self._patterns)
        return self._scanner

    def _read_log(self, log: _Log, scanner: Scanner, sums: Samples) -> list[Event]:
        """Return the events of one log, and add their counts to `sums`."""
        chunk = log.tail.read()
        now_ns = self._clock.wall_ns()
        since_ns = log.read_ns if log.read_ns is not None else now_ns - SECOND_NS
        is_fresh = log.is_at_end and log.read_ns is not None and now_ns - since_ns <= FRESH_NS
        found = []
        line = ""
        at_ns: int | None = None
        for match in scanner.found(chunk.text):
            if match.line != line:  # one that lists several things is read once
                line = match.line
                at_ns = log.timestamps.wall_ns(line, now_ns, is_fresh=is_fresh)
            if at_ns is not None:
                found.append((match, at_ns, at_ns))
            elif match.pattern.sums or not continues_previous(match.line):
                found.append((match, now_ns, since_ns))
        log.read_ns, log.is_at_end = now_ns, chunk.is_all
        log.metrics |= {match.pattern.metric for match, _, _ in found}
        sums += self._zeros(log)
        events = []
        before, log.newest = {} if chunk.lost_bytes else log.newest, {}
        for match, at_ns, after_ns in found:
            inner = before.pop(match.pattern.kind, None)
            log.newest[match.pattern.kind] = match
            added = None if inner is None else added_by(match, inner)
            if added is not None:  # the read before returned the event inside this one
                sums += _sum(match, added, log.labels)
                continue
            sums += _amounts(match, log.labels)
            fields = _fields(match, now_ns, log.labels)
            events.append(Event(match.pattern.kind, at_ns, after_ns, fields))
        if chunk.lost_bytes:
            skipped: dict[str, Value] = {"log": log.labels[0][1], "bytes": chunk.lost_bytes}
            events.append(Event("log_skipped", now_ns, since_ns, skipped))
        return events

    def _zeros(self, log: _Log) -> Samples:
        """Return a zero for every kind of event, and for each sum that the log is known to have."""
        columns = [_events_column(pattern, log.labels) for pattern in self._patterns]
        columns += [
            _sum_column(pattern, log.labels)
            for pattern in self._patterns
            if pattern.metric and pattern.metric in log.metrics
        ]
        return [(column, 0.0) for column in columns]

    def _failed(self, log: _Log, reason: str) -> list[Event]:
        if not self._failures.is_new(log.labels, self._clock.mono_ns()):
            return []
        at_ns = self._clock.wall_ns()
        fields: dict[str, Value] = {"log": log.labels[0][1], "reason": reason[:500]}
        return [Event("log_failed", at_ns, at_ns - SECOND_NS, fields)]


def _fields(match: Match, now_ns: int, labels: Labels) -> dict[str, Value]:
    return {**match.fields, "log": printable(labels[0][1]), "seen_ns": now_ns}


def _amounts(match: Match, labels: Labels) -> Samples:
    """Return what one event adds to the samples."""
    pattern = match.pattern
    amount = match.fields.get(pattern.sums, "")
    summed = [] if isinstance(amount, str) else _sum(match, float(amount), labels)
    return [(_events_column(pattern, labels), 1.0), *summed]


def _sum(match: Match, amount: float, labels: Labels) -> Samples:
    """Return what an event adds to the sum of its pattern, if that has one."""
    pattern = match.pattern
    return [(_sum_column(pattern, labels), amount)] if pattern.metric else []


def _events_column(pattern: Pattern, labels: Labels) -> Column:
    return Column("broker_log_events", (("kind", pattern.kind), *labels), "events")


def _sum_column(pattern: Pattern, labels: Labels) -> Column:
    return Column(pattern.metric, labels, "seconds")
