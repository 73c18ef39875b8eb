"""One page or server of the probe `prometheus`: fetched before each reading, kept until it is taken."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic.dataclasses import dataclass as config_dataclass

from probes.common.counters import Point, SeriesTracker
from probes.common.exposition import MAX_SERIES
from probes.common.polling import Prefetch
from probes.prometheus import name_map
from probes.prometheus.aggregation import Aggregator, Samples
from probes.prometheus.name_map import Entry, missing
from probes.prometheus.sources import MetricsPage, MetricsServer, MetricsSource
from soak.clients import client_settings, http
from soak.core.errors import NotAvailableError, PlanError, ProbeError, SettingError
from soak.core.model import Column, Event, Reading
from soak.core.plan.config import STRICT, FormerName, Settings
from soak.core.ports import Clock
from soak.core.series import Labels
from soak.core.units import SECOND_NS, Duration, Size, duration_ns, size_bytes

_MAX_NAMED = 20  # metrics in one event


@dataclass(slots=True)
class _Fetch:
    """What the thread hands over."""

    samples: Samples = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    cost_ns: int = 0


class MetricsTarget:
    """`fetch` is one round of the thread; tests call it themselves."""

    def __init__(
        self,
        name: str,
        entries: Sequence[Entry],
        clock: Clock,
        *,
        open_source: Callable[[], MetricsSource],
        patience_seconds: float,
    ) -> None:
        self.name = name
        self._entries = entries
        self._clock = clock
        self._open_source = open_source
        self._patience_seconds = patience_seconds
        self._own = (("target", name),)
        self._paced = Prefetch(f"prometheus-{name}", self.fetch, clock, self.leave)
        self._lock = threading.Lock()
        self._box = _Fetch()
        # of the thread alone
        self._source: MetricsSource | None = None
        self._walk = SeriesTracker()
        self._folds: Aggregator | None = None
        self._is_first = True

    def check(self) -> None:
        """Raise `ProbeError` when the last fetch failed, or one has run for too long."""
        self._paced.check()
        busy = self._paced.busy_seconds()
        if busy > self._patience_seconds:
            raise ProbeError(f"{self.name} has not answered for {busy:.0f} s")

    def take(self) -> tuple[Samples, list[Event], int]:
        """Return what was fetched since the last call, and the time that it took in ns."""
        with self._lock:
            box, self._box = self._box, _Fetch()
        return box.samples, box.events, box.cost_ns

    def fetch(self) -> None:
        """Fetch once.

        Raises:
            ProbeError: there was no answer, or not the right one.
        """
        begin_ns, since_ns = self._clock.mono_ns(), self._clock.wall_ns()
        with self._lock:
            self._box.samples = []  # an old answer is none for a reading after this
        source, folds = self._opened()
        fetched = source.fetch()
        samples = folds.samples(self._walk.take(fetched.points), fetched.damaged)
        seconds = (self._clock.mono_ns() - begin_ns) / SECOND_NS
        samples.append((Column("scrape_duration_seconds", self._own, "seconds"), seconds))
        events = []
        if self._is_first:
            self._is_first = False
            lacking = missing(self._entries, {*fetched.points, *fetched.damaged})
            if lacking:
                events.append(self._missing(lacking, since_ns))
        with self._lock:
            self._box.samples = samples
            self._box.events += events
            self._box.cost_ns += self._clock.mono_ns() - begin_ns

    def earlier(self, end_ns: int, seconds: float) -> dict[int, Samples]:
        """Return what the source remembers, by the instant of each scrape; before the first `check`.

        Raises:
            ProbeError: as `fetch`.
        """
        source, folds = self._opened()
        points = source.until(end_ns, seconds).points
        scrapes: dict[int, dict[str, dict[Labels, list[Point]]]] = {}
        for name, series in points.items():
            for labels, seen in series.items():
                for point in seen:
                    there = scrapes.setdefault(point.at_ns, {}).setdefault(name, {})
                    there[labels] = [point]
        return {
            at_ns: folds.samples(self._walk.take(scrapes[at_ns]), frozenset())
            for at_ns in sorted(scrapes)
        }

    def _opened(self) -> tuple[MetricsSource, Aggregator]:
        if self._source is None or self._folds is None:
            self._source = self._open_source()
            self._folds = Aggregator(self._entries, self._own, self._source.keep)
        return self._source, self._folds

    def leave(self) -> None:
        """Close the connection."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def close(self) -> None:
        self._paced.close()

    def _missing(self, names: list[str], since_ns: int) -> Event:
        more = [f"and {len(names) - _MAX_NAMED} more"] if len(names) > _MAX_NAMED else []
        fields: dict[str, str | int] = {
            "target": self.name,
            "count": len(names),
            "missing": ", ".join([*names[:_MAX_NAMED], *more]),
        }
        return Event("metrics_missing", self._clock.wall_ns(), since_ns, dict(fields))


# --- The brokers' own numbers, and any others that are on a metrics page, under names that stay the same.
# Source:   a page in Prometheus' text format, or a Prometheus server's scraped points (prometheus-api-
# client);
# which of its numbers, and how they are spelt there, is in `name_maps/`.
# Overhead: one request a reading and target; 0.2 ms for a page of 1,800 lines. A server costs the memory
# of its
# client library, some 20 MB.
# Caveats:  Fetched half a second before the reading. Counters become rates: the first reading has none, and
# none is given across a restart, or when a series of a sum is missing. Quantiles that a page gives
# lag as its window does. A page without a length and cut at the end of a line cannot be told from
# a whole one. Redirects to another server are refused: it would get the password.

REPEAT_EVENT_NS = 60 * SECOND_NS
BACKFILL_SLICE_SECONDS = 60  # asked a server for at once, after a late start

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}", re.ASCII)


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Target:
    """A page or a server, and what is wanted of it."""

    url: str
    maps: tuple[str, ...]  # files of `name_maps/` without `.toml`, or paths that end in it
    kind: Literal["page", "server"] = "page"
    selector: str = ""  # of a server: which of its series, such as job="kafka"
    # Of a server: so much is recorded afterwards when the probe starts late.
    backfill: Annotated[Duration, FormerName("look_back")] = duration_ns("1h")
    client: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        http.check_url(self.url)
        if not self.maps:
            raise ValueError("maps must name at least one map of names")
        if self.selector and self.kind != "server":
            raise ValueError("selector belongs to the kind server")
        if not 0 <= self.backfill <= duration_ns("7d"):
            raise ValueError("backfill must lie between 0s and 7d")


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    targets: dict[str, Target] = field(
        default_factory=dict
    )  # by the label `target` of what they give
    timeout: Duration = 5 * SECOND_NS
    max_page_size: Annotated[Size, FormerName("largest_page")] = size_bytes("32MiB")
    # That are wanted of a page; each costs 2 to 4 KB and 10 to 15 us a reading, 35 us while series come and go.
    max_series: Annotated[int, FormerName("most_series")] = MAX_SERIES

    def __post_init__(self) -> None:
        if not all(_NAME.fullmatch(name) for name in self.targets):
            raise ValueError("targets are named by letters, digits, '_', '.', ':' and '-'")
        if self.timeout <= 0:
            raise ValueError("timeout must be above 0s")
        if self.max_series < 1:
            raise ValueError("max_series must be at least 1")


def build(config: Config, clock: Clock) -> Prometheus:
    return Prometheus(config, clock)


def check_settings(config: Config) -> None:
    """Refuse no targets, a secret in the plan, settings that there are not, and maps that cannot be read.

    Raises:
        SettingError: about the first of them.
    """
    if not config.targets:
        raise SettingError(("targets",), "must name at least one: without, nothing is read")
    for name, target in config.targets.items():
        try:
            client_settings.refuse_literal_secrets("client", target.client, http.SECRET_SETTINGS)
            client_settings.refuse_unknown("client", target.client, http.CLIENT_SETTINGS)
        except SettingError as error:
            raise SettingError(("targets", name, *error.place), str(error)) from error
        try:
            name_map.load(target.maps)
        except PlanError as error:
            raise SettingError(("targets", name, "maps"), str(error)) from error


def look(config: Config, clock: Clock) -> list[str]:
    """Ask every target once; return a sentence on each that does not answer or lacks what is expected."""
    said = []
    for name, target in config.targets.items():
        entries = name_map.load(target.maps)
        try:
            source = open_source(target, entries, config, clock)
            there = source.fetch()
            source.close()
        except ProbeError as error:
            said.append(f"the probe prometheus has nothing of {name}: {error}")
            continue
        lacking = name_map.missing(entries, {*there.points, *there.damaged})
        if lacking:
            said.append(f"{name} ({target.url}) does not give {', '.join(lacking)}")
    return said


def open_source(
    target: Target, entries: Sequence[Entry], config: Config, clock: Clock
) -> MetricsSource:
    """Return what a target is asked through; nothing is asked yet."""
    names = {name for entry in entries for name in entry.names()}
    client = http.HttpClient(
        target.url,
        access=lambda: http.access_of(target.client),
        timeout_seconds=config.timeout / SECOND_NS,
        max_bytes=config.max_page_size,
    )
    if target.kind == "page":
        return MetricsPage(target.url, client, names, clock, config.max_series)
    return MetricsServer(target.url, client, names, clock, selector=target.selector)


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
        self._said_ns: dict[str, int] = {}

    def read(self) -> Reading:
        """Return what was fetched since the last reading; a target that failed is an event unless all did."""
        if not self._config.targets:
            raise NotAvailableError("prometheus.targets names no page and no server")
        begin_ns = self._clock.mono_ns()
        self._open()
        failures: dict[str, ProbeError] = {}
        for target in self.targets:
            try:
                target.check()
            except ProbeError as error:
                failures[target.name] = error
        return self.taken(failures, begin_ns)

    def taken(self, failures: dict[str, ProbeError], begin_ns: int) -> Reading:
        if len(failures) == len(self.targets):
            raise ProbeError("; ".join(str(error) for error in failures.values()))
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
        events += [
            self._failed(name, error) for name, error in failures.items() if self._is_new(name)
        ]
        cost_ns += self._clock.mono_ns() - begin_ns
        return Reading(tuple(samples), tuple(events), cost_ns / SECOND_NS)

    def earlier(self, since_ns: int, until_ns: int) -> Iterator[tuple[int, Samples]]:
        """Yield what servers scraped between two instants of the wall clock, in order; before any `read`.

        A server that fails is asked no more, and a map that is not there gives nothing: the readings will
        say so.
        """
        try:
            self._open()
        except NotAvailableError:
            return
        step_ns = BACKFILL_SLICE_SECONDS * SECOND_NS
        asked = list(self.targets)
        for begin_ns in range(since_ns, until_ns, step_ns):
            end_ns = min(begin_ns + step_ns, until_ns)
            rows: dict[int, Samples] = {}
            for target in list(asked):
                if end_ns <= until_ns - self._config.targets[target.name].backfill:
                    continue
                try:
                    found = target.earlier(end_ns, (end_ns - begin_ns) / SECOND_NS)
                except ProbeError:
                    asked.remove(target)
                    continue
                for at_ns, samples in found.items():
                    if samples:
                        rows.setdefault(at_ns, []).extend(samples)
            yield from sorted(rows.items())

    def _open(self) -> None:
        if not self.targets:
            self.targets = [self._target(name) for name in self._config.targets]

    def close(self) -> None:
        for target in self.targets:
            target.close()

    def _target(self, name: str) -> MetricsTarget:
        target = self._config.targets[name]
        try:
            entries = name_map.load(target.maps)
        except PlanError as error:
            raise NotAvailableError(str(error)) from error
        return MetricsTarget(
            name,
            entries,
            self._clock,
            open_source=lambda: self._open_source(target, entries, self._config, self._clock),
            patience_seconds=2 * self._config.timeout / SECOND_NS,
        )

    def _is_new(self, name: str) -> bool:
        now_ns = self._clock.mono_ns()
        said_ns = self._said_ns.get(name)
        if said_ns is not None and now_ns - said_ns < REPEAT_EVENT_NS:
            return False
        self._said_ns[name] = now_ns
        return True

    def _failed(self, name: str, error: ProbeError) -> Event:
        at_ns = self._clock.wall_ns()
        return Event(
            "target_failed", at_ns, at_ns - SECOND_NS, {"target": name, "reason": str(error)[:500]}
        )
