"""Facts about one incident: what changed at its onset, what else happened then, and what is not measured.

Everything is computed once and kept, however many hypotheses ask for it. Channels of brokers whose latency
stayed, while that of others stepped, are left out: they explain nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from detectors import affected_brokers
from detectors.affected_brokers import is_one_host
from detectors.causes import channel, cpu, drive_facts, pages, places
from detectors.causes.acknowledgements import Acknowledgements
from detectors.causes.answers import ROUND_TRIPS, Answers
from detectors.causes.channel import Shift, shift_of
from detectors.causes.drive_facts import Drive
from detectors.nearby import Nearby, TimedEvent
from soak.core.model import Change, Series
from soak.core.series import host_of, is_client, parse_series, source_of

LEADER_CHANGE = "leader_change"
LEADER_COUNTERS = ("vectorized_raft_leadership_changes", "redpanda_raft_leadership_changes")
COPIES = (
    "kafka_server_replicamanager_underreplicatedpartitions",
    "vectorized_cluster_partition_under_replicated_replicas",
    "redpanda_kafka_under_replicated_replicas",
    "cluster_under_replicated_partitions",
)
_TAKEN_IN = (
    "kafka_server_brokertopicmetrics_bytesin",
    "vectorized_storage_log_written_bytes",
    "bookie_journal_JOURNAL_WRITE_BYTES",
    "pulsar_in_bytes",
    "redpanda_kafka_records_produced",
)
_GIVEN_OUT = (
    "kafka_server_brokertopicmetrics_bytesout",
    "vectorized_io_queue_total_read_bytes",
    "pulsar_out_messages",
)
OTHER_WRITES = "cluster_other_messages"
"""Messages a second that were written to topics that are not this run's."""
_OWN_BACKLOGS = ("lag_messages", "backlog_messages")
CLUSTER_BACKLOGS = ("kminion_kafka_consumer_group_topic_lag", "kafka_consumergroup_lag_sum")
"""Of all consumer groups, on one page."""
BROKER_BACKLOGS = (
    "redpanda_kafka_consumer_group_lag_sum",
    "pulsar_subscription_back_log",
    "pulsar_storage_backlog_size_bytes",
    "pulsar_ml_NumberOfMessagesInBacklog",
)
"""Of all consumers, on each broker's page its own part."""
BACKLOGS = (*_OWN_BACKLOGS, *CLUSTER_BACKLOGS, *BROKER_BACKLOGS)
_FLUSHES = ("fsync_latency_seconds", "bookie_journal_JOURNAL_SYNC_floor_seconds")
_MOST_OURS = 0.5  # of what a host's CPU rose by
MORE = 1.3  # a ratio from which on something counts as more work
_HUNG_SECONDS = 1.0


class Facts:
    """What is known around the onset of one change, computed when first asked for."""

    def __init__(self, change: Change, nearby: Nearby, outage: Change | None = None) -> None:
        self.change = replace(change, resolved_k=channel.recovered_k(change, nearby))
        self.outage = outage
        events = affected_brokers.events_of_touched(change, nearby)
        self.nearby = replace(cpu.with_shares(nearby), events=events)
        self._shifts: dict[str, Shift | None] = {}

    # --- the onset

    @property
    def onset_k(self) -> int:
        return self.change.onset_k

    @cached_property
    def near(self) -> tuple[int, int]:
        """Return the seconds, both included, in which something is at the onset."""
        return channel.near(self.change)

    @cached_property
    def end_k(self) -> int:
        """Return the end, excluded, of the seconds that show the new level."""
        return channel.end_of(self.change, self.nearby)

    @cached_property
    def latency(self) -> Series | None:
        return self.nearby.series.get(self.change.series)

    # --- channels

    @cached_property
    def _by_metric(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.nearby.series:
            found.setdefault(parse_series(name).metric, []).append(name)
        return found

    @cached_property
    def _untouched(self) -> frozenset[str]:
        return affected_brokers.untouched(self.nearby.series, self.change, self.nearby)

    @property
    def metrics(self) -> Collection[str]:
        return self._by_metric.keys()

    def named(self, *metrics: str) -> dict[str, Series]:
        """Return the channels of these metrics, those of untouched brokers too."""
        series = self.nearby.series
        return {name: series[name] for m in metrics for name in self._by_metric.get(m, ())}

    def touched(self, *metrics: str) -> dict[str, Series]:
        """Return the channels of these metrics without those of untouched brokers."""
        every = self.named(*metrics)
        return {name: one for name, one in every.items() if name not in self._untouched}

    def shift(self, series: Series) -> Shift | None:
        """Return what a channel did around the onset; None when too few values are known."""
        if series is not self.nearby.series.get(series.name):
            return shift_of(series, self.change, self.nearby)
        if series.name not in self._shifts:
            self._shifts[series.name] = shift_of(series, self.change, self.nearby)
        return self._shifts[series.name]

    def shifts(self, *metrics: str, **labels: str) -> list[Shift]:
        """Return what the channels of these metrics with these labels did, in the order of the metrics."""
        found = (
            self.shift(series)
            for name, series in self.touched(*metrics).items()
            if not labels or labels.items() <= dict(parse_series(name).labels).items()
        )
        return [one for one in found if one is not None]

    def shifts_like(self, pattern: re.Pattern[str]) -> list[Shift]:
        """Return what the channels did whose metric a pattern finds."""
        return self.shifts(*(metric for metric in self.metrics if pattern.search(metric)))

    def shifts_everywhere(self, *metrics: str) -> list[Shift]:
        """Return what the channels of these metrics did, those of untouched brokers too."""
        found = map(self.shift, self.named(*metrics).values())
        return [one for one in found if one is not None]

    # --- events

    def events(self, *kinds: str) -> list[TimedEvent]:
        return [one for one in self.nearby.events if one.event.kind in kinds]

    def event_ks(self, *kinds: str, is_ours: bool = False) -> NDArray[np.int64]:
        """Return the seconds with an event of one of these kinds, ascending, each once.

        `is_ours` leaves out those of other topics than this run's.
        """
        found = [one.k for one in self.events(*kinds) if not is_ours or self.is_ours(one)]
        return np.unique(np.array(found, np.int64))

    def has_begun(self, *kinds: str, within: int = 0) -> bool:
        """True when events of one of these kinds came at the onset, or so long after, and none before it."""
        first, last = self.near
        return any(
            bool(np.any((ks >= first) & (ks <= last + within))) and not np.any(ks < first)
            for ks in map(self.event_ks, kinds)
        )

    def counted_ks(self, *metrics: str) -> NDArray[np.int64]:
        """Return the seconds in which one of these counters counted something, ascending, each once."""
        found = [one.k[one.values > 0.0] for one in self.named(*metrics).values()]
        return np.unique(np.concatenate([np.empty(0, np.int64), *found]))

    # --- who is who

    @cached_property
    def topics(self) -> frozenset[str]:
        """Return the topics of this run, empty where they are not known."""
        if self.nearby.topics:
            return self.nearby.topics
        labels = (parse_series(name) for name in self.nearby.series)
        found = {one.label("topic") for one in labels if one.metric.startswith("retention_")}
        return frozenset(found - {""})

    def is_ours(self, event: TimedEvent) -> bool:
        """True for an event of a topic of this run, or of one that is not known to be another's."""
        named = str(event.event.fields.get("topic", ""))
        topic = named.rpartition("/")[2].partition("-partition-")[0]
        return not named or not self.topics or not {named, topic}.isdisjoint(self._short_topics)

    @cached_property
    def _short_topics(self) -> frozenset[str]:
        """Return the topics of this run, of Pulsar's without their namespace too."""
        return self.topics | {name.rpartition("/")[2] for name in self.topics}

    @cached_property
    def broker_hosts(self) -> set[str]:
        return affected_brokers.hosts(self.nearby)

    @cached_property
    def brokers(self) -> frozenset[str]:
        """Return the brokers, by host and port, that clients or short questions name; empty if unknown."""
        led = {parse_series(name).label("address") for name in self.named("leader_info")}
        asked = {parse_series(name).label("target") for name in self.named(*ROUND_TRIPS)}
        return frozenset((led if len(led) > len(asked) else asked) - {""})

    @cached_property
    def cluster_size(self) -> int:
        """Return how many brokers the cluster says it has; 0 where it is not asked."""
        return places.cluster_size(self.nearby)

    @cached_property
    def least_brokers(self) -> int:
        """Return how many brokers there are at least: those that clients or the cluster name."""
        leaders = affected_brokers.rises_by_leader(self.change, self.nearby)
        return max(self.cluster_size, len(self.brokers), len(leaders))

    @cached_property
    def members(self) -> places.Members:
        """Return the brokers and bookies that are known."""
        return places.every_member(self.nearby)

    @cached_property
    def storing(self) -> places.Members:
        """Return those of the members whose drives keep the messages."""
        return places.storing(self.nearby)

    def unwatched(self, what: str, watched: Collection[object], *, is_of_each: bool = False) -> str:
        """Return `what` of how many brokers is not measured, "" where it is of all of them.

        `watched`: the channels that measure it; with `is_of_each`, one for each process on a host.
        """
        if not is_of_each:
            return places.unwatched(what, [*map(str, watched)], self.members, self.nearby)
        known = self.members.count
        left = known - len(watched)
        return f"{what} of {left} of {known} {self.members.noun}" if 0 < left < known else ""

    def unwatched_drives(self, what: str, channels: Collection[str]) -> str:
        """Return `what` of how many of those that keep messages is not measured, "" where it is of all."""
        return places.unwatched(what, channels, self.storing, self.nearby)

    def are_on_one_host(self, one: places.Place, other: places.Place) -> bool:
        """True for places of one host by name, or that are read on the machine that has all brokers."""
        machine, readers = self.members.machine, {host_of(at.source).lower() for at in (one, other)}
        return one.is_same_host(other) or (machine != "" and readers == {machine})

    def is_of_broker(self, series: str) -> bool:
        """True when a channel is of a page, or of a host with a broker, known by name or by watched files.

        A host that only reads pages of brokers is none, nor is a page of a host of our own clients.
        """
        if parse_series(series).label("target"):
            return not self.is_of_load_host(places.place_of(series))
        host = self.source_host(series)
        return host in self.broker_hosts or _is_among(host.lower(), self._member_hosts)

    def is_of_load_host(self, place: places.Place) -> bool:
        """True for a page of a host of our own clients on which no broker is known to be."""
        return bool(place.labels) and _is_among(place.host, self._load_hosts)

    @cached_property
    def _member_hosts(self) -> frozenset[str]:
        """Return the hosts of the brokers and bookies, by the names that these have for clients."""
        return frozenset(host for found in self.members.hosts.values() for host in found)

    @cached_property
    def _load_hosts(self) -> frozenset[str]:
        """Return the hosts of our own clients without a broker.

        None where not all brokers are known, or where one is watched under another name than clients have for
        it: a page of our own host may be of that broker then.
        """
        members = self.members
        if members.unnamed or self.cluster_size > members.count or not all(members.hosts.values()):
            return frozenset()
        with_broker, others = {host.lower() for host in self.broker_hosts}, set[str]()
        for name in self.nearby.series:
            metric, host = parse_series(name).metric, places.place_of(name).host
            if pages.is_of_broker(metric) or pages.is_of_bookie(name):
                with_broker.add(host)
            elif pages.is_of_host(metric):
                others.add(host)
        watched = with_broker | others
        if not self._member_hosts or not all(_is_among(one, watched) for one in self._member_hosts):
            return frozenset()
        with_broker |= self._member_hosts
        sources = filter(is_client, map(source_of, self.nearby.series))
        ours = {host_of(source).lower() for source in sources}
        return frozenset(host for host in ours if not _is_among(host, with_broker))

    @cached_property
    def acknowledgements(self) -> Acknowledgements:
        return Acknowledgements(self.change, self.nearby, self.outage)

    @cached_property
    def answers(self) -> Answers:
        return Answers(self.change, self.nearby, self._untouched, self.acknowledgements)

    @cached_property
    def drives(self) -> list[Drive]:
        """Return the drives of which anything is known, without those of untouched brokers."""
        return drive_facts.drives_of(self)

    # --- the load

    @cached_property
    def sent(self) -> list[Shift]:
        return self.shifts("sent_messages")

    @cached_property
    def taken_in(self) -> list[Shift]:
        """Return what all brokers say they took in or wrote: each writes what others lead, too."""
        return self.shifts_everywhere(*_TAKEN_IN)

    @cached_property
    def given_out(self) -> list[Shift]:
        """Return what brokers say they gave out or read, all of them."""
        return self.shifts_everywhere(*_GIVEN_OUT)

    @cached_property
    def other_writes(self) -> Shift | None:
        """Return what others wrote to their own topics; of several hosts that ask, the best known."""
        found = self.shifts(OTHER_WRITES)
        return max(found, key=lambda one: (not one.is_sparse, one.after, one.series), default=None)

    @property
    def is_load_steady(self) -> bool:
        """True when what we send is known and did not grow."""
        return channel.are_calm(self.sent)

    @property
    def is_intake_awaited(self) -> bool:
        """True where brokers report what they take in, and too few of these values are there yet."""
        return bool(self.named(*_TAKEN_IN)) and not _is_known(self.taken_in)

    def has_grown(self, found: Iterable[Shift]) -> bool:
        return any(not one.is_calm and one.ratio >= MORE for one in found)

    # --- innocence: known, and calm

    @cached_property
    def flushes(self) -> list[Shift]:
        return self.shifts(*_FLUSHES)

    @cached_property
    def is_flush_innocent(self) -> bool:
        """True when flushes were measured and none slowed or hung."""
        first = self.near[0]
        is_hanging = any(
            np.any(one.values[(one.k >= first) & (one.k < self.end_k)] >= _HUNG_SECONDS)
            for one in self.named("fsync_hanging_seconds").values()
        )
        return _is_known(self.flushes) and not is_hanging and not any(map(_is_guilty, self.flushes))

    def known_channels(self, *metrics: str) -> list[str]:
        """Return the channels of these metrics that have values enough, those of untouched brokers too."""
        found = ((name, self.shift(series)) for name, series in self.named(*metrics).items())
        return [name for name, one in found if one is not None and not one.is_sparse]

    @cached_property
    def flush_channels(self) -> list[str]:
        """Return the channels of flushes, those of untouched brokers too."""
        return self.known_channels(*_FLUSHES)

    @cached_property
    def is_drive_innocent(self) -> bool:
        """True when drives or flushes of all brokers were measured, and none slowed or got more to do."""
        known = [drive for drive in self.drives if drive.is_known]
        if not known and not _is_known(self.flushes):
            return False
        channels = [*drive_facts.measured(self), *self.flush_channels]
        if self.unwatched_drives("drives", channels):
            return False
        is_guilty = any(drive.is_guilty for drive in known)
        return not is_guilty and not any(map(_is_guilty, self.flushes))

    @cached_property
    def is_cpu_guilty(self) -> bool:
        """True when CPU rose, or ran short, and not by what our own daemons took."""
        return any(
            cpu.runs_short(one) or (one.metric in cpu.SHARES and _is_guilty(one))
            for one in self.shifts(*cpu.LIMITS)
            if not self._is_our_cpu(one)
        )

    @cached_property
    def short_of_cpu(self) -> list[Shift]:
        """Return what says that the CPU of a broker's host, or its busiest core, ran short at the onset."""
        return [one for one in self._short if self.is_of_broker(one.series)]

    def is_short_where_asked(self, series: str) -> bool:
        """True when the CPU of the host whose probe gives a channel ran short at the onset."""
        host = self.source_host(series).lower()
        return any(is_one_host(places.place_of(one.series).host, host) for one in self._short)

    @cached_property
    def _short(self) -> list[Shift]:
        """Return what says that CPU ran short at the onset, wherever, but for what our own daemons took."""
        return [
            one
            for one in self.shifts(*cpu.LIMITS)
            if one.has_risen and cpu.runs_short(one) and not self._is_our_cpu(one)
        ]

    def _is_our_cpu(self, one: Shift) -> bool:
        """True for CPU of a host that rose mostly with that of our own daemons."""
        return one.metric in cpu.OF_HOST and source_of(one.series) in self.busy_with_us

    @cached_property
    def cpu_hosts(self) -> frozenset[str]:
        """Return where the CPU of a broker's host is measured, by channel; of untouched brokers too."""
        return frozenset(filter(self.is_of_broker, self.known_channels(*cpu.SHARES)))

    @property
    def is_cpu_innocent(self) -> bool:
        """True when the CPU of all brokers' hosts was measured, and none rose but by our own daemons."""
        is_known = _is_known(self.shifts(*cpu.SHARES)) and not self.unwatched("CPU", self.cpu_hosts)
        return is_known and not self.is_cpu_guilty

    @cached_property
    def busy_with_us(self) -> set[str]:
        """Return the hosts, by what watches them, whose CPU rose mostly with that of our own daemons."""
        cores: dict[str, float] = {}
        for one in self.shifts("host_daemon_cpu_cores"):
            source = source_of(one.series)
            cores[source] = cores.get(source, 0.0) + one.rise
        return {
            source
            for one in self.shifts(cpu.USED.metric)
            if (source := source_of(one.series)) in self.processors
            and cores.get(source, 0.0) > _MOST_OURS * one.rise * self.processors[source] > 0.0
        }

    @cached_property
    def processors(self) -> dict[str, float]:
        """Return how many processors each host has, by what watches it, where that is known."""
        counts = {
            source_of(name): float(np.median(one.values))
            for name, one in self.named("host_cpu_count").items()
        }
        return {source: count for source, count in counts.items() if count > 0.0}

    def source_host(self, series: str) -> str:
        return host_of(source_of(series))


def _is_among(host: str, others: Iterable[str]) -> bool:
    """True for a host that is one of others by its name."""
    return any(is_one_host(host, other) for other in others)


def _is_known(found: Iterable[Shift]) -> bool:
    """True where there are enough values of one to say that nothing changed."""
    return any(not one.is_sparse for one in found)


def _is_guilty(one: Shift) -> bool:
    return not one.is_calm and one.delta > 0.0 and one.ratio >= MORE
