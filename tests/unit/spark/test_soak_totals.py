"""Latencies and messages of a whole soak, added up from the histograms of its seconds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.core.histogram import Histogram
from soak.core.model import Column, Record
from soak.core.plan.phases import decision_line, parse_phases
from spark.batch.soak_totals import SoakTotals, added_up, totals_of

LATENCY = "publish_latency_seconds"
COLUMNS = (
    *map(Column, ("sent_messages", "acked_messages", "failed_messages", "missed_messages")),
    *map(Column, ("overflow_messages", "in_flight_messages")),
    Column(LATENCY, (("quantile", "max"),), "seconds"),
)
SOAK_K = 10
PHASES = parse_phases(decision_line("warm-up", 0) + decision_line("soak", SOAK_K))


def encoded(*seconds: float) -> str:
    histogram = Histogram()
    histogram.record_ns((np.array(seconds) * 1e9).round().astype(np.int64))
    return histogram.encode()


def second(
    k: int,
    *seconds: float,
    counts: tuple[float, ...] = (100.0, 99.0, 1.0, 0.0),
    overflow: float = 0.0,
    in_flight: float = 0.0,
    validity: Mapping[str, str] | None = None,
) -> Record:
    highest = max(seconds, default=np.nan)
    texts = {LATENCY: encoded(*seconds)} if seconds else {}
    values = (*counts, overflow, in_flight, highest)
    return Record(k, 0, 0, 10**9, "c", values, texts, validity=validity or {})


def totals(*records: Record) -> SoakTotals:
    return totals_of("produce.0@h", [(one, COLUMNS) for one in records], PHASES)


def test_only_the_soak_counts() -> None:
    found = totals(second(SOAK_K - 1, 9.0), second(SOAK_K, 0.002), second(SOAK_K + 1, 0.004))

    assert found.messages == {
        "sent_messages": 200,
        "acked_messages": 198,
        "failed_messages": 2,
        "missed_messages": 0,
    }
    assert found.availability == 198 / 200
    latency = found.latencies["publish"].seconds()
    assert latency["max"] == 0.004
    assert latency["p50"] == pytest.approx(0.002, rel=1e-3)


def test_a_second_in_which_the_client_was_at_fault_says_nothing_unless_it_waited_for_the_cluster() -> (
    None
):
    late = {"reason": "the client was late"}
    own = totals(second(SOAK_K, 0.002), second(SOAK_K + 1, 5.0, validity=late))
    waited = totals(second(SOAK_K, 0.002), second(SOAK_K + 1, 5.0, validity=late, in_flight=7.0))

    assert own.latencies["publish"].seconds()["max"] == 0.002
    assert waited.latencies["publish"].seconds()["max"] == 5.0
    assert own.messages == waited.messages


@pytest.mark.long
@given(st.lists(st.floats(1e-4, 30.0), min_size=2, max_size=60), st.integers(1, 59))
def test_files_add_up_to_what_all_messages_in_one_give(latencies: list[float], cut: int) -> None:
    parts = [part for part in (latencies[:cut], latencies[cut:]) if part]
    whole = totals(second(SOAK_K, *latencies)).latencies["publish"].seconds()
    texts = [totals(second(SOAK_K + at, *part)).to_text() for at, part in enumerate(parts)]

    assert added_up(texts).latencies["publish"].seconds() == whole
    rank = max(1, int(np.ceil(0.5 * len(latencies) - 1e-9)))
    assert whole["p50"] == pytest.approx(sorted(latencies)[rank - 1], rel=1.1e-3, abs=2e-6)


def test_what_took_longer_than_an_hour_counts_as_the_maximum() -> None:
    found = totals(second(SOAK_K, 0.002, 7200.0, overflow=1.0)).latencies["publish"].seconds()

    assert (found["p99"], found["max"]) == (7200.0, 7200.0)
    assert found["p50"] == pytest.approx(0.002, rel=1e-3)


def test_a_histogram_that_cannot_be_read_is_as_good_as_none() -> None:
    record = Record(SOAK_K, 0, 0, 10**9, "c", (1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.1), {LATENCY: "no"})

    assert totals(record).latencies["publish"].seconds()["p50"] is None
    assert totals(record).messages["acked_messages"] == 1


def test_without_a_client_or_a_histogram_nothing_is_known() -> None:
    probe = totals_of("probe@h", [(second(SOAK_K, 0.1), (Column("x"),))], PHASES)

    assert (probe.messages, probe.latencies, probe.availability) == ({}, {}, None)
    assert totals(second(SOAK_K)).latencies == {}
    assert added_up([]).availability is None


def test_each_phase_has_latencies_of_its_own_however_many_files_it_is_in() -> None:
    both = totals(second(SOAK_K - 2, 9.0), second(SOAK_K, 0.002), second(SOAK_K + 1, 0.004))
    later = totals(second(SOAK_K + 2, 0.008))

    found = added_up([both.to_text(), later.to_text()])

    assert [
        None if one is None else one["max"]
        for one in (found.phase_seconds(k, "publish") for k in (0, SOAK_K, SOAK_K + 1))
    ] == [9.0, 0.008, None]
    assert found.phase_seconds(SOAK_K, "publish") == found.latencies["publish"].seconds()
    assert found.phase_seconds(SOAK_K, "end_to_end") is None
