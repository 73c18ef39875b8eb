"""What a cluster answers to a probe: a column or an event that no journal holds costs no second."""

from __future__ import annotations

import pytest

from probes.broker_log.timestamps import TimestampReader
from soak.core.journal_format import MAX_TIME_NS
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock


@pytest.mark.parametrize("year", [1678, 1700, 1823, 2117, 2200, 2261, 9999])
def test_a_log_line_of_a_year_that_no_journal_holds_has_no_time(year: int) -> None:
    """Its event is one of the second in which it was read."""
    line = f"[{year}-06-01 00:00:00,000] INFO Rolled new log segment at offset 5 in 3 ms."
    reader, now_ns = TimestampReader(), FakeClock().wall_ns()

    assert reader.wall_ns(line, now_ns, is_fresh=False) is None


def test_a_zone_that_a_strange_date_seems_to_have_moves_no_time_out_of_bounds() -> None:
    """A fresh line of the year 1824 shows a zone 200 years away, and the next one is of 2115."""
    reader, now_ns = (
        TimestampReader(),
        1_790_000_000 * SECOND_NS // (900 * SECOND_NS) * 900 * SECOND_NS,
    )
    reader.wall_ns("[1824-06-01T00:00:00] x", now_ns, is_fresh=True)

    found = reader.wall_ns("[2115-06-01T00:00:00] x", now_ns, is_fresh=False)

    assert found is None or abs(found) <= MAX_TIME_NS
