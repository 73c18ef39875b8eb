"""Interval logs of HdrHistogram: one line a second and latency, tagged, so that its own tools read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from soak.core.histogram import decode
from soak.core.units import SECOND_NS
from soak.omb.journal_amounts import Amounts, Told, histograms
from soak.omb.merged import empty
from soak.omb.run_result import Second

TAGS = {
    "publish_latency_seconds": "publish",
    "end_to_end_latency_seconds": "end_to_end",
}
_US_A_MS = 1_000.0  # by convention the maximum stands in ms


def lines(start_wall_ns: int, seconds: Iterable[Second]) -> Iterator[str]:
    """Give the log's lines, newline included; times count from the run's start, values are in us.

    Sources of one second are added up; a second in which nothing was measured has no line. What took longer
    than a histogram's hour is in none: a comment tells how many there were, and the maximum is the exact one.
    """
    amounts = Amounts()
    start_seconds = start_wall_ns / SECOND_NS
    yield "#[soakd: latencies in us, maxima in ms]\n"
    yield "#[Histogram log format version 1.3]\n"
    yield f"#[StartTime: {start_seconds:.3f} (seconds since epoch)]\n"
    yield f"#[BaseTime: {start_seconds:.3f} (seconds since epoch)]\n"
    yield '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'
    for k, told in seconds:
        for metric, tag in TAGS.items():
            own = [(one, texts) for one in told if (texts := histograms(one.record, metric))]
            if own:
                yield from _line(k, metric, tag, own, amounts)


def _line(
    k: int, metric: str, tag: str, told: Sequence[tuple[Told, list[str]]], amounts: Amounts
) -> Iterator[str]:
    texts = [text for _, own in told for text in own]
    one = decode(texts[0])
    if len(texts) > 1:
        one = empty()
        for text in texts:
            one.decode_and_add(text.encode("ascii"))
    counts = [amounts.count(source, "overflow_messages") for source, _ in told]
    overflow = int(sum(count for count in counts if count > 0))
    largest_us = float(one.get_max_value()) if one.get_total_count() else 0.0
    if overflow:
        exact = [amounts.quantile(source, metric, "max") for source, _ in told]
        largest_us = max(largest_us, *(1e6 * value for value in exact if not math.isnan(value)))
        yield f"#[{tag} at {k:.3f}: {overflow} more above 1 h]\n"
    if one.get_total_count() or overflow:
        payload = one.encode().decode("ascii") if len(texts) > 1 else texts[0]
        yield f"Tag={tag},{k:.3f},1.000,{largest_us / _US_A_MS:.3f},{payload}\n"
