"""Whether what daemons hold is flat, judged on courses that are known."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

from tests.support.lab.held import Course, Sample, courses, samples, table

MIB = 2**20
UNIT = "produce"


def course(rss_mib: list[float], lives: int = 1) -> list[Sample]:
    """Return a sample every ten seconds, in as many lives of one length."""
    length = len(rss_mib) // lives
    return [
        Sample(10.0 * at, UNIT, at // length, round(mib * MIB), 20, 5)
        for at, mib in enumerate(rss_mib)
    ]


def courses_of(seen: list[Sample]) -> list[Course]:
    return [one for one in courses(seen, 60.0) if not one.is_flat]


def test_what_stays_is_flat_and_so_is_what_grows_while_it_warms_up() -> None:
    """The first minute of each life does not count."""
    warm = [50.0, 60.0, 70.0, 80.0, 90.0, 95.0] + [100.0] * 30

    assert courses_of(course(warm * 3, lives=3)) == []


def test_what_grows_all_the_time_is_reported() -> None:
    """By a third of a MiB each ten seconds: over the run, and within its one life."""
    found = courses_of(course([100.0 + at / 3 for at in range(200)]))

    assert [(one.kind, one.over) for one in found] == [
        ("rss_bytes", "all"),
        ("rss_bytes", "a life"),
    ]


def test_what_grows_in_each_life_is_reported_although_it_is_killed() -> None:
    """Both halves of the run look alike."""
    found = courses_of(course([100.0 + at / 2 for at in range(120)] * 4, lives=4))

    assert [(one.kind, one.over) for one in found] == [("rss_bytes", "a life")]


def test_what_grows_from_life_to_life_is_reported() -> None:
    """Each life is flat, and holds more than the one before."""
    found = courses_of(course([100.0 + 15 * (at // 60) for at in range(240)], lives=4))

    assert [(one.kind, one.over) for one in found] == [("rss_bytes", "all")]


def test_a_life_that_is_too_short_to_tell_is_left_out() -> None:
    assert courses(course([100.0] * 9), 60.0) == []


def test_a_process_is_found_by_its_group() -> None:
    """This one, by whatever group it is in."""
    own = Path("/proc/self/cgroup").read_text().splitlines()[0]

    (found,) = samples(7.0, re.compile(f"({re.escape(own)})"))

    assert (found.second, found.daemon) == (7.0, own)
    assert found.rss_bytes > 0
    assert 0 < found.life <= time.time()
    assert found.descriptors >= 3
    assert found.threads >= threading.active_count()


def test_the_table_has_a_row_a_daemon() -> None:
    rows = table(courses(course([100.0] * 60), 60.0), {UNIT: 1, "alert": 2})

    assert rows[2:] == [
        "| `alert` | 2 | - | - | - |",
        "| `produce` | 1 | 100, 100; 100, 100 | 20, 20; 20, 20 | 5, 5; 5, 5 |",
    ]
