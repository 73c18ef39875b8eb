"""The way between client and broker, or between brokers: packets are late, lost or sent again.

Method:  a channel of the network itself steps up at the onset: round trips, by a fifth of the step, or by
         a twentieth where nothing else rose, for a message waits for several; answers on one connection
         later than others to the same question at the same instant; packets sent again, dropped or damaged.
         What only counts packets needs ten times as many of them. Else packets and single late answers need
         latency to follow them second by second, or the brokers' drives and CPU to be measured and calm;
         single late answers never count where CPU rose. Pages that answer late count where the brokers' own
         time for a request is known and stayed. Consumers that find no way to a broker, or no address of it,
         say so in their errors.
Assumes: nothing is concluded from the rest being innocent alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import atanh, sqrt

import numpy as np
from numpy.typing import NDArray

from detectors.causes import background, channel
from detectors.causes.answers import ROUND_TRIPS
from detectors.causes.channel import Shift, are_calm, mid_ranks, risen
from detectors.causes.facts import Facts
from detectors.causes.hypothesis import CLEAR, FAIR, SLIGHT, Hypothesis, Sign, ruled_out, unmeasured
from detectors.nearby import when
from soak.core.model import Change, Evidence, Series
from soak.core.series import host_of, source_of

NEXT = {"network": "see losses on both hosts and between them: ss -ti, ip -s link"}

_PAGES = "scrape_duration_seconds"
_AT_BROKER = (
    "vectorized_kafka_latency_produce_latency_seconds",
    "redpanda_kafka_request_latency_seconds",
    "kafka_network_requestmetrics_totaltime_seconds",
    "pulsar_broker_publish_latency_seconds",
)
_MORE = 1.5
_TOGETHER_SECONDS = 2
_ONE_OF_MANY = 0.05
"""Of the step: a message waits for its own trip, for those of its copies and of the requests before it."""
_LEAST_PACKETS = 1.0
_MANY_MORE, _MANY_PACKETS = 10.0, 5.0  # a second: no calm of anything else is asked for


def examine(facts: Facts) -> Iterator[Hypothesis]:
    """Give which channel of the network changed with the step, or that it was cut."""
    if facts.answers.all_silent:
        yield _cut(facts)
        return
    if facts.answers.unreachable:
        yield _without_a_way(facts)
        return
    trips = facts.shifts_like(ROUND_TRIPS)
    counted = facts.shifts_like(background.PACKETS)
    is_innocent = facts.is_drive_innocent and facts.is_cpu_innocent
    trip = _felt(
        risen(trips, _MORE), facts, _ONE_OF_MANY if is_innocent else background.LEAST_WAY_SHARE
    )
    packets = risen((one for one in counted if one.after >= _LEAST_PACKETS), _MORE)
    lone = _felt(risen(facts.shifts(background.LONE_DELAY), _MORE), facts)
    if trip is not None:
        yield _hypothesis([trip, lone, packets], facts, Sign(FAIR, _part_text(trip, facts)))
        return
    if facts.is_cpu_guilty:  # a host that waits for a processor answers late too
        lone = None
    for late in (packets, lone):
        if late is not None and (found := _by_packets(late, facts, is_innocent=is_innocent)):
            yield found
            return
    page = _late_page(facts) if is_innocent else None
    if page is not None:
        yield _hypothesis([page], facts)
    elif not trips and not counted:
        yield unmeasured(
            "network", "round trips to the brokers (probe round_trip), packets sent again"
        )
    elif are_calm([*trips, *counted]):
        yield ruled_out("network", "Round trips and packets sent again stayed as they were.")


def _cut(facts: Facts) -> Hypothesis:
    """Return what all brokers that fall silent at once say: the way to them is what they share."""
    silent = facts.answers.all_silent
    names = ", ".join(one.what for one in silent)
    since = when(min(one.from_k for one in silent) - facts.onset_k)
    text = f"All brokers stopped answering in one second, {since}, and no connection was refused: {names}."
    signs = [Sign(CLEAR + SLIGHT, Evidence(text))]
    ends = {one.from_k + one.seconds for one in silent}
    if all(one.is_over for one in silent) and max(ends) - min(ends) <= _TOGETHER_SECONDS:
        signs.append(Sign(FAIR, Evidence("All of them answered again in one second, too.")))
    return Hypothesis("network", tuple(signs))


def _without_a_way(facts: Facts) -> Hypothesis:
    """Return what consumers say whose host has no way to a broker, or no address of it."""
    found = facts.answers.unreachable
    names = ", ".join(sorted(filter(None, found)))
    since = when(min(found.values()) - facts.onset_k)
    text = f"Consumers found no way to {names or 'a broker'}, or no address of it, first {since}."
    return Hypothesis("network", (Sign(CLEAR, Evidence(text)),), names)


def _felt(
    one: Shift | None, facts: Facts, least_share: float = background.LEAST_WAY_SHARE
) -> Shift | None:
    """Return a delay that is a part of the step; None where it is too small."""
    if one is None or one.added(facts.change) < least_share:
        return None
    return one


def _part_text(trip: Shift, facts: Facts) -> Evidence:
    return Evidence(f"That is {min(1.0, trip.added(facts.change)):.0%} of the step by itself.")


def _by_packets(packets: Shift, facts: Facts, *, is_innocent: bool) -> Hypothesis | None:
    """Return what packets, or single late answers, say; None when something else may have made them late."""
    followed = coupling(facts.nearby.series[packets.series], facts)
    if followed is not None and followed.is_following:
        text = (
            f"Latency follows it second by second (rank correlation {followed.rho:.2f} over "
            f"{followed.seconds} s), which makes {followed.explained:.0%} of the step."
        )
        return _hypothesis([packets], facts, Sign(FAIR, Evidence(text, {"rho": followed.rho})))
    are_many = packets.ratio >= _MANY_MORE and packets.after >= _MANY_PACKETS
    return _hypothesis([packets], facts) if are_many or is_innocent else None


def _late_page(facts: Facts) -> Shift | None:
    """Return the page that answers late although the brokers' own time for a request stayed."""
    page = _felt(risen(facts.shifts(_PAGES), _MORE), facts)
    return page if page is not None and are_calm(facts.shifts(*_AT_BROKER)) else None


def _hypothesis(found: list[Shift | None], facts: Facts, *more: Sign) -> Hypothesis:
    known = [one for one in found if one is not None]
    share = max(one.share(facts.change) for one in known)
    strengths = [CLEAR, *[SLIGHT] * (len(known) - 1)]
    signs = [Sign(s, one.evidence(facts.change)) for s, one in zip(strengths, known, strict=True)]
    suspect = known[0].label("target") or host_of(source_of(known[0].series))
    return Hypothesis("network", (*signs, *more), suspect, share)


# --- Does latency follow a channel second by second, and what of the step goes away when it is regressed
# on it?
# Method:  Spearman's correlation of the seconds of the new level alone, so that two steps at one time are no
# evidence; then the slope of these seconds, times the channel's own step, as a share of latency's.
# Assumes: what the channel does is felt within the second, and alike before and after the onset.

LEAST_SECONDS = 20
_LEAST_RHO = 0.3
_LEAST_SIGMAS = 3.0
_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class Coupling:
    """How closely latency follows a channel after the onset, and the share of the step that this makes."""

    rho: float
    explained: float
    seconds: int

    @property
    def is_following(self) -> bool:
        """True for a correlation that is not small and, by Fisher's transformation, no accident."""
        sigmas = atanh(min(self.rho, 0.999)) * sqrt(max(1, self.seconds - 3))
        return self.rho >= _LEAST_RHO and sigmas >= _LEAST_SIGMAS


def coupling(series: Series, facts: Facts) -> Coupling | None:
    """Return how latency follows a channel; None when too few seconds have both."""
    latency, change = facts.latency, facts.change
    if latency is None:
        return None
    k, at, of = np.intersect1d(latency.k, series.k, return_indices=True)
    y, x = (np.log10(np.maximum(v, _FLOOR)) for v in (latency.values[at], series.values[of]))
    before, after = _sides(k, change, facts)
    if np.count_nonzero(after) < LEAST_SECONDS or np.count_nonzero(before) < LEAST_SECONDS:
        return None
    rho = _correlation(mid_ranks(x[after]), mid_ranks(y[after]))
    spread = float(np.var(x[after]))
    slope = float(np.cov(x[after], y[after], bias=True)[0, 1]) / spread if spread > 0.0 else 0.0
    steps = [float(np.median(v[after]) - np.median(v[before])) for v in (x, y)]
    explained = slope * steps[0] / steps[1] if steps[1] > 0.0 else 0.0
    return Coupling(rho, max(0.0, min(1.0, explained)), int(np.count_nonzero(after)))


def _sides(
    k: NDArray[np.int64], change: Change, facts: Facts
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    low, high = change.interval
    before = (k >= channel.start_of(change, facts.nearby)) & (k < low)
    return before, (k >= high) & (k < facts.end_k)


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    spread = float(np.std(x) * np.std(y))
    return float(np.mean((x - x.mean()) * (y - y.mean()))) / spread if spread > 0.0 else 0.0
