"""The brokers' own numbers, and any others that are on a metrics page, under names that stay the same.

Source:   a page in Prometheus' text format, or a Prometheus server's scraped points (prometheus-api-client);
          which of its numbers, and how they are spelt there, is in `name_maps/`.
Overhead: one request a reading and target; 0.2 ms for a page of 1,800 lines. A server costs the memory of its
          client library, some 20 MB.
Caveats:  Fetched half a second before the reading. Counters become rates: the first reading has none, and
          none is given across a restart, or when a series of a sum is missing. Quantiles that a page gives
          lag as its window does. A page without a length and cut at the end of a line cannot be told from
          a whole one. Redirects to another server are refused: it would get the password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Literal

from pydantic.dataclasses import dataclass

from probes import _http as http
from probes import _name_map as name_map
from probes._exposition import MOST_SERIES
from probes._folds import Samples
from probes._metrics_page import MetricsPage, Source
from probes._metrics_target import MetricsTarget
from probes._name_map import Entry
from soak.clients import known, secret
from soak.core.errors import NotAvailableError, PlanError, ProbeError, SettingError
from soak.core.model import Column, Event, Reading
from soak.core.plan_base import STRICT, Settings
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, Duration, Size, duration_ns, size_bytes

SAY_AGAIN_NS = 60 * SECOND_NS
MADE_UP_SECONDS = 60  # asked a server for at once, after a late start

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}", re.ASCII)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Target:
    """A page or a server, and what is wanted of it."""

    url: str
    maps: tuple[str, ...]  # files of `name_maps/` without `.toml`, or paths that end in it
    kind: Literal["page", "server"] = "page"
    selector: str = ""  # of a server: which of its series, such as job="kafka"
    look_back: Duration = duration_ns(
        "1h"
    )  # of a server: so much is made up for after a late start
    client: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        http.check_url(self.url)
        if not self.maps:
            raise ValueError("maps must name at least one map of names")
        if self.selector and self.kind != "server":
            raise ValueError("selector belongs to the kind server")
        if not 0 <= self.look_back <= duration_ns("7d"):
            raise ValueError("look_back must lie between 0s and 7d")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    targets: dict[str, Target] = field(
        default_factory=dict
    )  # by the label `target` of what they give
    timeout: Duration = 5 * SECOND_NS
    largest_page: Size = size_bytes("32MiB")
    # that are wanted of a page; each costs 2 to 4 KB and 10 to 15 us a reading, 35 while others come and go
    most_series: int = MOST_SERIES

    def __post_init__(self) -> None:
        if not all(_NAME.fullmatch(name) for name in self.targets):
            raise ValueError("targets are named by letters, digits, '_', '.', ':' and '-'")
        if self.timeout <= 0:
            raise ValueError("timeout must be above 0s")
        if self.most_series < 1:
            raise ValueError("most_series must be at least 1")


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
            secret.refuse_literals("client", target.client, http.SECRET)
            known.refuse_unknown("client", target.client, http.KNOWN)
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


def open_source(target: Target, entries: Sequence[Entry], config: Config, clock: Clock) -> Source:
    """Return what a target is asked through; nothing is asked yet."""
    names = {name for entry in entries for name in entry.names()}
    road = http.Http(
        target.url,
        target.client,
        clock,
        timeout_seconds=config.timeout / SECOND_NS,
        most_bytes=config.largest_page,
    )
    if target.kind == "page":
        return MetricsPage(target.url, road, names, clock, config.most_series)
    from probes._metrics_server import MetricsServer  # noqa: PLC0415  # some 20 MB, only when used

    return MetricsServer(target.url, road, names, clock, selector=target.selector)


class Prometheus:
    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        open_source: Callable[[Target, Sequence[Entry], Config, Clock], Source] = open_source,
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
        step_ns = MADE_UP_SECONDS * SECOND_NS
        asked = list(self.targets)
        for begin_ns in range(since_ns, until_ns, step_ns):
            end_ns = min(begin_ns + step_ns, until_ns)
            rows: dict[int, Samples] = {}
            for target in list(asked):
                if end_ns <= until_ns - self._config.targets[target.name].look_back:
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
        if said_ns is not None and now_ns - said_ns < SAY_AGAIN_NS:
            return False
        self._said_ns[name] = now_ns
        return True

    def _failed(self, name: str, error: ProbeError) -> Event:
        at_ns = self._clock.wall_ns()
        return Event(
            "target_failed", at_ns, at_ns - SECOND_NS, {"target": name, "reason": str(error)[:500]}
        )
