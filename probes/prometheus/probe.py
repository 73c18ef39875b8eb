"""The probe `prometheus`: fetches each target on a thread of its own, shortly before each reading."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic.dataclasses import dataclass as config_dataclass

from probes.common.counters import Point, SeriesTracker
from probes.common.exposition import MAX_SERIES
from probes.common.polling import Prefetch
from probes.prometheus import name_map
from probes.prometheus.aggregation import Aggregator, Samples
from probes.prometheus.name_map import Entry, missing
from probes.prometheus.sources import (
    SCRAPED,
    Fetched,
    MetricsPage,
    MetricsServer,
    MetricsSource,
)
from soak.clients import client_settings, http
from soak.core.errors import (
    NotAvailableError,
    PlanError,
    ProbeError,
    SettingError,
    raise_settings,
    wrong_settings,
)
from soak.core.model import Column, Event, Reading
from soak.core.plan.config import STRICT, FormerName, Settings
from soak.core.ports import Clock
from soak.core.retry import Backoff, Once
from soak.core.series import Labels
from soak.core.units import SECOND_NS, Duration, Size, duration_ns, size_bytes

REPEAT_EVENT_NS = 60 * SECOND_NS
BACKFILL_SLICE_SECONDS = 60  # requested from a server at once, after a late start

_AFTER_TIMEOUT = Backoff(max_ns=30 * SECOND_NS)

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}", re.ASCII)
_MAX_NAMED = 20  # metrics in one event
_CLOCK_SECONDS = 2.0  # by which clocks may differ: dates have a resolution of one

_SCRAPED = Entry(
    name=SCRAPED, spellings=[SCRAPED], kind="gauge", unit="ratio", fold="min", is_expected=False
)
"""What a server says of each page that it scrapes: 0 where it got none."""


@dataclass(slots=True)
class _Fetch:
    """The results that the thread passes to the reading."""

    samples: Samples = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    cost_ns: int = 0


class MetricsTarget:
    """One page or server: fetched before each reading, and kept until it is taken.

    `fetch` is one round of the thread; tests call it themselves.
    """

    def __init__(
        self,
        name: str,
        entries: Sequence[Entry],
        clock: Clock,
        *,
        open_source: Callable[[], MetricsSource],
        max_seconds: float,
        max_busy_ratio: float,
    ) -> None:
        self.name = name
        self._entries = entries
        self._clock = clock
        self._open_source = open_source
        self._max_seconds = max_seconds
        self._own = (("target", name),)
        self._prefetch = Prefetch(
            f"prometheus-{name}",
            self.fetch,
            clock,
            self.close_source,
            max_busy_ratio=max_busy_ratio,
            backoff=_AFTER_TIMEOUT,
        )
        self._lock = threading.Lock()
        self._box = _Fetch()
        self._failure = ""  # of the last fetch
        # used by the thread only
        self._source: MetricsSource | None = None
        self._tracker = SeriesTracker()
        self._aggregator: Aggregator | None = None
        self._is_first = True
        self._damaged: AbstractSet[str] = frozenset()  # reported names

    def check(self) -> None:
        """Raise `ProbeError` if the last fetch failed, or if one has been running for too long."""
        with suppress(
            ProbeError
        ):  # it is kept until a fetch succeeds, and not for one reading alone
            self._prefetch.check()
        with self._lock:
            failure = self._failure
        if failure:
            raise ProbeError(failure)
        busy = self._prefetch.busy_seconds()
        if busy > self._max_seconds:
            raise ProbeError(f"{self.name} has not answered for {busy:.0f} s")

    def take(self) -> tuple[Samples, list[Event], int]:
        """Return the samples and events since the last call, and the time in ns that they took."""
        with self._lock:
            box, self._box = self._box, _Fetch()
        return box.samples, box.events, box.cost_ns

    def fetch(self) -> None:
        """Fetch once; raises as `MetricsSource.fetch`."""
        begin_ns, since_ns = self._clock.mono_ns(), self._clock.wall_ns()
        try:
            source, aggregator = self._opened()
            fetched = source.fetch()
        except ProbeError as error:
            with self._lock:
                self._box.samples = []  # of before: the target has no values now
                self._failure = str(error)
            raise
        steps = self._tracker.take(fetched.points)
        samples = aggregator.samples(steps, fetched.damaged, fetched.copied)
        seconds = (self._clock.mono_ns() - begin_ns) / SECOND_NS
        samples.append((Column("scrape_duration_seconds", self._own, "seconds"), seconds))
        events = self._lacks(fetched, since_ns)
        with self._lock:
            self._failure = ""
            self._box.samples = samples  # a later reading returns no older answer
            self._box.events += events
            self._box.cost_ns += self._clock.mono_ns() - begin_ns

    def _lacks(self, fetched: Fetched, since_ns: int) -> list[Event]:
        """Return an event for the metrics that the first answer lacks, and one for those never readable."""
        found = []
        if self._is_first:
            self._is_first = False
            absent = missing(self._entries, fetched.points, fetched.damaged)
            found.append(self._named("metrics_missing", "missing", absent, since_ns))
        new = sorted(fetched.damaged - self._damaged)
        self._damaged |= fetched.damaged
        found.append(self._named("metrics_unreadable", "names", new, since_ns))
        return [event for event in found if event is not None]

    def history(self, end_ns: int, seconds: float) -> dict[int, Samples]:
        """Return the samples that the source has, by the instant of each scrape; before the first `check`.

        Raises:
            ProbeError: as `fetch`.
        """
        source, aggregator = self._opened()
        points = source.until(end_ns, seconds).points
        scrapes: dict[int, dict[str, dict[Labels, list[Point]]]] = {}
        for name, series in points.items():
            for labels, seen in series.items():
                for point in seen:
                    scrape = scrapes.setdefault(point.at_ns, {})
                    scrape.setdefault(name, {})[labels] = [point]
        return {
            at_ns: aggregator.samples(self._tracker.take(scrapes[at_ns]), frozenset())
            for at_ns in sorted(scrapes)
        }

    def _opened(self) -> tuple[MetricsSource, Aggregator]:
        if self._source is None or self._aggregator is None:
            self._source = self._open_source()
            self._aggregator = Aggregator(self._entries, self._own, self._source.kept)
        return self._source, self._aggregator

    def close_source(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def close(self) -> None:
        self._prefetch.close()

    def _named(self, kind: str, key: str, names: list[str], since_ns: int) -> Event | None:
        if not names:
            return None
        more = [f"and {len(names) - _MAX_NAMED} more"] if len(names) > _MAX_NAMED else []
        fields: dict[str, str | int | float] = {
            "target": self.name,
            "count": len(names),
            key: ", ".join([*names[:_MAX_NAMED], *more]),
        }
        return Event(kind, self._clock.wall_ns(), since_ns, fields)


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Target:
    """A page or a server, and which of its metrics are read."""

    url: str
    maps: tuple[str, ...]  # files of `name_maps/` without `.toml`, or paths that end in it
    kind: Literal["page", "server"] = "page"
    selector: str = ""  # of a server: which series, such as job="kafka"
    # Of a server: how much is recorded after a late start.
    backfill: Annotated[Duration, FormerName("look_back")] = duration_ns("1h")
    client: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        http.check_url(self.url)
        if not self.maps:
            raise ValueError("maps must name at least one name map")
        if self.selector and self.kind != "server":
            raise ValueError("selector goes with `kind: server` only")
        if not 0 <= self.backfill <= duration_ns("7d"):
            raise ValueError("backfill must lie between 0s and 7d")


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    targets: dict[str, Target] = field(
        default_factory=dict
    )  # by the label `target` of their samples
    timeout: Duration = 5 * SECOND_NS
    max_page_size: Annotated[Size, FormerName("largest_page")] = size_bytes("32MiB")
    # Wanted ones of a page; each costs 2 to 4 KB and 10 to 15 us a reading, 35 while series come and go.
    max_series: Annotated[int, FormerName("most_series")] = MAX_SERIES
    max_busy_ratio: float = 0.25  # of the time, spent on the answers of one target

    def __post_init__(self) -> None:
        if not all(_NAME.fullmatch(name) for name in self.targets):
            raise ValueError("names of targets must be letters, digits, '_', '.', ':' and '-'")
        if self.timeout <= 0:
            raise ValueError("timeout must be above 0s")
        if self.max_series < 1:
            raise ValueError("max_series must be at least 1")
        if not 0.0 < self.max_busy_ratio <= 1.0:
            raise ValueError("max_busy_ratio must be above 0 and at most 1")


def build(config: Config, clock: Clock) -> Prometheus:
    return Prometheus(config, clock)


def check_settings(config: Config) -> None:
    """Raise `SettingError` for missing targets, a secret in the plan, unknown settings and invalid maps."""
    if not config.targets:
        raise SettingError(("targets",), "must name at least one target; without, nothing is read")
    raise_settings(
        [
            SettingError(("targets", name, *fault.place), str(fault))
            for name, target in config.targets.items()
            for fault in _wrong_settings_of(target)
        ]
    )


def _wrong_settings_of(target: Target) -> list[SettingError]:
    client, secrets = target.client, ("password", "bearer_token")
    faults = wrong_settings(
        lambda: client_settings.refuse_literal_secrets("client", client, http.SECRET_SETTINGS),
        lambda: client_settings.refuse_unknown("client", client, http.CLIENT_SETTINGS),
        lambda: client_settings.refuse_unencrypted("client", client, secrets, [target.url]),
    )
    try:
        name_map.load(target.maps)
    except PlanError as error:
        faults.append(SettingError(("maps",), str(error)))
    return faults


def preflight(config: Config, clock: Clock) -> list[str]:
    """Fetch every target once; return a warning for each that does not answer, is slow or lacks metrics.

    And for each whose clock differs from this host's.
    """
    warnings = []
    for name, target in config.targets.items():
        entries = entries_of(target)
        begin_ns = clock.mono_ns()
        try:
            source = open_source(target, entries, config, clock)
            found = source.fetch()
            source.close()
        except ProbeError as error:
            warnings.append(f"the probe prometheus cannot read {name}: {error}")
            continue
        seconds = (clock.mono_ns() - begin_ns) / SECOND_NS
        every = seconds / config.max_busy_ratio
        if every > 1.0:
            warnings.append(
                f"{name} ({target.url}) takes {seconds:.1f} s to answer, so it is asked every"
                f" {every:.0f} s only: let its exporter give fewer metrics"
            )
        if found.damaged:
            named = ", ".join(sorted(found.damaged)[:_MAX_NAMED])
            warnings.append(f"{name} ({target.url}) has lines that cannot be read, of {named}")
        ahead = http.clock_ahead_seconds(_client_of(target, config), target.url, clock)
        if ahead is not None and abs(ahead) >= _CLOCK_SECONDS:
            warnings.append(
                f"the clock of {name} ({target.url}) is {abs(ahead):.0f} s"
                f" {'ahead of' if ahead > 0.0 else 'behind'} this host's, so what its logs say happened is"
                " dated wrong: let both hosts follow one time server"
            )
        absent = name_map.missing(entries, found.points, found.damaged)
        if absent:
            warnings.append(f"{name} ({target.url}) does not have {', '.join(absent)}")
    return warnings


def entries_of(target: Target) -> list[Entry]:
    """Return which metrics of a target are read, and with a selector which pages its server could scrape.

    Raises:
        PlanError: as `name_map.load`.
    """
    entries = name_map.load(target.maps)
    return [*entries, _SCRAPED] if target.selector else entries  # else it would be of all pages


def open_source(
    target: Target, entries: Sequence[Entry], config: Config, clock: Clock
) -> MetricsSource:
    """Return the source of a target; nothing is requested yet."""
    names = {name for entry in entries for name in entry.names()}
    client = _client_of(target, config)
    if target.kind == "page":
        return MetricsPage(target.url, client, names, clock, config.max_series)
    return MetricsServer(target.url, client, names, clock, selector=target.selector)


def _client_of(target: Target, config: Config) -> http.HttpClient:
    return http.HttpClient(
        target.url,
        access=lambda: http.access_of(target.client),
        timeout_seconds=config.timeout / SECOND_NS,
        max_bytes=config.max_page_size,
    )


class Prometheus:
    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        open_source: Callable[
            [Target, Sequence[Entry], Config, Clock], MetricsSource
        ] = open_source,
    ) -> None:
        self._config = config
        self._clock = clock
        self._open_source = open_source
        self.targets: list[MetricsTarget] = []
        self._failures = Once(max_messages=len(config.targets), period_ns=REPEAT_EVENT_NS)

    def read(self) -> Reading:
        """Return the samples since the last reading; a target that failed is an event, and its `up` is 0."""
        if not self._config.targets:
            raise NotAvailableError("prometheus.targets is not set: name a page or a server")
        begin_ns = self._clock.mono_ns()
        self.open()
        failures: dict[str, ProbeError] = {}
        for target in self.targets:
            try:
                target.check()
            except ProbeError as error:
                failures[target.name] = error
        return self.taken(failures, begin_ns)

    def taken(self, failures: dict[str, ProbeError], begin_ns: int) -> Reading:
        """Return the fetched samples and an event for each failure; `read` without the threads, for tests."""
        samples: Samples = []
        events: list[Event] = []
        cost_ns = 0
        for target in self.targets:
            found, more, spent_ns = target.take()
            samples += found
            events += more
            cost_ns += spent_ns
            if found or target.name in failures:
                up = float(target.name not in failures)
                samples.append((Column("up", (("target", target.name),), "ratio"), up))
        now_ns = self._clock.mono_ns()
        events += [
            self._failed(name, error)
            for name, error in failures.items()
            if self._failures.is_new(name, now_ns)
        ]
        cost_ns += self._clock.mono_ns() - begin_ns
        return Reading(tuple(samples), tuple(events), cost_ns / SECOND_NS)

    def backfill(self, since_ns: int, until_ns: int) -> Iterator[tuple[int, Samples]]:
        """Yield what servers scraped between two instants of the wall clock; before the first `read`.

        A server that fails is not asked again, and a missing map yields nothing: the readings will report
        both.
        """
        try:
            self.open()
        except NotAvailableError:
            return
        step_ns = BACKFILL_SLICE_SECONDS * SECOND_NS
        answering = list(self.targets)
        for begin_ns in range(since_ns, until_ns, step_ns):
            end_ns = min(begin_ns + step_ns, until_ns)
            rows: dict[int, Samples] = {}
            for target in list(answering):
                if end_ns <= until_ns - self._config.targets[target.name].backfill:
                    continue
                try:
                    found = target.history(end_ns, (end_ns - begin_ns) / SECOND_NS)
                except ProbeError:
                    answering.remove(target)
                    continue
                for at_ns, samples in found.items():
                    if samples:
                        rows.setdefault(at_ns, []).extend(samples)
            yield from sorted(rows.items())

    def open(self) -> None:
        """Create the targets, if that is not done yet; raises `NotAvailableError` for a missing map."""
        if not self.targets:
            self.targets = [self._target(name) for name in self._config.targets]

    def close(self) -> None:
        for target in self.targets:
            target.close()

    def _target(self, name: str) -> MetricsTarget:
        target = self._config.targets[name]
        try:
            entries = entries_of(target)
        except PlanError as error:
            raise NotAvailableError(str(error)) from error
        return MetricsTarget(
            name,
            entries,
            self._clock,
            open_source=lambda: self._open_source(target, entries, self._config, self._clock),
            max_seconds=2 * self._config.timeout / SECOND_NS,
            max_busy_ratio=self._config.max_busy_ratio,
        )

    def _failed(self, name: str, error: ProbeError) -> Event:
        at_ns = self._clock.wall_ns()
        return Event(
            "target_failed", at_ns, at_ns - SECOND_NS, {"target": name, "reason": str(error)[:500]}
        )
