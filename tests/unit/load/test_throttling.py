"""How long brokers make the load's clients wait: from librdkafka's statistics to columns and events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from soak.clients.kafka_throttle import ThrottleTimes, statistics_interval_ms
from soak.core.plan import text
from soak.load.client_waits import Throttling
from tests.support.fakes import FakeClock, FakeProducer
from tests.support.load.load_loops import context_of, records_of

PLAN = "name: x\nbroker: {kafka: {bootstrap_servers: a}}\nload: {rate: 1/s}\n"


def report(**milliseconds: float) -> str:
    brokers = {
        f"{name}:9092/1": {"nodename": f"{name}:9092", "throttle": {"max": found}}
        for name, found in milliseconds.items()
    }
    return json.dumps({"name": "rdkafka#producer-1", "brokers": brokers})


def test_a_wait_is_in_force_until_it_is_over() -> None:
    """A broker answers nothing meanwhile, so later reports do not have it."""
    clock = FakeClock()
    times, seen = ThrottleTimes(clock), []
    seen.append(times.seconds())
    times.note(report(a=2500, b=0))
    for _ in range(4):
        seen.append(times.seconds())
        clock.advance(1.0)
        times.note(report(a=0, b=0))

    assert seen == [None, *[{"a:9092": 2.5}] * 3, {}]


@pytest.mark.parametrize("odd", ["", "[]", '{"brokers": {"a": {}}}', '{"brokers": []}', b"\xff"])
def test_an_odd_report_changes_nothing_and_is_logged_once(
    odd: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    times = ThrottleTimes(FakeClock())
    times.note(report(a=250))
    times.note(odd)
    times.note(odd)

    assert times.seconds() == {"a:9092": 0.25}
    assert [one.getMessage().split()[0] for one in caplog.records] == ["client_statistics_not_read"]


def test_clients_of_many_partitions_report_less_often() -> None:
    """A report has a paragraph for each partition."""
    assert [statistics_interval_ms(count) for count in (0, 100, 101, 1000)] == [
        "1000",
        "1000",
        "2000",
        "10000",
    ]


def test_seconds_have_the_longest_wait_and_its_begin_an_event(tmp_path: Path) -> None:
    clock = FakeClock()
    context = context_of(tmp_path, text.load(PLAN, "plan").plan, clock, "produce.0", "")
    producers = [FakeProducer(clock), FakeProducer(clock)]
    throttling = Throttling(producers, context.recorder)
    steps: tuple[dict[str, float] | None, ...] = (None, {}, {"a:9092": 0.2}, {"a:9092": 0.5}, {})

    for k, found in enumerate(steps):
        producers[1].throttled = found
        context.recorder.append(k, throttling.columns(k))
        clock.advance(1.0)

    records = records_of(context)
    assert [values.get("throttle_seconds") for _, values in records] == [None, 0.0, 0.2, 0.5, 0.0]
    events = [
        (record.k, event.fields["broker"], event.fields["seconds"])
        for record, _ in records
        for event in record.events
        if event.kind == "throttled"
    ]
    assert events == [(2, "a:9092", 0.2)]


@pytest.mark.parametrize(("quiet", "events"), [(30, 1), (60, 2)])
def test_a_broker_that_throttles_again_after_a_minute_begins_anew(
    quiet: int, events: int, tmp_path: Path
) -> None:
    clock = FakeClock()
    context = context_of(tmp_path, text.load(PLAN, "plan").plan, clock, "produce.0", "")
    producer = FakeProducer(clock)
    throttling = Throttling([producer], context.recorder)
    producer.throttled = {"a:9092": 1.0}
    for k in (0, quiet):
        context.recorder.append(k, throttling.columns(k))

    found = [event.kind for record, _ in records_of(context) for event in record.events]
    assert found.count("throttled") == events
