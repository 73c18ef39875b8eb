"""Latencies above a histogram's hour, exported: by count and exact maximum, and of the right latency."""

from __future__ import annotations

import numpy as np

from soak.core.histogram import Histogram
from soak.core.model import Column, Record
from soak.core.units import SECOND_NS
from soak.omb import hdr_log
from soak.omb.fields import PUBLISH
from soak.omb.journal_amounts import Amounts, Told
from soak.omb.merged import Cells
from soak.omb.run_latencies import RunLatencies

HOUR_AND_A_QUARTER_NS = 4_500 * SECOND_NS


def histogram(*values_ns: int) -> Histogram:
    found = Histogram()
    found.record_ns(np.array(values_ns, dtype=np.int64))
    return found


def told(publish: Histogram, service: Histogram) -> Told:
    """Return a producer's second; what lies above an hour counts by the latency from the due time."""
    columns = (
        Column("overflow_messages", (), "messages"),
        Column("publish_latency_seconds", (("quantile", "max"),), "seconds"),
        Column("publish_service_seconds", (("quantile", "max"),), "seconds"),
    )
    values = (float(publish.overflow), publish.max_ns / 1e9, service.max_ns / 1e9)
    texts = {
        "publish_latency_seconds": publish.encode(),
        "publish_service_seconds": service.encode(),
    }
    return Told("produce.0@h", Record(7, 1, 0, SECOND_NS, "c", values, texts), columns)


def test_a_second_above_the_range_has_a_line_with_its_maximum_and_their_number() -> None:
    late = histogram(*[HOUR_AND_A_QUARTER_NS] * 23)

    *_, note, line = hdr_log.lines(0, [(7, [told(late, late)])])

    assert note == "#[publish at 7.000: 23 more above 1 h]\n"
    assert line.startswith("Tag=publish,7.000,1.000,4500000.000,")


def test_what_waited_an_hour_to_be_sent_is_no_hour_of_the_cluster_s() -> None:
    """23 messages, due 75 min before they were sent, and acknowledged 5 ms after."""
    found = RunLatencies(Cells(), Amounts())
    found.add_produced(told(histogram(*[HOUR_AND_A_QUARTER_NS] * 23), histogram(*[5_000_000] * 23)))

    distribution = found.distributions()[PUBLISH.metric]

    assert distribution.percentiles.tolist() == [100.0]
    assert distribution.seconds.tolist() == [0.005]
