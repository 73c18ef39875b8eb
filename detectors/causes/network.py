"""The way between client and broker, or between brokers: packets are late, lost or sent again.

Method:  a channel of the network itself steps up at the onset: round trips, by a fifth of the step; answers
         on one connection later than others to the same question at the same instant; packets sent
         again, dropped or damaged. What only counts packets needs ten times as many of them. Else
         packets and single late answers need latency to follow them second by second, or the brokers' drive
         and CPU to be measured and calm; single late answers never count where CPU rose. Pages that answer
         late count where the brokers' own time for a request is known and stayed.
Assumes: nothing is concluded from the rest being innocent alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import atanh, sqrt

import numpy as np
from numpy.typing import NDArray

from detectors import cause_scores
from detectors.causes import _innocence
from detectors.causes._moves import (
    VALUES,
    Move,
    are_calm,
    end_of,
    mid_ranks,
    moves,
    moves_like,
    near,
    risen,
    share,
    spacing_of,
    start_of,
    told,
)
from detectors.nearby import Nearby
from soak.core.model import Change, Evidence, Explanation, Series
from soak.core.series import parse_series

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


def coupling(channel: Series, change: Change, nearby: Nearby) -> Coupling | None:
    """Return how latency follows a channel; None when too few seconds have both."""
    latency = nearby.series.get(change.series)
    if latency is None:
        return None
    k, at, of = np.intersect1d(latency.k, channel.k, return_indices=True)
    y, x = (np.log10(np.maximum(v, _FLOOR)) for v in (latency.values[at], channel.values[of]))
    low, high = change.interval
    before = (k >= start_of(change, nearby)) & (k < low)
    after = (k >= high) & (k < end_of(change, nearby))
    if np.count_nonzero(after) < LEAST_SECONDS or np.count_nonzero(before) < LEAST_SECONDS:
        return None
    rho = _correlation(mid_ranks(x[after]), mid_ranks(y[after]))
    spread = float(np.var(x[after]))
    slope = float(np.cov(x[after], y[after], bias=True)[0, 1]) / spread if spread > 0.0 else 0.0
    steps = [float(np.median(v[after]) - np.median(v[before])) for v in (x, y)]
    explained = slope * steps[0] / steps[1] if steps[1] > 0.0 else 0.0
    return Coupling(rho, max(0.0, min(1.0, explained)), int(np.count_nonzero(after)))


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    spread = float(np.std(x) * np.std(y))
    return float(np.mean((x - x.mean()) * (y - y.mean()))) / spread if spread > 0.0 else 0.0


NEXT = "see losses on both hosts and between them: ss -ti, ip -s link"

_ROUND_TRIPS = re.compile(r"(^|_)(rtt|round_?trip|ping)(_|$)", re.IGNORECASE)
_PACKETS = re.compile(
    r"retrans|network_(errors|drops)|network_(receive|transmit)_(errs|drop)|tcp_?timeouts",
    re.IGNORECASE,
)
_LONE = "broker_lone_delay_seconds"
_PAGES = "scrape_duration_seconds"
_AT_BROKER = (
    "vectorized_kafka_latency_produce_latency_seconds",
    "redpanda_kafka_request_latency_seconds",
    "kafka_network_requestmetrics_totaltime_seconds",
    "pulsar_broker_publish_latency_seconds",
)
_MORE = 1.5
_LEAST_SHARE = 0.2
_LEAST_PACKETS = 1.0
_MANY_MORE, _MANY_PACKETS = 10.0, 5.0  # a second: no calm of anything else is asked for
_CUT_VALUES = 5  # in a row without an answer
_CUT_SECONDS = 30  # after the onset that they may begin: a question may take its time to fail


def is_known_calm(change: Change, nearby: Nearby) -> bool:
    """True when a channel of the network was measured, answers came at the onset, and none rose.

    What a broker that stands still adds to its answers, when it goes on, is small beside the step.
    """
    ways = [*moves_like(_ROUND_TRIPS, change, nearby), *moves(_LONE, change, nearby)]
    packets = moves_like(_PACKETS, change, nearby)
    felt = [*packets, *(one for one in ways if _added(one, change) >= _LEAST_SHARE)]
    is_known = bool(ways or packets)
    is_calm = not felt or are_calm(felt)
    return is_known and is_calm and not _is_cut_off(change, nearby)


def _is_cut_off(change: Change, nearby: Nearby) -> bool:
    """True when no question was answered for seconds about the onset: the broker stands still or is cut off.

    What is lost long before or after it says nothing of the step.
    """
    end = min(nearby.k1, end_of(change, nearby))
    for name, series in nearby.series.items():
        if not _ROUND_TRIPS.search(parse_series(name).metric):
            continue
        spacing = spacing_of(series)
        first, last = near(change, _CUT_SECONDS, spacing)
        ks = series.k[(series.k >= first - VALUES * spacing) & (series.k < end)]
        is_used_to_answer = bool(ks.size) and ks[0] < first
        is_long = np.diff(ks, append=end) > _CUT_VALUES * spacing
        is_about_onset = (np.append(ks[1:], end) > first) & (ks <= last)
        if is_used_to_answer and np.any(is_long & is_about_onset):
            return True
    return False


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return which channel of the network changed with the step; None when none did."""
    trip = risen(moves_like(_ROUND_TRIPS, change, nearby), _MORE)
    if trip is not None and _added(trip, change) < _LEAST_SHARE:
        trip = None
    again = [one for one in moves_like(_PACKETS, change, nearby) if one.after >= _LEAST_PACKETS]
    packets = risen(again, _MORE)
    lone = risen(moves(_LONE, change, nearby), _MORE)
    if lone is not None and _added(lone, change) < _LEAST_SHARE:
        lone = None
    if trip is not None:
        return _explanation(cause_scores.STRONG, [trip, lone, packets], change)
    if _innocence.is_cpu_guilty(change, nearby):  # who waits for a processor answers late too
        lone = None
    is_innocent = _innocence.is_drive_innocent(change, nearby) and _innocence.is_cpu_innocent(
        change, nearby
    )
    for late in (packets, lone):
        found = None if late is None else _by_packets(late, change, nearby, is_innocent=is_innocent)
        if found is not None:
            return found
    page = _late_page(change, nearby) if is_innocent else None
    return None if page is None else _explanation(cause_scores.LIKELY, [page], change)


def _by_packets(
    packets: Move, change: Change, nearby: Nearby, *, is_innocent: bool
) -> Explanation | None:
    """Return what packets, or single late answers, say; None when something else may have made them late."""
    followed = coupling(nearby.series[packets.series], change, nearby)
    if followed is not None and followed.is_following:
        found = _explanation(cause_scores.STRONG, [packets], change)
        text = (
            f"Latency follows it second by second (rank correlation {followed.rho:.2f} over "
            f"{followed.seconds} s), which makes {followed.explained:.0%} of the step."
        )
        return replace(found, evidence=(*found.evidence, Evidence(text, {"rho": followed.rho})))
    are_many = packets.ratio >= _MANY_MORE and packets.after >= _MANY_PACKETS
    return _explanation(cause_scores.LIKELY, [packets], change) if are_many or is_innocent else None


def _late_page(change: Change, nearby: Nearby) -> Move | None:
    """Return the page that answers late although the brokers' own time for a request stayed."""
    page = risen(moves(_PAGES, change, nearby), _MORE)
    if page is None or _added(page, change) < _LEAST_SHARE:
        return None
    at_broker = [one for metric in _AT_BROKER for one in moves(metric, change, nearby)]
    return page if are_calm(at_broker) else None


def _added(one: Move, change: Change) -> float:
    """Return the share of the step that a channel in seconds adds to it."""
    step = change.after - change.before
    return (one.after - one.before) / step if step > 0.0 else 0.0


def _explanation(band: float, found: list[Move | None], change: Change) -> Explanation:
    known = [one for one in found if one is not None]
    part = max(share(one, change) for one in known)
    evidence: list[Evidence] = [told(one, change) for one in known]
    return Explanation("network", cause_scores.graded(band, part), tuple(evidence))
