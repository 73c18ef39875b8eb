"""What the audit keeps does not grow with the run.

Figures of a 2-core machine. 10 million messages of 32 producer streams through `Received` and `Audit`:
1,656 KiB after a tenth of them, 1,677 KiB at the end (tracemalloc, with 20,000 messages in hand). A week of
records of four clients and two subscriptions with 168 holes: 3,036 intervals, all of them the holes'; 33 us
of CPU a second of the run.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from soak.core import header
from soak.core.audit import EXPIRED_EVENT, FINAL_POSITION_EVENT, Audit
from soak.core.model import Event, Record, Span
from soak.core.ports import EARLIEST
from soak.core.units import SECOND_NS
from soak.load.consumer.sequence_tracker import SequenceTracker

Ints = NDArray[np.int64]

PARTITIONS, CLIENTS = 8, 4
BATCH = 20_000  # messages, those of a second
HOUR_SECONDS = 3600
SLACK_BYTES = 64 * 1024


STREAMS = [header.stream_name(client + 1, 1, 0) for client in range(CLIENTS)]


def _messages(count: int) -> Iterator[tuple[NDArray[np.void], Ints, Ints]]:
    """Give batches (headers, partition, offset) of clients that take turns in every partition."""
    at = np.arange(BATCH)
    client, partition = at // PARTITIONS % CLIENTS, at % PARTITIONS
    block = header.headers(BATCH, 0, 1, 9)
    block["instance"] = client + 1
    each = BATCH // PARTITIONS
    for number in range(count // BATCH):
        block["sequence"] = number * (each // CLIENTS) + at // PARTITIONS // CLIENTS
        yield block, partition, number * each + at // PARTITIONS


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(1_000_000, marks=pytest.mark.slow),
        pytest.param(10_000_000, marks=[pytest.mark.memory, pytest.mark.timeout(1800)]),
    ],
)
def test_messages_leave_nothing_behind(count: int) -> None:
    """Counted from the messages to the verdict; every second's runs are taken and settled."""
    received, audit = SequenceTracker(dict.fromkeys(range(PARTITIONS), EARLIEST)), Audit()
    is_ours = np.ones(BATCH, dtype=np.bool_)
    sizes: list[int] = []
    total = 0
    tracemalloc.start()
    for block, partition, offset in _messages(count):
        received.add(block, is_ours, partition, offset)
        total += BATCH
        spans = received.take_spans()
        k = total // BATCH
        audit.add(Record(k, 1, k * SECOND_NS, 0, "", (), acknowledged=spans), ())
        audit.add(Record(k, 1, k * SECOND_NS, 0, "", (), received=spans), ())
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()

    assert audit.verdict()["received"] == total == count
    assert audit.verdict()["lost"] == 0
    assert audit.cost == 2 * PARTITIONS * CLIENTS
    assert sizes[-1] - sizes[len(sizes) // 10] < SLACK_BYTES


@pytest.mark.slow
def test_a_consumer_that_was_started_anew_leaves_nothing_behind() -> None:
    """It said a last word after ten seconds and read on; offsets have holes, as Pulsar's, so none join."""
    audit, costs = Audit(), []
    spans = _sparse(0)
    for k in range(1, 10_000):
        before, spans = spans, _sparse(k)
        audit.add(Record(k, 1, k * SECOND_NS, 0, "", (), acknowledged=spans), ())
        end = {"partition": 0, "position": k * 1000, "log_end": k * 1000}
        events = (Event(FINAL_POSITION_EVENT, k * SECOND_NS, 0, end),) if k == 10 else ()
        audit.add(Record(k, 1, k * SECOND_NS, 0, "", (), received=before, events=events), ())
        costs.append(audit.cost)

    assert max(costs[20:]) == costs[20] <= 4


def _sparse(k: int) -> dict[str, tuple[Span, ...]]:
    return {STREAMS[0]: ((k * 100, k * 100 + 99, k * 1000, k * 1000 + 500),)}


def _records(seconds: int) -> Iterator[tuple[Record, int]]:
    """Give a producer with four clients and two subscriptions, with a hole of retention each hour.

    Clients share a partition, so that no run is dense; the consumers are a second behind.
    """
    spans = _spans_of_second(0)
    yield Record(0, 1, 0, 0, "", (), acknowledged=spans), 0
    for k in range(1, seconds):
        before, spans = spans, _spans_of_second(k)
        yield Record(k, 1, k * SECOND_NS, 0, "", (), acknowledged=spans), 0
        is_hole = (k - 1) % HOUR_SECONDS == 0
        fields = {"partition": 0, "from_offset": (k - 1) * 400, "to_offset": k * 400}
        events = (Event(EXPIRED_EVENT, 0, 0, fields),) if is_hole else ()
        got = {} if is_hole else before
        for subscription in (0, 1):
            at_ns = k * SECOND_NS
            yield Record(k, 1, at_ns, 0, "", (), received=got, events=events), subscription


def _spans_of_second(k: int) -> dict[str, tuple[Span, ...]]:
    first, low = k * 100, k * 400
    return {
        STREAMS[client]: ((first, first + 99, low + client, low + 396 + client),)
        for client in range(CLIENTS)
    }


@pytest.mark.parametrize(
    "hours",
    [
        pytest.param(12, marks=pytest.mark.slow),
        pytest.param(7 * 24, marks=[pytest.mark.memory, pytest.mark.timeout(1800)]),
    ],
)
def test_hours_of_records_cost_what_their_disorder_costs(hours: int) -> None:
    """Each hour's hole of retention leaves intervals, the seconds leave nothing.

    An interval a producer stream and subscription in what was received and what expired, one a subscription
    in the deleted offsets.
    """
    audit = Audit(subscriptions=2)
    a_hole = 2 * (2 * CLIENTS + 1)
    under_way = (
        1 + 2
    ) * CLIENTS + 2 * CLIENTS  # one second of each subscription, and the producer streams

    for record, subscription in _records(hours * HOUR_SECONDS):
        audit.add(record, (), subscription)
        if record.k % HOUR_SECONDS == 0:
            assert audit.cost <= under_way + (1 + record.k // HOUR_SECONDS) * a_hole

    verdict = audit.verdict()
    assert verdict["acked"] == hours * HOUR_SECONDS * 400
    assert (verdict["lost"], verdict["expired"]) == (0, 2 * hours * 400)
