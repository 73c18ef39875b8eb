"""When a line of a log was written, by its own stamp."""

from __future__ import annotations

from datetime import datetime

import pytest

from probes.broker_log.timestamps import TimestampReader
from soak.core.units import SECOND_NS

pytestmark = pytest.mark.usefixtures("in_utc")


def wall_ns(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000) * (SECOND_NS // 1000)


@pytest.mark.parametrize(
    ("stamp", "meant"),
    [
        ("[2026-09-22 00:53:20,250] INFO", "2026-09-22T00:53:20.250+00:00"),
        ("2026-09-22T08:53:20,250+0800 [main] INFO", "2026-09-22T00:53:20.250+00:00"),
        ("[2026-09-22T00:53:20.250+0000][0.048s][info]", "2026-09-22T00:53:20.250+00:00"),
        ("INFO  2026-09-22 00:53:20,250 [shard 0:main]", "2026-09-22T00:53:20.250+00:00"),
        ("WARN  2026-09-22 00:53:20,250 [shard 0]", "2026-09-22T00:53:20.250+00:00"),
        ("2026-09-22T00:53:20.250000000Z stdout F [x]", "2026-09-22T00:53:20.250+00:00"),
    ],
)
def test_stamps_of_every_writer_are_read(stamp: str, meant: str) -> None:
    """log4j of Kafka and Pulsar, the JVM, Redpanda, a container's runtime."""
    now_ns = wall_ns("2026-09-22T00:53:21+00:00")

    assert TimestampReader().wall_ns(stamp, now_ns, is_fresh=True) == wall_ns(meant)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "at x.y",
        "[2026-13-45 00:00:00,000] x",
        "[9999-99-99",
        "[9999-12-31 23:59:59,000] x",
        "  2026-09-22 00:53:20,250",
    ],
)
def test_what_is_no_stamp_is_none(text: str) -> None:
    """A month 13 as well."""
    assert TimestampReader().wall_ns(text, 0, is_fresh=True) is None


def test_an_uptime_is_placed_by_the_line_that_came_soonest() -> None:
    """Until a smaller one says that it is another process."""
    stamps, begin = TimestampReader(), 1_790_000_000 * SECOND_NS
    first = stamps.wall_ns("[10.000s][info][gc] x", begin + 11 * SECOND_NS, is_fresh=True)
    second = stamps.wall_ns("[12.500s][info][gc] x", begin + int(12.6 * SECOND_NS), is_fresh=True)
    anew = stamps.wall_ns("[500ms][info][gc] x", begin + 60 * SECOND_NS, is_fresh=True)

    assert first == begin + 11 * SECOND_NS
    assert second == begin + int(12.6 * SECOND_NS)
    assert anew == begin + 60 * SECOND_NS
