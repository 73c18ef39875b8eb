"""Outages: nothing acknowledged, nothing received, or too little in time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.client_seconds import Second
from detectors.level_shift import Config as StepConfig
from detectors.outage import Config, Outages, detect
from detectors.panel import Panel
from soak.core.model import Change
from soak.core.units import SECOND_NS
from tests.support.detection.outage_world import (
    CONSUMER,
    CONSUMER_COLUMNS,
    PRODUCER,
    RATE,
    SHORT,
    STOPPED,
    UNDELIVERED,
    consumed,
    consumer_values,
    produced,
    producer_columns,
    producer_values,
    silent,
    well,
)
from tests.support.examples import examples


def test_five_seconds_without_an_acknowledgement_are_an_outage_from_the_first_second_on() -> None:
    found = produced([silent()] * 5, phases={0: "warm-up"})

    assert found == [
        (
            4,
            Change(
                STOPPED,
                raised_k=4,
                onset_k=0,
                interval=(0, 0),
                before=0.0,
                after=5.0,
                state="confirmed",
                confidence=1.0,
                kind="outage",
                failed_messages=0,
                late_messages=0,
                due_messages=500,
            ),
        )
    ]


def test_four_seconds_are_none() -> None:
    assert produced([well(), *[silent()] * 4] * 5) == []


def test_an_outage_is_sized_by_its_length_and_by_the_messages_that_failed_or_came_late() -> None:
    """61 s without an acknowledgement; what was in flight fails, the rest comes late afterwards."""
    failing = [silent()] * 30 + [silent(failed=RATE)] * 31
    late = [well(acked=3 * RATE, late=2 * RATE)] * 4
    found = produced([*[well()] * 10, *failing, *late, *[well()] * 20])
    _, last = found[-1]

    assert (last.state, last.onset_k, last.after, last.resolved_k) == ("gone", 10, 61.0, 75)
    assert (last.failed_messages, last.late_messages) == (3100, 800)
    assert last.due_messages == (10 + 61 + 4 + 5) * RATE
    assert [change.after for _, change in found] == [5.0, 10.0, 20.0, 40.0, 61.0]
    assert len({(change.series, change.raised_k) for _, change in found}) == 1


def test_messages_fail_in_an_outage_whatever_the_schedules_lag_was() -> None:
    """The client fell behind because it waited for the cluster."""
    failing = [silent(failed=RATE)] * 20
    found = produced([well(), *failing, *[well()] * 5], invalid=range(1, 21))

    assert (found[-1][1].after, found[-1][1].failed_messages) == (20.0, 2000)


@pytest.mark.parametrize(
    "fault",
    [
        {"in_flight": 0.0},
        {"callback_delay_seconds": 0.9},
        {"sender_busy_ratio": 0.95},
    ],
    ids=["handed nothing over", "was away", "had no time left"],
)
def test_an_invalid_second_in_which_the_client_was_at_fault_does_not_count(
    fault: dict[str, float],
) -> None:
    assert produced([silent(**fault)] * 20, invalid=range(20)) == []


@pytest.mark.parametrize(
    ("phase", "counts"),
    [
        ("warm-up", True),
        ("soak", True),
        ("catch-up", True),
        ("cool-down", True),
        ("ramp", False),
        ("drain", False),
        ("end", False),
        ("", False),
    ],
)
def test_an_outage_needs_load_that_the_cluster_should_carry(phase: str, *, counts: bool) -> None:
    assert bool(produced([silent()] * 6, phases={0: phase})) is counts


def test_when_no_message_is_due_nothing_need_be_acknowledged() -> None:
    """One message a minute, acknowledged in its second."""
    idle = {"sent": 0.0, "acked": 0.0}

    assert produced(([{"sent": 1.0, "acked": 1.0}] + [idle] * 59) * 3) == []


def test_one_message_that_waits_is_enough() -> None:
    idle = {"sent": 0.0, "acked": 0.0, "in_flight": 1.0}

    assert [k for k, _ in produced([{"sent": 1.0, "in_flight": 1.0}, *[idle] * 4])] == [4]


def test_an_outage_that_flaps_is_one() -> None:
    flapping = [silent()] * 6 + [well()] * 3
    found = produced([*[well()] * 3, *flapping * 5, *[well()] * 10])

    assert {change.raised_k for _, change in found} == {7}
    assert (found[-1][1].state, found[-1][1].after) == ("gone", 30.0)


def test_seconds_without_a_record_are_no_silence() -> None:
    """Three silent ones before a gap and three behind it."""
    ks = [0, 1, 2, 20, 21, 22]

    assert produced([silent()] * 6, ks=ks) == []


def test_an_outage_goes_on_behind_a_short_gap_and_ends_before_a_long_one() -> None:
    seconds = [silent()] * 10
    short = produced(seconds, ks=[*range(5), *range(60, 65)])
    long = produced(seconds, ks=[*range(5), *range(5000, 5005)])

    assert [(change.raised_k, change.state) for _, change in short] == [(4, "confirmed")] * 2
    assert [(change.raised_k, change.state) for _, change in long] == [
        (4, "confirmed"),
        (4, "gone"),
        (5004, "confirmed"),
    ]


def test_too_few_messages_acknowledged_in_time_are_an_outage_too() -> None:
    """A fiftieth fails in each of five seconds; the target is 99 %."""
    found = produced([*[well()] * 3, *[well(acked=98, failed=2)] * 5, *[well()] * 5])

    assert [(k, one.series, one.after, one.failed_messages) for k, one in found] == [
        (7, SHORT, 5.0, 10),
        (12, SHORT, 5.0, 10),
    ]


def test_a_share_within_the_target_is_none() -> None:
    assert produced([well(acked=99, failed=1)] * 60) == []


def test_a_message_that_waits_for_longer_than_the_limit_makes_a_second_fall_short() -> None:
    """One partition of many acknowledges nothing, so nothing has come late yet."""
    seconds = [well(publish_waiting_seconds=min(k, 10)) for k in range(19)]

    assert [(k, one.series) for k, one in produced(seconds)] == [(14, SHORT)]


def test_what_falls_short_and_then_stops_becomes_an_outage_of_all() -> None:
    found = produced([*[well(acked=50, failed=50)] * 6, *[silent()] * 5])

    assert [(k, one.series, one.state) for k, one in found] == [
        (4, SHORT, "confirmed"),
        (10, SHORT, "gone"),
        (10, STOPPED, "confirmed"),
    ]


def test_a_leader_that_acknowledges_nothing_is_named_while_others_do() -> None:
    both = well(**{"1": 0.004, "2": 0.004})
    one = [well(publish_waiting_seconds=min(k, 10), **{"1": 0.004}) for k in range(8)]
    found = produced([*[both] * 3, *one, *[both] * 5], leaders=["1", "2"])
    series = STOPPED + '{leader="2"}'

    assert [(k, change.series, change.state) for k, change in found] == [
        (8, series, "confirmed"),
        (15, series, "gone"),
    ]
    assert (found[-1][1].onset_k, found[-1][1].after) == (4, 7.0)


def test_a_leader_that_has_no_messages_to_acknowledge_is_not_named() -> None:
    assert produced([well(**{"1": 0.004})] * 60, leaders=["1", "2"]) == []


def test_when_all_leaders_are_silent_none_is_named() -> None:
    found = produced([silent(publish_waiting_seconds=5.0)] * 30, leaders=["1", "2"])

    assert {change.series for _, change in found} == {STOPPED}


def test_nothing_received_while_messages_wait_unread_is_an_outage() -> None:
    stuck = {"received": 0.0, "lag": 50.0}
    found = consumed([{"received": 100.0}, *[stuck] * 7, *[{"received": 100.0, "late": 20.0}] * 5])

    assert [(k, one.series, one.after, one.late_messages) for k, one in found] == [
        (5, UNDELIVERED, 5.0, 0),
        (12, UNDELIVERED, 7.0, 100),
    ]


@pytest.mark.parametrize(
    ("lag", "phase"), [(0.0, "soak"), (50.0, "catch-up"), (50.0, "ramp"), (50.0, "drain")]
)
def test_nothing_to_read_or_a_planned_pause_is_none(lag: float, phase: str) -> None:
    assert consumed([{"received": 0.0, "lag": lag}] * 30, phase) == []


@pytest.mark.parametrize(("seconds", "raised"), [(2, 1), (8, 7)])
def test_the_plan_says_how_long_is_too_long(seconds: int, raised: int) -> None:
    config = Config(after=seconds * SECOND_NS)

    assert next(k for k, _ in produced([silent()] * 8, config=config)) == raised


@pytest.mark.parametrize(
    "values", [{"after": SECOND_NS}, {"limit": 0}, {"target_ratio": 0.0}, {"target_ratio": 1.1}]
)
def test_values_out_of_bounds_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        Config(**values)  # type: ignore[arg-type]  # what a plan may hold


SECONDS = {
    "silent": silent(),
    "short": well(acked=50, failed=50),
    "good": well(),
    "idle": {},
}
KINDS = st.lists(st.tuples(st.sampled_from(sorted(SECONDS)), st.integers(1, 8)), max_size=12).map(
    lambda runs: [kind for kind, length in runs for _ in range(length)]
)


@dataclass(frozen=True)
class Expected:
    onset_k: int
    raised_k: int
    resolved_k: int | None
    seconds: int


def by_definition(kinds: Sequence[str], bad: str, ending: str) -> list[Expected]:
    """Return the outages of a sequence, written from the definition.

    Five `bad` seconds begin one, if no good and no `ending` one lies between them; five good ones end it, if
    no other but idle ones lie between them.
    """
    found, k = [], 0
    while k < len(kinds):
        run = [at for at in range(k, len(kinds)) if kinds[at] == bad][:5]
        between = set(kinds[run[0] : run[-1] + 1]) if run else set()
        if len(run) < 5 or kinds[k] != bad or between & {"good", ending}:
            k += 1
            continue
        end = next(
            (
                at
                for at in range(run[-1] + 1, len(kinds))
                if (goods := _good_run(kinds, run[-1] + 1, at)) and len(goods) == 5
            ),
            None,
        )
        last = len(kinds) if end is None else end
        resolved = None if end is None else _good_run(kinds, run[-1] + 1, end)[0]
        found.append(Expected(run[0], run[-1], resolved, list(kinds[k:last]).count(bad)))
        k = last + 1
    return found


def _good_run(kinds: Sequence[str], first: int, last: int) -> list[int]:
    """Return the good seconds up to the last one, back to where they were interrupted."""
    run: list[int] = []
    for at in range(last, first - 1, -1):
        if kinds[at] == "good":
            run.insert(0, at)
        elif kinds[at] != "idle":
            break
    return run


@given(KINDS)
def test_an_outage_is_reported_if_and_only_if_the_definition_says_so(kinds: list[str]) -> None:
    columns = producer_columns()
    rows = ((columns, Second(k, producer_values(SECONDS[kind]))) for k, kind in enumerate(kinds))
    found = detect(PRODUCER, rows)

    assert [
        Expected(one.onset_k, one.raised_k, one.resolved_k, int(one.after))
        for one in found
        if one.series == STOPPED
    ] == by_definition(kinds, "silent", "short")


@given(KINDS, KINDS, st.data())
@settings(max_examples=examples(50))
def test_a_state_resumed_at_any_row_gives_the_same(
    produced_kinds: list[str], consumed_kinds: list[str], data: st.DataObject
) -> None:
    """The state of outages alone, through JSON."""
    rows = sorted(
        [
            *((k, PRODUCER, kind) for k, kind in enumerate(produced_kinds)),
            *((k, CONSUMER, kind) for k, kind in enumerate(consumed_kinds)),
        ]
    )
    cut = data.draw(st.integers(0, len(rows)))
    whole, first, second = Outages(), Outages(), Outages()
    expected = [change for row in rows for change in _fed(whole, *row)]
    found = [change for row in rows[:cut] for change in _fed(first, *row)]
    second.restore(json.loads(json.dumps(first.to_state())))
    found += [change for row in rows[cut:] for change in _fed(second, *row)]

    assert found == expected


def _fed(outages: Outages, k: int, source: str, kind: str) -> list[Change]:
    if source == PRODUCER:
        values = producer_values(SECONDS[kind])
        return outages.update(source, producer_columns(), Second(k, values))
    values = consumer_values({"received": 100.0 * (kind == "good"), "lag": 10.0 * (kind != "idle")})
    return outages.update(source, CONSUMER_COLUMNS, Second(k, values))


@pytest.mark.parametrize("cut", [0, 3, 5, 8, 14])
def test_the_panel_reports_outages_and_resumes_them(cut: int) -> None:
    config, seconds = StepConfig(), [*[silent()] * 9, *[well()] * 6]
    panel, found = Panel(config), []
    for k, second in enumerate(seconds):
        if k == cut:
            panel = Panel.from_bytes(panel.to_bytes(), config)
        found += panel.update(
            PRODUCER, producer_columns(), k, producer_values(second), True, "warm-up"
        )

    assert [(one.kind, one.state, one.after) for one in found] == [
        ("outage", "confirmed", 5.0),
        ("outage", "gone", 9.0),
    ]


@pytest.mark.parametrize(("failed", "is_short"), [(9, False), (10, False), (11, True)])
def test_a_target_that_is_just_met_is_met(failed: int, is_short: bool) -> None:  # noqa: FBT001  # a case
    """Nine tenths of a hundred are ninety, whatever floats say."""
    found = produced(
        [well(acked=RATE - failed, failed=failed)] * 10, config=Config(target_ratio=0.9)
    )

    assert bool(found) is is_short


def test_a_second_in_which_everything_fails_is_silent_whoever_was_late() -> None:
    second = producer_values({"sent": RATE, "acked": 0, "failed": RATE})
    rows = [(producer_columns(), Second(k, second, is_valid=False)) for k in range(10)]
    (found,) = detect(PRODUCER, rows)

    assert (found.series, found.after, found.failed_messages) == (STOPPED, 10.0, 10 * RATE)


def test_the_outage_of_a_leader_that_the_client_forgets_ends_when_all_goes_well() -> None:
    """The producer begins anew after the broker was taken out of the cluster."""
    both, one = (producer_columns(names) for names in (("1", "2"), ("1",)))
    without = producer_values(well(publish_waiting_seconds=9.0) | {"1": 0.01}, ("1", "2"))
    rows = [(both, Second(k, without)) for k in range(20)]
    rows += [(one, Second(k, producer_values(well() | {"1": 0.01}, ("1",)))) for k in range(20, 40)]
    found = detect(PRODUCER, rows)

    assert [(change.state, change.resolved_k) for change in found] == [("gone", 20)]
