"""How a run is now: rates, phases, outages and the countdown, read from its folder alone."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import pytest

from soak.app.live.follow import MAX_BINS, Bin, Strip
from soak.app.live.run import LiveRun
from soak.app.live.snapshot import Snapshot, outage_text, retention_text
from soak.core.clock import SystemClock
from soak.core.plan.plan import Plan
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import Run, RunFolder, read_plan, read_run
from tests.support.fakes import FakeClock
from tests.support.live import FOUND, WrittenRun, written_run
from tests.support.spark.synthetic_run import write_synthetic_run

GOOD = {"sent": 1000.0, "acked": 1000.0, "failed": 0.0, "publish_p5": 0.002, "publish_p99": 0.02}


def live(run: WrittenRun, clock: FakeClock) -> LiveRun:
    return LiveRun(run.folder, read_run(run.folder), read_plan(run.folder), clock)


def after(run: WrittenRun, seconds: float) -> Snapshot:
    """Return how a run is so many seconds after its start."""
    clock = FakeClock()
    clock.advance(seconds)
    return live(run, clock).look_at_all()


def test_sent_acknowledged_and_received_are_apart(tmp_path: Path) -> None:
    """Two subscriptions of which one lags; two producers are one sum, of their latencies the worst counts."""
    run = written_run(tmp_path, subscriptions=2)
    for k in range(100):
        run.write("produce.0@h", k, **GOOD)
        run.write("produce.1@h", k, **{**GOOD, "acked": 900.0, "publish_p99": 0.5})
        run.write("consume.0@h", k, received=1900.0, lag=0.0, end_to_end_p99=0.03)
        run.write("consume.1@h", k, received=700.0, lag=1200.0 * k, end_to_end_p99=9.0)

    found = after(run, 100.5)

    assert (found.sent, found.acknowledged, found.failed) == (2000.0, 1900.0, 0.0)
    assert [(one.received, one.lag) for one in found.subscriptions] == [
        (1900.0, 0.0),
        (700.0, 118_800.0),
    ]
    assert [one.latency.p99 for one in found.subscriptions] == [0.03, 9.0]
    assert found.publish.p99 == 0.5
    assert found.totals.acknowledged == 190_000
    assert found.subscriptions[1].total == 70_000


def test_an_outage_says_how_long_and_how_many_failed(tmp_path: Path) -> None:
    """The issue's own sentence: forty seconds, 300 failed in each."""
    run = written_run(tmp_path)
    for k in range(140):
        is_out = k >= 100
        dead = {"sent": 0.0, "acked": 0.0, "failed": 300.0, "missed": 700.0}
        run.write("produce.0@h", k, **(dead if is_out else GOOD))
        run.write("consume.0@h", k, received=0.0 if is_out else 1000.0, lag=0.0)

    assert after(run, 140.5).troubles == ("nothing acknowledged for 40 s, 12,000 failed",)


def test_a_detector_that_does_not_keep_up_has_a_sentence(tmp_path: Path) -> None:
    """A busy host starts it minutes late; a trigger of its own is allowed."""
    run = written_run(tmp_path)
    for k in range(140):
        run.write("produce.0@h", k, **GOOD)

    assert after(run, 59.5).detection == ""
    assert after(run, 100.5).detection == "the detector has not started: findings come late"
    run.detect(9, read_k=40)
    run.detect(10, read_k=50)
    assert after(run, 80.5).detection == ""
    assert after(run, 140.5).detection == "the detector is 90 s behind: findings come late"
    run.becomes("ended")
    assert after(run, 140.5).detection == ""


def test_one_acknowledgement_ends_an_outage(tmp_path: Path) -> None:
    run = written_run(tmp_path)
    for k in range(140):
        run.write("produce.0@h", k, sent=10.0, acked=0.0 if 100 <= k < 139 else 10.0, failed=0.0)

    assert after(run, 140.5).troubles == ()


def test_a_canary_of_a_message_a_minute_is_no_outage(tmp_path: Path) -> None:
    """Nothing is acknowledged because nothing is due."""
    run = written_run(tmp_path)
    for k in range(170):
        count = float(k % 60 == 0)
        run.write("produce.0@h", k, sent=count, acked=count, failed=0.0, in_flight=0.0)

    found = after(run, 170.5)

    assert found.troubles == ()
    assert not any(one.silent_seconds for one in found.bins)


def test_the_outage_of_one_producer_is_none_of_the_cluster(tmp_path: Path) -> None:
    run = written_run(tmp_path)
    for k in range(100):
        run.write("produce.0@h", k, sent=5.0, acked=0.0, failed=5.0)
        run.write("produce.1@h", k, **GOOD)

    found = after(run, 100.5)

    assert found.troubles == ()
    assert found.failed == 5.0


def test_a_small_producer_that_is_dead_makes_no_outage_of_the_strip(tmp_path: Path) -> None:
    """Also where its records come seconds before those of the others."""
    run = written_run(tmp_path)
    for k in range(100):
        run.write("produce.1@h", k, sent=1.0, acked=0.0, failed=1.0)
        if k < 94:
            run.write("produce.0@h", k, **GOOD)

    found = after(run, 100.5)

    assert found.troubles == ()
    assert not any(one.silent_seconds for one in found.bins)


@pytest.mark.long
def test_an_outage_of_all_producers_is_in_the_strip(tmp_path: Path) -> None:
    """From its second second on: a message may be acknowledged in the next one."""
    run = written_run(tmp_path)
    for k in range(400):
        for source in ("produce.0@h", "produce.1@h"):
            acked = 0.0 if 250 <= k < 260 else 10.0
            run.write(source, k, sent=10.0, acked=acked, failed=0.0)

    bins = after(run, 400.5).bins

    assert [k for k, one in enumerate(bins) if one.silent_seconds] == list(range(251, 260))


@pytest.mark.parametrize(
    ("seconds", "expected"), [(143, ()), (150, ("nothing received for 10 s",))]
)
def test_a_planned_pause_is_no_part_of_the_outage_that_follows(
    tmp_path: Path, seconds: int, expected: tuple[str, ...]
) -> None:
    """In the first seconds after it nothing may have been received yet."""
    run = written_run(tmp_path)
    with run.folder.phases.open("a") as file:
        for part, from_k in (("build", 80), ("drain", 140)):
            body = {"phase": "catch-up", "from_k": from_k, "reason": "planned", "part": part}
            file.write(json.dumps(body) + "\n")
    for k in range(seconds):
        run.write("produce.0@h", k, **GOOD)
        run.write("consume.0@h", k, received=0.0 if k >= 80 else 1000.0, lag=20_000.0)

    assert after(run, seconds + 0.5).troubles == expected


def test_a_record_that_stands_twice_counts_once(tmp_path: Path) -> None:
    """Wherever the part begins that is read first."""
    run = written_run(tmp_path)
    for k in range(500):
        run.write("produce.0@h", k, **GOOD)
    path = run.folder.journal / "produce.0@h" / "000000.jsonl"
    raw = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*raw[:301], *raw[201:301], *raw[301:], *raw[-20:]]))

    assert after(run, 500.5).totals.sent == 500_000


def test_records_ahead_of_this_hosts_clock_are_seen_when_it_gets_there(tmp_path: Path) -> None:
    run, clock = written_run(tmp_path), FakeClock()
    for k in range(200):
        run.write("produce.0@h", k, **GOOD)
    clock.advance(100.5)
    watched = live(run, clock)
    early = watched.look_at_all()
    clock.advance(60)
    later = watched.look_at_all()
    clock.advance(60)

    assert (early.totals.sent, later.totals.sent) == (111_000, 171_000)
    assert watched.look_at_all().totals.sent == 200_000


def test_a_subscription_that_receives_nothing_is_named(tmp_path: Path) -> None:
    run = written_run(tmp_path, subscriptions=2)
    for k in range(100):
        run.write("produce.0@h", k, **GOOD)
        run.write("consume.0@h", k, received=1000.0, lag=0.0)
        run.write("consume.1@h", k, received=0.0 if k >= 80 else 1000.0, lag=20_000.0)

    assert after(run, 100.5).troubles == ("nothing received by subscription 1 for 20 s",)


def test_consumers_that_pause_for_a_catch_up_are_no_trouble(tmp_path: Path) -> None:
    run = written_run(tmp_path)
    with run.folder.phases.open("a") as file:
        file.write('{"phase": "catch-up", "from_k": 80, "reason": "planned", "part": "build"}\n')
    for k in range(100):
        run.write("produce.0@h", k, **GOOD)
        run.write("consume.0@h", k, received=0.0 if k >= 80 else 1000.0, lag=20_000.0)

    assert after(run, 100.5).troubles == ()


def test_a_daemon_without_records_is_named(tmp_path: Path) -> None:
    run = written_run(tmp_path)
    for k in range(100):
        run.write("produce.0@h", k, **GOOD)
        if k < 85:
            run.write("consume.0@h", k, received=1000.0, lag=0.0)

    assert after(run, 100.5).troubles == ("no record of consume.0@h for 15 s",)


@pytest.mark.parametrize("seconds", [-5, 0, 30, 200, 379, 380, 395, 420, 2000, 10**6])
@pytest.mark.parametrize("state", ["running", "ended", "interrupted", "failed", "beginning"])
@pytest.mark.parametrize("is_decided", [True, False])
def test_time_never_runs_past_its_end(
    tmp_path: Path, *, seconds: int, state: str, is_decided: bool
) -> None:
    """The detector reads on after the load; `6:54 of 5:10` was shown then."""
    run = written_run(tmp_path)
    if is_decided:
        run.decide("end", 365)
    run.becomes(state)
    end = max(0, min(seconds, 365))
    for k in range(max(0, end - 20), end):
        run.write("produce.0@h", k, **GOOD)

    found = after(run, seconds)

    assert 0 <= found.k <= found.total_seconds == (365 if is_decided else 380)


def test_the_phases_say_where_a_run_is(tmp_path: Path) -> None:
    run = written_run(tmp_path)
    for k in range(70):
        run.write("produce.0@h", k, **GOOD)

    spans = [(one.name, one.from_k, one.to_k) for one in after(run, 70).phases]

    assert spans == [("warm-up", 0, 60), ("soak", 60, 360), ("drain", 360, 380)]
    assert [after(run, at).phase for at in (-3, 10, 70)] == ["starting", "warm-up", "soak"]


def test_a_killed_run_is_seen_to_have_stopped(tmp_path: Path) -> None:
    """Its run.json says `running` for ever; time stands still where its records end."""
    run = written_run(tmp_path)
    for k in range(100):
        run.write("produce.0@h", k, **GOOD)

    found = after(run, 200)

    assert (found.state, found.phase, found.k) == ("silent", "stopped", 100)
    assert found.troubles == (
        "nothing is recorded since 1:40: the daemons of the run are not there",
    )


@pytest.mark.parametrize(
    ("k", "seen", "is_over", "expected"),
    [
        (100, None, False, "old data is deleted in 3:20 to 3:30"),
        (302, None, False, "old data is deleted within 0:08"),
        (310, None, False, "old data is deleted about now"),
        (350, None, False, "old data should be deleted for 40 s, no deletion seen"),
        (350, (305, 348), False, "old data was first deleted at 5:05, goes on"),
        (350, (305, 310), False, "old data was first deleted at 5:05, last 40 s ago"),
        (380, (305, 348), True, "old data was deleted from 5:05 to 5:48"),
        (200, None, True, "the run ends 100 s before old data would be deleted"),
        (380, None, True, "no deletion of old data was seen"),
    ],
)
def test_the_countdown_to_retention(
    k: int, seen: tuple[int, int] | None, *, is_over: bool, expected: str
) -> None:
    assert retention_text((300.0, 310.0), seen, k, 380, is_over=is_over) == expected


def test_a_forecast_of_one_moment_is_one_time() -> None:
    """Of a broker that looks for old data all the time."""
    assert retention_text((300.0, 300.0), None, 100, 380) == "old data is deleted in 3:20"


def test_a_forecast_behind_the_end_and_none_at_all() -> None:
    text = "the run ends 3 min 40 s before old data would be deleted"
    assert retention_text((600.0, 610.0), None, 100, 380) == text
    assert retention_text(None, None, 100, 380) == ""


def test_deletions_come_from_the_records_of_the_probes(tmp_path: Path) -> None:
    run = written_run(tmp_path)
    run.forecast(100.0, 110.0)
    for k in range(130):
        run.write("produce.0@h", k, **GOOD)
    run.delete_old_data(104)

    assert after(run, 130).retention == "old data was first deleted at 1:44, last 26 s ago"


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"first_deletion_seconds": [1]}', "\x00", "NaN"])
def test_a_damaged_forecast_is_none(tmp_path: Path, body: str) -> None:
    run = written_run(tmp_path)
    run.folder.forecast.write_text(body)

    assert after(run, 10).retention == ""


@pytest.mark.parametrize(("failed", "text"), [(0.0, ""), (12_000.0, ", 12,000 failed")])
def test_what_did_not_fail_is_not_counted(failed: float, text: str) -> None:
    assert outage_text("acknowledged", 40, failed) == f"nothing acknowledged for 40 s{text}"


@pytest.mark.long
def test_a_look_in_portions_gives_what_one_look_at_all_gives(tmp_path: Path) -> None:
    """A run that is longer than the part that is read at once; portions cut lines nowhere."""
    folder = write_synthetic_run(tmp_path / "run")
    clock = FakeClock()
    clock.advance(10_000)

    def reader() -> LiveRun:
        return LiveRun(folder, read_run(folder), read_plan(folder), clock)

    whole, portions = reader().look_at_all(), reader()
    looks = [portions.look(50_000) for _ in range(200)]

    assert looks[-1] == whole
    assert whole.totals.sent == 235 * 400
    assert len(whole.bins) == 240


def test_what_was_recorded_meanwhile_is_seen_and_nothing_twice(tmp_path: Path) -> None:
    """A run that is longer than the newest part, looked at while it grows."""
    run, clock = written_run(tmp_path), FakeClock()
    watched = live(run, clock)
    for k in range(380):
        run.write("produce.0@h", k, **GOOD)
        if k % 37 == 0:
            clock.advance(37)
            watched.look(1000)

    assert watched.look_at_all().totals.sent == 380_000


@pytest.mark.long
def test_what_was_read_is_the_same_after_it_was_folded(tmp_path: Path) -> None:
    run, clock = written_run(tmp_path), FakeClock()
    folded, kept = live(run, clock), live(run, clock)
    for k in range(380):
        run.write("produce.0@h", k, **{**GOOD, "acked": 1000.0 * (k % 100 > 7)})
        run.write("consume.0@h", k, received=900.0, lag=3.0, end_to_end_p99=0.03 + k * 1e-4)
        if k % 37 == 0:
            clock.advance(37)
            kept.look(1000)
            folded.look(1000)
            assert folded.fold() == folded.fold() < 30_000

    assert repr(folded.look_at_all()) == repr(kept.look_at_all())


def test_nothing_is_written_and_a_folder_that_nobody_may_write_is_read(tmp_path: Path) -> None:
    """Neither a lock, nor an anchor, nor a file of SQLite appears; the incidents are there."""
    run = written_run(tmp_path / "run")
    for k in range(10):
        run.write("produce.0@h", k, **GOOD)
    with FindingsStore(run.folder.findings) as store:
        store.save_finding(FOUND, (), 1)
    before = _contents(run.folder)

    found = after(run, 10.5)

    assert _contents(run.folder) == before
    assert [one.key for one in found.findings] == [FOUND.key]


def test_findings_are_read_while_the_detector_writes(tmp_path: Path) -> None:
    """The log of SQLite holds what its file does not have yet."""
    run, clock = written_run(tmp_path), FakeClock()
    watched = live(run, clock)
    with FindingsStore(run.folder.findings) as store:
        assert watched.look().findings == ()
        store.save_finding(FOUND, (), 1)

        assert [one.key for one in watched.look().findings] == [FOUND.key]


@pytest.mark.parametrize("damage", [b"", b"not a database", b"\x00" * 5000])
def test_a_damaged_file_of_findings_hides_nothing_else(tmp_path: Path, damage: bytes) -> None:
    run = written_run(tmp_path)
    run.write("produce.0@h", 5, **GOOD)
    run.folder.findings.write_bytes(damage)

    found = after(run, 6)

    assert (found.findings, found.sent) == ((), 1000.0)
    assert bool(found.unread) == bool(damage)  # an empty one is about to be written


def test_a_file_of_findings_that_is_mended_is_read_and_one_that_is_damaged_later_says_so(
    tmp_path: Path,
) -> None:
    """What was read before stays; no incident of a run is ever none because its file is damaged."""
    run, clock = written_run(tmp_path), FakeClock()
    watched = live(run, clock)
    run.folder.findings.write_bytes(b"not a database")
    assert watched.look().unread
    run.folder.findings.unlink()
    with FindingsStore(run.folder.findings) as store:
        store.save_finding(FOUND, (), 1)
    mended = watched.look()
    run.folder.findings.write_bytes(b"not a database again")
    damaged = watched.look()

    assert (len(mended.findings), mended.unread) == (1, "")
    assert (len(damaged.findings), bool(damaged.unread)) == (1, True)


@pytest.mark.parametrize(
    "source",
    ["consume.x@h", "produce.@h", "produce", "x" * 200, "consume.9999999999@h", "produce.²@h"],
)
def test_a_folder_of_any_name_is_no_source(tmp_path: Path, source: str) -> None:
    run = written_run(tmp_path)
    run.write(source, 5, **GOOD)

    assert math.isnan(after(run, 6).sent)


def test_a_record_from_a_time_that_cannot_be_is_left_out(tmp_path: Path) -> None:
    run = written_run(tmp_path)
    for k in (5, 2**60, -7):
        run.write("produce.0@h", k, **GOOD)

    found = after(run, 6)

    assert (len(found.bins), found.totals.sent) == (6, 1000.0)


@pytest.mark.long
def test_the_strip_of_a_month_is_as_long_as_that_of_an_hour() -> None:
    """No message is lost when bins become longer, and no spike of a second."""
    strip = Strip()
    for k in range(0, 30 * 86_400, 60):
        strip.add(k, Bin((1.0, 0.0, 0.0, 0.0, 0.0, float(k == 86_400)), publish_p99=float(k == 60)))

    bins = strip.in_order()
    assert len(bins) <= MAX_BINS
    assert sum(one.bands[0] for one in bins) == 30 * 1440
    assert (sum(one.bands[5] for one in bins), bins[0].publish_p99) == (1.0, 1.0)


def _contents(folder: RunFolder) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.path.rglob("*")
        if path.is_file()
    }


def test_a_run_of_another_boot_is_read_by_the_wall_clock(tmp_path: Path) -> None:
    """A run of last week, and one whose start lies ahead."""
    run = written_run(tmp_path)
    plan: Plan = read_plan(run.folder)
    ahead = Run("r", SystemClock().wall_ns() + 3600 * 10**9, "host", {}, "running", "ahead")

    assert live(run, FakeClock()).look().now_k == 0
    assert LiveRun(RunFolder(tmp_path / "none"), ahead, plan, SystemClock()).look().now_k < -3500
