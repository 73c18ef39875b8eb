"""The accounts of objectives: which minutes are bad, when a budget is spent, gaps, lateness, resuming."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.client_seconds import Second
from detectors.incidents import group
from detectors.objectives import MinuteCounter, Objectives, Settings, Standing, settings_of
from soak.core.model import Change, Column
from soak.core.plan import text
from soak.core.plan.load import Profile
from soak.core.plan.objectives import parse_objective
from tests.support.detection.outage_world import (
    CONSUMER,
    CONSUMER_COLUMNS,
    LATE,
    PRODUCER,
    RATE,
    consumer_values,
    producer_columns,
    producer_values,
    silent,
    well,
)

COLUMNS = producer_columns()
P99 = parse_objective("p99 publish <= 1s for 90% of minutes")
RECEIVED = parse_objective("p99 end-to-end <= 10s for 90% of minutes")
AVAILABLE = parse_objective("99% of messages acknowledged within 1s")
SLOW = {LATE: RATE}
MINUTES = 20
SETTINGS = Settings((P99, AVAILABLE), MINUTES * 60)


def second(k: int, **changes: float) -> Second:
    return Second(k, producer_values(well(**changes)))


def seconds(count: int, slow: Iterable[int] = ()) -> list[Second]:
    """Return seconds in order; in `slow` minutes every message is late."""
    bad = set(slow)
    return [second(k, **(SLOW if k // 60 in bad else {})) for k in range(count)]


def fed(
    many: Iterable[Second], run: Settings = SETTINGS, source: str = PRODUCER
) -> tuple[Objectives, list[Change]]:
    objectives, found = Objectives(run), []
    for one in many:
        objectives.update(source, COLUMNS, one)
        found += objectives.settle()
    return objectives, found


def standing(many: Iterable[Second], run: Settings = SETTINGS) -> Standing:
    """Return how the first objective stands after these seconds."""
    return fed(many, run)[0].standings()[0]


def test_an_objective_without_bad_minutes_is_kept() -> None:
    objectives, found = fed(seconds(MINUTES * 60))

    first, second_ = objectives.standings()
    assert found == []
    assert (first.bad, first.judged, first.budget, first.missed_k) == (0, 20, 2.0, None)
    assert (second_.bad, second_.judged, second_.left) == (0, 120_000, 1200.0)


def test_a_breach_opens_with_the_minute_that_exceeds_the_budget() -> None:
    """Two of twenty minutes may be bad; the third one, from second 420 on, is too much."""
    _, found = fed(seconds(600, slow=(2, 4, 7)), replace(SETTINGS, objectives=(P99,)))

    (breach,) = found
    assert (breach.kind, breach.state, breach.direction) == ("objective", "confirmed", "up")
    assert (breach.onset_k, breach.raised_k) == (420, 480)
    assert (breach.before, breach.after) == (2.0, 3.0)
    assert 'objective="p99 publish <= 1s for 90% of minutes"' in breach.series


def test_a_breach_is_reported_again_with_each_further_bad_minute() -> None:
    _, found = fed(seconds(600, slow=(2, 4, 7, 8)), replace(SETTINGS, objectives=(P99,)))

    assert [change.after for change in found] == [3.0, 4.0]
    assert len({(change.series, change.raised_k, change.onset_k) for change in found}) == 1


def test_a_minute_is_bad_by_its_share_of_late_messages() -> None:
    """One message in a hundred may be late: 60 of 6,000 are allowed, 61 are not."""
    allowed = [second(k, **{LATE: 1}) for k in range(60)]
    too_many = [*allowed[:-1], second(59, **{LATE: 2})]

    assert standing(allowed).bad == 0
    assert standing(too_many).bad == 1


@pytest.mark.parametrize("count", ["failed", "missed"])
def test_messages_that_fail_or_are_skipped_are_bad(count: str) -> None:
    objectives, _ = fed([second(k, **{count: 2}) for k in range(60)])

    minutes, messages = objectives.standings()
    assert minutes.bad == 1
    assert (messages.bad, messages.judged) == (120, 60 * (RATE + 2))


def test_a_minute_with_an_outage_is_bad_whatever_its_other_seconds_were() -> None:
    def minute(length: int) -> list[Second]:
        waits = {k: producer_values(silent()) for k in range(length)}
        return [Second(k, waits.get(k, producer_values(well()))) for k in range(60)]

    assert standing(minute(4)).bad == 0
    assert standing(minute(5)).bad == 1
    assert standing(minute(60)).bad == 1


@pytest.mark.parametrize(
    ("first", "last", "outage_seconds", "bad"),
    [(57, 60, 5, 0), (57, 61, 5, 1), (56, 60, 5, 1), (50, 59, 5, 1), (10, 228, 120, 2)],
)
def test_an_outage_counts_wherever_a_minute_begins(
    first: int, last: int, outage_seconds: int, bad: int
) -> None:
    """In the minutes in which it has been one: from its fifth second on, or as long as the plan says."""
    run = replace(SETTINGS, objectives=(RECEIVED,), outage_seconds=outage_seconds)
    objectives = Objectives(run)
    for k in range(300):
        waits = first <= k <= last
        values = consumer_values({"lag": 5} if waits else {"received": RATE})
        objectives.update(CONSUMER, CONSUMER_COLUMNS, Second(k, values))
        objectives.settle()
        resumed = Objectives(run)
        resumed.restore(json.loads(json.dumps(objectives.to_state())))
        objectives = resumed

    assert objectives.standings()[0].bad == bad


def test_minutes_without_load_and_other_phases_do_not_count() -> None:
    """Warm-up, a catch-up, and a minute in which no message was due."""
    idle = [Second(k, producer_values({})) for k in range(60, 120)]
    warm_up = [replace(one, phase="warm-up") for one in seconds(60, slow=(0,))]
    catch_up = [replace(second(k, **SLOW), phase="catch-up") for k in range(120, 180)]

    found = standing([*warm_up, *idle, *catch_up, second(180)])

    assert (found.bad, found.judged) == (0, 0)


def test_seconds_in_which_the_client_was_at_fault_do_not_count() -> None:
    """But messages that failed in them have failed, and waiting for the cluster is no fault of the client."""
    ours = [replace(second(k, **SLOW), is_valid=False) for k in range(60)]
    failed = [replace(second(k, failed=1), is_valid=False) for k in range(60)]
    waits = [Second(k, producer_values(silent()), is_valid=False) for k in range(60)]

    assert standing(ours).judged == 0
    assert fed(failed)[0].standings()[1].bad == 60
    assert standing(waits).bad == 1


def test_lateness_that_no_pause_of_the_client_explains_counts() -> None:
    """An idle client whose schedule lags after an outage is late because of the cluster."""
    lags = [replace(second(k, in_flight=5, **SLOW), is_valid=False) for k in range(60)]

    assert fed(lags)[0].standings()[1].bad == 60 * RATE


@pytest.mark.parametrize(("missing", "judged"), [(range(30), 1), (range(31), 0)])
def test_a_minute_counts_when_half_of_its_seconds_are_there(missing: range, judged: int) -> None:
    assert standing([one for one in seconds(60) if one.k not in missing]).judged == judged


def test_a_gap_over_whole_minutes_is_neither_good_nor_bad() -> None:
    found = standing([one for one in seconds(600, slow=(0,)) if not 60 <= one.k < 300])

    assert (found.bad, found.judged) == (1, 6)


def test_a_minute_is_closed_when_every_client_has_passed_it() -> None:
    """Another producer is 90 s behind: its messages count as if they had come in time."""
    objectives = Objectives(Settings((P99,), 600))
    for one in seconds(120):
        objectives.update(PRODUCER, COLUMNS, one)
    objectives.update("produce.1@h", COLUMNS, second(29))
    objectives.settle()
    before = objectives.standings()[0].judged
    for k in range(30, 120):
        objectives.update("produce.1@h", COLUMNS, second(k, **SLOW))
    objectives.settle()

    assert before == 0
    assert (objectives.standings()[0].bad, objectives.standings()[0].judged) == (2, 2)


def test_the_last_minute_is_closed_when_the_soak_is_over_for_every_client() -> None:
    drained = [*seconds(90, slow=(1,)), replace(second(90), phase="drain")]

    assert standing(seconds(90)).judged == 1
    assert (standing(drained).judged, standing(drained).bad) == (2, 1)


def test_a_client_that_is_far_behind_is_not_waited_for() -> None:
    """What it says of closed minutes later is not counted."""
    objectives = Objectives(Settings((P99,), 6000))
    objectives.update("produce.1@h", COLUMNS, second(0))
    for one in seconds(720):
        objectives.update(PRODUCER, COLUMNS, one)
    objectives.settle()
    judged = objectives.standings()[0].judged
    for k in range(1, 120):
        objectives.update("produce.1@h", COLUMNS, second(k, **SLOW))
    objectives.settle()

    assert judged == 12
    assert objectives.standings()[0].bad == 0


def test_a_second_that_is_delivered_again_counts_once() -> None:
    many = seconds(120, slow=(0,))

    twice, _ = fed([*many, *many[60:]])

    assert twice.standings() == fed(many)[0].standings()


def test_consumers_are_judged_by_what_they_received() -> None:
    """Rereads are no new messages; a minute in which messages waited unread is bad."""
    run = Settings((RECEIVED, P99), 600)
    columns = (*CONSUMER_COLUMNS, Column("reread_messages", (), "messages"))
    rows = [
        {"received": 2 * RATE, LATE: 1},
        {"received": 0, "lag": 50},
    ]
    objectives = Objectives(run)
    for k in range(120):
        values = np.append(consumer_values(rows[k // 60]), RATE * (k < 60))
        objectives.update(CONSUMER, columns, Second(k, values))
    objectives.settle()

    received, published = objectives.standings()
    assert (received.bad, received.judged) == (1, 2)
    assert published.judged == 0


def test_the_budget_in_messages_is_that_of_the_whole_soak() -> None:
    """600 of 60,000 messages may be bad in ten minutes: 500 in the first do not miss the objective."""
    run = Settings((AVAILABLE,), 600)
    first = [second(k, **{LATE: 100 if k < 5 else 0}) for k in range(60)]
    more = [second(k, **{LATE: 100 if k < 62 else 0}) for k in range(60, 120)]

    kept, none = fed(first, run)
    missed, found = fed([*first, *more], run)

    assert none == []
    assert (kept.standings()[0].budget, kept.standings()[0].left) == (600.0, 100.0)
    assert (found[0].onset_k, found[0].after) == (60, 700.0)
    assert missed.standings()[0].missed_k == 60


def test_a_soak_that_was_longer_than_planned_has_the_budget_of_its_length() -> None:
    assert standing(seconds(1260), replace(SETTINGS, soak_seconds=600)).whole == 21


def test_no_objectives_cost_nothing_and_say_nothing() -> None:
    objectives, found = fed(seconds(120, slow=(0,)), Settings())

    assert (found, objectives.standings()) == ([], [])
    assert objectives.to_state()["minutes"] == {}


@pytest.mark.parametrize("cut", [0, 1, 59, 60, 203, 299, 300])
def test_a_resumed_state_gives_the_same_bit_for_bit(cut: int) -> None:
    many = seconds(300, slow=(0, 2, 4))
    whole, changes = fed(many)
    first, before = fed(many[:cut])
    state = json.dumps(first.to_state())

    resumed, after = Objectives(SETTINGS), []
    resumed.restore(json.loads(state))
    for one in many[cut:]:
        resumed.update(PRODUCER, COLUMNS, one)
        after += resumed.settle()

    assert json.dumps(first.to_state()) == state
    assert before + after == changes
    assert json.dumps(resumed.to_state()) == json.dumps(whole.to_state())


@pytest.mark.long
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_files_counted_apart_give_what_one_pass_gives(seed: int) -> None:
    """The report counts each journal file in a task of its own, in no order."""
    many = seconds(300, slow=(0, 2, 4))
    whole, changes = fed(many)
    parts = np.random.default_rng(seed).integers(0, 3, len(many))

    counters = [MinuteCounter(SETTINGS.objectives) for _ in range(3)]
    for part, one in zip(parts, many, strict=True):
        counters[part].add(PRODUCER, COLUMNS, one)
    merged = Objectives(SETTINGS)
    for counter in counters:
        merged.merge(counter.minutes)

    assert {change.raised_k for change in merged.conclude()} == {c.raised_k for c in changes}
    assert merged.standings() == whole.standings()


def test_a_share_is_exact_where_floats_would_round() -> None:
    """Of 600 messages 99.9 % allow none that is late, of 1,200 one."""
    objective = replace(P99, quantile=Fraction(999, 1000))
    run = Settings((objective,), 600)
    ten, twenty = (
        [second(k, sent=rate, acked=rate, **{LATE: k < 1}) for k in range(60)] for rate in (10, 20)
    )

    assert standing(ten, run).bad == 1
    assert standing(twenty, run).bad == 0


def stepped(k: int, at: int = 60, bad: int = 0) -> Second:
    """Return a second of a load that is a hundred times as high from `at` on; `bad` messages are late."""
    rate = 10.0 if k < at else 1000.0
    return Second(k, producer_values(well(sent=rate, acked=rate, **{LATE: float(bad)})))


def test_a_budget_that_grows_after_it_was_exceeded_stays_a_missed_one() -> None:
    """The rate rose more than was projected; what was reported is no improvement."""
    run = Settings((AVAILABLE,), 360)
    many = [stepped(k, bad=5 if k < 10 else int(k == 100)) for k in range(240)]
    found = fed(many, run)[1]

    assert [one.direction for one in found] == ["up"] * len(found)
    assert len(found) == 2
    assert all(incident.headline.kind == "objective" for incident in group(found))


def test_a_planned_rise_of_the_rate_is_a_part_of_the_budget() -> None:
    """Of 540,600 messages of the soak 5,406 may be bad, and 50 were."""
    rates = ((0, Fraction(0)), (60, Fraction(600)), (600, Fraction(540_600)))
    run = Settings((AVAILABLE,), 600, due=rates)
    objectives, found = fed((stepped(k, bad=5 if k < 10 else 0) for k in range(600)), run)

    assert found == []
    assert objectives.standings()[0].whole == 540_600


def test_a_soak_that_is_over_is_judged_by_all_its_messages() -> None:
    """Whatever was planned."""
    counter = MinuteCounter((AVAILABLE,))
    for k in range(600):
        counter.add(PRODUCER, COLUMNS, stepped(k, bad=5 if k < 10 else 0))
    objectives = Objectives(Settings((AVAILABLE,), 600, is_over=True))
    objectives.merge(counter.minutes)

    assert objectives.conclude() == []
    assert objectives.standings()[0].left == 5406 - 50


def test_the_profile_of_a_plan_says_what_is_due() -> None:
    plan = text.load(
        "name: x\nbroker: {kafka: {bootstrap_servers: 'h:9'}}\n"
        "load: {rate: 10/s, message_size: 1KiB, profile: {steps: [{after: 1min, rate: 1k/s}]}}\n"
        "phases: {warm_up: 20s, soak: 10min, drain: 30s}\n",
        "plan.yaml",
    ).plan
    run = settings_of(plan)

    assert [run.due_by(k) for k in (0, 30, 60, 61, 600, 900)] == [
        *(0, 300, 600, 1600, 540_600, 540_600)
    ]
    assert settings_of(replace(plan, load=replace(plan.load, profile=Profile()))).due_by(30) == 30


@pytest.mark.long
def test_seconds_without_an_acknowledgement_that_do_not_follow_each_other_are_no_outage() -> None:
    """A slow client whose messages come back in the next second, or several that wait in turn."""
    run = replace(SETTINGS, objectives=(P99,))
    slow = [
        Second(k, producer_values(well(sent=1 - k % 2, acked=k % 2, in_flight=1 - k % 2)))
        for k in range(600)
    ]
    many = Objectives(run)
    for k in range(600):
        for client in range(10):
            is_quiet = k % 60 == 6 * client
            values = producer_values(silent() if is_quiet else well())
            many.update(f"produce.{client}@h", COLUMNS, Second(k, values))
        many.settle()

    assert standing(slow, run).bad == 0
    assert many.standings()[0].bad == 0


def test_a_minute_in_which_everything_fails_is_bad_whoever_was_late() -> None:
    """The schedule's lag, which makes seconds invalid, does not bring a message back."""
    failing = [
        Second(k, producer_values({"sent": RATE, "acked": 0, "failed": RATE}), is_valid=False)
        for k in range(600)
    ]

    assert (standing(failing).bad, standing(failing).judged) == (10, 10)
