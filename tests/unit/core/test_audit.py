"""The audit: every message is counted once as what became of it; a random world agrees."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.core.audit import EXPIRED_EVENT, FINAL_POSITION_EVENT, SEND_FAILED_EVENT, Audit
from soak.core.model import Column, Event, Record, Span
from tests.support.examples import examples
from tests.support.load.audit_histories import (
    FATES,
    NUMBER,
    Action,
    actions,
    audited,
    without_zeros,
    world_after,
)

STREAM = "7.1.0"


def _record(
    acknowledged: Mapping[str, tuple[Span, ...]] | None = None,
    received: Mapping[str, tuple[Span, ...]] | None = None,
    sent_next: Mapping[str, int] | None = None,
    events: tuple[Event, ...] = (),
) -> Record:
    return Record(
        0, 1, 0, 0, "", (), {}, acknowledged or {}, received or {}, sent_next or {}, events
    )


def _audit(*records: Record, is_ended: bool = True) -> dict[str, int | None]:
    audit = Audit()
    for record in records:
        audit.add(record, ())
    if is_ended:
        audit.ended(7, 1)
    return audit.verdict()


def _event(kind: str, **fields: int | str) -> Event:
    return Event(kind, 0, 0, fields)


def test_twenty_three_lost_messages_come_out_as_twenty_three() -> None:
    verdict = _audit(
        _record(acknowledged={STREAM: ((0, 999, 0, 999),)}),
        _record(received={STREAM: ((0, 499, 0, 499), (523, 999, 523, 999))}),
    )

    assert (verdict["acked"], verdict["received"], verdict["lost"]) == (1000, 977, 23)


def test_what_retention_took_first_is_expired_and_not_lost() -> None:
    verdict = _audit(
        _record(acknowledged={STREAM: ((0, 999, 0, 999),)}),
        _record(
            received={STREAM: ((500, 999, 500, 999),)},
            events=(_event(EXPIRED_EVENT, partition=0, from_offset=0, to_offset=477),),
        ),
    )

    assert (verdict["expired"], verdict["lost"]) == (477, 23)


def test_what_was_written_after_the_last_look_is_unknown_and_what_the_log_lost_before_is_lost() -> (
    None
):
    """The consumer ended at 5 s with the log at 900; 77 acknowledged before lay above that, 23 came later."""
    last = Event(FINAL_POSITION_EVENT, 5, 4, {"partition": 0, "position": 900, "log_end": 900})
    late = _record(acknowledged={STREAM: ((977, 999, 977, 999),)})

    verdict = _audit(
        _record(acknowledged={STREAM: ((0, 976, 0, 976),)}),
        _record(received={STREAM: ((0, 899, 0, 899),)}, events=(last,)),
        dataclasses.replace(late, at_ns=6),
    )

    assert (verdict["lost"], verdict["unknown"]) == (77, 23)


def _word(at_ns: int, position: int) -> Event:
    return Event(
        FINAL_POSITION_EVENT,
        at_ns,
        at_ns,
        {"partition": 0, "position": position, "log_end": position},
    )


def test_only_the_last_of_two_last_words_says_what_came_too_late() -> None:
    """A consumer ended in order at 10 and was started again: the ten that it then missed are lost."""
    sent, second = ((0, 9, 0, 9),), _record(received={STREAM: ((10, 49, 10, 49), (60, 99, 60, 99))})
    verdict = _audit(
        _record(acknowledged={STREAM: sent}),
        _record(received={STREAM: sent}, events=(_word(5, 10),)),
        dataclasses.replace(_record(acknowledged={STREAM: ((10, 99, 10, 99),)}), at_ns=6),
        second,
        _record(events=(_word(7, 100),)),
    )

    assert (verdict["lost"], verdict["unknown"]) == (10, 0)


def test_a_consumer_that_read_on_after_its_last_word_and_was_killed_hides_no_loss() -> None:
    sent = ((0, 9, 0, 9),)
    verdict = _audit(
        _record(acknowledged={STREAM: sent}),
        _record(received={STREAM: sent}, events=(_word(5, 10),)),
        dataclasses.replace(_record(acknowledged={STREAM: ((10, 99, 10, 99),)}), at_ns=6),
        _record(received={STREAM: ((10, 49, 10, 49), (60, 96, 60, 96))}),
    )

    assert (verdict["lost"], verdict["unknown"]) == (10, 3)


def test_messages_written_after_the_final_position_may_be_recorded_before_it() -> None:
    """Of one second, the producer's record comes first: written at 10.95 s, the last word at 10.1 s."""
    sent, late = ((0, 9, 0, 9),), _record(acknowledged={STREAM: ((10, 14, 10, 14),)})
    verdict = _audit(
        _record(acknowledged={STREAM: sent}),
        dataclasses.replace(late, at_ns=10_950_000_000),
        _record(received={STREAM: sent}, events=(_word(10_100_000_000, 10),)),
    )

    assert (verdict["lost"], verdict["unknown"]) == (0, 5)


def test_what_lay_unread_when_the_run_ended_is_unknown() -> None:
    verdict = _audit(
        _record(acknowledged={STREAM: ((0, 999, 0, 999),)}),
        _record(
            received={STREAM: ((0, 899, 0, 899),)},
            events=(_event(FINAL_POSITION_EVENT, partition=0, position=900, log_end=1000),),
        ),
    )

    assert (verdict["unknown"], verdict["lost"]) == (100, 0)


def test_the_unrecorded_second_of_a_killed_producer_is_unknown() -> None:
    """Recorded as sent to 1,049 and acknowledged to 999; received to 1,199."""
    verdict = _audit(
        _record(acknowledged={STREAM: ((0, 999, 0, 999),)}, sent_next={STREAM: 1050}),
        _record(received={STREAM: ((0, 1199, 0, 1199),)}),
        is_ended=False,
    )

    assert (verdict["unknown"], verdict["lost"], verdict["received_unacked"]) == (200, 0, 0)


def test_a_failed_send_that_arrived_all_the_same_is_received_unacked() -> None:
    verdict = _audit(
        _record(
            acknowledged={STREAM: ((0, 9, 0, 9),)},
            sent_next={STREAM: 12},
            events=(_event(SEND_FAILED_EVENT, lane=STREAM, first=10, last=11),),
        ),
        _record(received={STREAM: ((0, 10, 0, 10),)}),
    )

    assert (verdict["received_unacked"], verdict["unknown"], verdict["lost"]) == (1, 0, 0)


def test_records_may_come_in_any_order_and_lost_is_unknowable_without_acks() -> None:
    audit = Audit()
    audit.add(_record(received={STREAM: ((0, 9, 0, 9),)}), ())
    audit.add(_record(acknowledged={STREAM: ((0, 9, 0, 9),)}), ())

    assert audit.verdict()["lost"] == 0
    assert audit.verdict(is_loss_known=False)["lost"] is None


def test_counters_are_summed_and_missing_ones_are_no_numbers() -> None:
    audit = Audit()
    columns = (Column("sent_messages"), Column("duplicated_messages"))
    audit.add(Record(0, 1, 0, 0, "", (3.0, float("nan"))), columns)
    audit.add(Record(1, 1, 0, 0, "", (4.0, 2.0)), columns)

    assert (audit.verdict()["sent"], audit.verdict()["duplicated"]) == (7, 2)


def test_without_a_last_word_of_the_consumer_what_lies_above_is_unknown() -> None:
    """A run that is still going on, or was killed: acknowledged to 99, received to 96."""
    verdict = _audit(
        _record(acknowledged={STREAM: ((0, 99, 0, 99),)}),
        _record(received={STREAM: ((0, 96, 0, 96),)}),
    )

    assert (verdict["lost"], verdict["unknown"]) == (0, 3)


def test_a_last_word_that_the_consumer_went_on_after_does_not_hide_a_loss() -> None:
    stale = _event(FINAL_POSITION_EVENT, partition=0, position=50, log_end=1000)
    verdict = _audit(
        _record(acknowledged={STREAM: ((0, 99, 0, 99),)}),
        _record(received={STREAM: ((0, 49, 0, 49),)}, events=(stale,)),
        _record(received={STREAM: ((73, 99, 73, 99),)}),
    )

    assert (verdict["lost"], verdict["unknown"]) == (23, 0)


def test_what_lies_beyond_the_log_is_lost() -> None:
    """The broker forgot its tail: acknowledged to 99, the log ends at 77."""
    last = _event(FINAL_POSITION_EVENT, partition=0, position=77, log_end=77)
    verdict = _audit(
        _record(acknowledged={STREAM: ((0, 99, 0, 99),)}),
        _record(received={STREAM: ((0, 76, 0, 76),)}, events=(last,)),
    )

    assert (verdict["lost"], verdict["unknown"]) == (23, 0)


def test_messages_whose_place_is_unknown_are_lost_when_they_do_not_come() -> None:
    """acks=0 tells no offset; whether that means loss is for the caller to say."""
    last = _event(FINAL_POSITION_EVENT, partition=0, position=77, log_end=77)
    verdict = _audit(
        _record(acknowledged={STREAM: ((0, 99, -2, -2),)}),
        _record(received={STREAM: ((0, 76, 0, 76),)}, events=(last,)),
    )

    assert (verdict["acked"], verdict["lost"]) == (100, 23)


def test_a_killed_producer_hides_no_failed_send_that_arrived() -> None:
    failed = _event(SEND_FAILED_EVENT, lane=STREAM, first=10, last=11)
    verdict = _audit(
        _record(acknowledged={STREAM: ((0, 9, 0, 9),)}, sent_next={STREAM: 12}, events=(failed,)),
        _record(received={STREAM: ((0, 10, 0, 10),)}),
        is_ended=False,
    )

    assert (verdict["received_unacked"], verdict["unknown"]) == (1, 0)


def test_every_subscription_must_receive_every_message() -> None:
    """The second one misses 23 and has 17 left to read: sums and each one's own count."""
    audit = Audit(subscriptions=2)
    audit.add(_record(acknowledged={STREAM: ((0, 999, 0, 999),)}), ())
    audit.add(_record(received={STREAM: ((0, 999, 0, 999),)}), (), 0)
    last = _event(FINAL_POSITION_EVENT, partition=0, position=983, log_end=1000)
    twice = Record(0, 1, 0, 0, "", (3.0,), received={STREAM: ((23, 982, 23, 982),)}, events=(last,))
    audit.add(twice, (Column("duplicated_messages"),), 1)

    verdict, (first, second) = audit.verdict(), audit.by_subscription()

    assert (verdict["acked"], verdict["received"]) == (1000, 1960)
    assert (verdict["lost"], verdict["unknown"], verdict["duplicated"]) == (23, 17, 3)
    assert (first["received"], first["lost"], first["unknown"]) == (1000, 0, 0)
    assert (second["received"], second["lost"], second["unknown"]) == (960, 23, 17)
    assert (first["duplicated"], second["duplicated"]) == (0, 3)


def test_a_subscription_without_consumers_receives_nothing() -> None:
    audit = Audit(subscriptions=2)
    audit.add(_record(acknowledged={STREAM: ((0, 99, 0, 99),)}), ())
    audit.add(_record(received={STREAM: ((0, 99, 0, 99),)}), (), 0)

    assert audit.by_subscription()[1]["unknown"] == 100
    assert audit.by_subscription(is_loss_known=False)[1]["lost"] is None


def test_whole_blocks_expire_and_their_holes_mean_nothing() -> None:
    """Ledgers 5 and 6 were deleted before their last 40 and all 100 messages were read."""
    ledger = [number << 36 for number in (5, 6, 7)]
    runs = tuple((at * 100, at * 100 + 99, base, base + 990) for at, base in enumerate(ledger))
    gone = {"partition": 0, "from_offset": ledger[0] + 591, "to_offset": ledger[2]}

    verdict = _audit(
        _record(acknowledged={STREAM: runs}),
        _record(
            received={STREAM: ((0, 59, ledger[0], ledger[0] + 590), runs[2])},
            events=(_event(EXPIRED_EVENT, **gone),),
        ),
    )

    assert (verdict["received"], verdict["expired"], verdict["lost"]) == (160, 140, 0)


def test_no_more_messages_expire_than_there_were_offsets_deleted() -> None:
    """A hundred messages somewhere in 400 offsets, of which 31 were deleted: 69 are lost for certain."""
    gone = _event(EXPIRED_EVENT, partition=0, from_offset=100, to_offset=131)
    last = _event(FINAL_POSITION_EVENT, partition=0, position=400, log_end=400)
    verdict = _audit(
        _record(acknowledged={STREAM: ((0, 99, 0, 399),)}), _record(events=(gone, last))
    )

    assert (verdict["expired"], verdict["lost"]) == (31, 69)


def test_what_was_received_has_not_expired_whatever_the_order_of_records() -> None:
    gone = _event(EXPIRED_EVENT, partition=0, from_offset=0, to_offset=100)
    verdict = _audit(
        _record(acknowledged={STREAM: ((0, 99, 0, 99),)}),
        _record(events=(gone,)),
        _record(received={STREAM: ((0, 76, 0, 76),)}),
    )

    assert (verdict["received"], verdict["expired"], verdict["lost"]) == (77, 23, 0)


def test_an_acknowledgement_that_comes_twice_counts_once() -> None:
    verdict = _audit(
        _record(acknowledged={STREAM: ((0, 59, 0, 59),)}),
        _record(acknowledged={STREAM: ((40, 99, 40, 99),)}),
        _record(received={STREAM: ((0, 99, 0, 99),)}),
    )

    assert (verdict["acked"], verdict["lost"], verdict["unknown"]) == (100, 0, 0)


def test_columns_may_change_from_file_to_file() -> None:
    audit = Audit()
    for number in range(300):
        name = "sent_messages" if number % 2 else "missed_messages"
        audit.add(Record(number, 1, 0, 0, "", (0.0, 2.0)), (Column("other"), Column(name)))

    assert (audit.verdict()["sent"], audit.verdict()["missed_sends"]) == (300, 300)


def test_a_record_of_the_consumer_that_is_missing_is_no_loss() -> None:
    """Messages 500 to 599 are unknown; 23 later ones are lost."""
    audit = Audit()
    audit.add(_record(acknowledged={STREAM: ((0, 999, 0, 999),)}), ())
    audit.add(_record(received={STREAM: ((0, 499, 0, 499),)}), ())
    audit.missed(0, range(2))
    audit.add(_record(), ())
    audit.add(_record(received={STREAM: ((600, 799, 600, 799),)}), ())
    audit.add(_record(received={STREAM: ((823, 999, 823, 999),)}), ())

    verdict = audit.verdict()

    assert (verdict["unknown"], verdict["lost"]) == (100, 23)


def test_what_is_read_again_after_a_missing_record_is_known() -> None:
    audit = Audit()
    audit.add(_record(acknowledged={STREAM: ((0, 99, 0, 99),)}), ())
    audit.add(_record(received={STREAM: ((0, 49, 0, 49),)}), ())
    audit.missed(0, range(1))
    audit.add(_record(received={STREAM: ((50, 99, 50, 99),)}), ())

    assert (audit.verdict()["received"], audit.verdict()["unknown"]) == (100, 0)


def test_a_missing_record_before_the_last_word_is_unknown_up_to_there() -> None:
    last = _event(FINAL_POSITION_EVENT, partition=0, position=80, log_end=80)
    audit = Audit()
    audit.add(_record(acknowledged={STREAM: ((0, 99, 0, 99),)}), ())
    audit.add(_record(received={STREAM: ((0, 49, 0, 49),)}), ())
    audit.missed(0, range(1))
    audit.missed(0, range(1))
    audit.add(_record(events=(last,)), ())

    assert (audit.verdict()["unknown"], audit.verdict()["lost"]) == (30, 20)


# --- The audit against a world of which every message is known, over random histories.

ALONE = st.just(0)
LOST_OR_NOT = st.lists(st.sampled_from(["kept", "vanished"]), min_size=1, max_size=6)


@pytest.mark.long
@given(actions(ALONE, LOST_OR_NOT))
@settings(max_examples=examples(300))
def test_every_message_is_counted_by_its_definition(history: list[Action]) -> None:
    """Loss, truncation, expiry, restarts of all: where a client is alone in its partition, exactly."""
    world = world_after(history, producers=1)

    assert audited(world, world.records) == without_zeros(world.truth())


@pytest.mark.long
@given(actions(NUMBER, FATES), st.randoms(use_true_random=False))
@settings(max_examples=examples(200))
def test_no_message_is_called_lost_that_was_not(history: list[Action], random: Random) -> None:
    """Duplicates, failures and other clients between, records in any order.

    Among lost, expired and unread only doubt may move a message, and never towards lost.
    """
    world = world_after(history, producers=2)
    shuffled = list(world.records)
    random.shuffle(shuffled)
    truth = Counter(world.truth())

    for records in (world.records, shuffled):
        found = Counter(audited(world, records))
        assert found["lost"] <= truth["lost"]
        assert _missing(found) == _missing(truth)
        assert all(found[key] == truth[key] for key in PLAIN)


PLAIN = ("acked", "received", "duplicated", "received_unacked")


def _missing(counts: Counter[str]) -> int:
    return counts["lost"] + counts["expired"] + counts["unknown"]


def test_a_consumer_beyond_the_subscriptions_of_the_plan_is_counted_apart() -> None:
    """The plan has one subscription: the messages of a second one are neither received nor lost."""
    audit = Audit(subscriptions=1)
    audit.add(_record(acknowledged={STREAM: ((0, 9, 0, 9),)}), ())
    for subscription in (0, 1):
        audit.missed(subscription, [0])
        audit.add(_record(received={STREAM: ((0, 9, 0, 9),)}), (), subscription)

    verdict = audit.verdict()

    assert (verdict["received"], verdict["lost"], verdict["received_unplanned"]) == (10, 0, 10)
    assert len(audit.by_subscription()) == 1
