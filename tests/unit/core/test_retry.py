"""Back-off, restarts and the reporting of repeated failures."""

from __future__ import annotations

import threading

from soak.core.retry import Backoff, Once, RestartPolicy, Restarts, Retry
from soak.core.units import SECOND_NS


def test_waits_double_up_to_the_maximum() -> None:
    waits = [Backoff(2, 15).wait_ns(failures) for failures in (0, 1, 2, 3, 4, 10_000)]

    assert waits == [0, 2, 4, 8, 15, 15]


def test_a_success_begins_the_waits_anew() -> None:
    retry = Retry(Backoff(2, 15))
    waits = [retry.note_failure(100) for _ in range(3)]
    is_due = [retry.is_due(now_ns) for now_ns in (107, 108)]
    retry.note_success()

    assert waits == [2, 4, 8]
    assert is_due == [False, True]
    assert (retry.is_failing, retry.is_due(0), retry.note_failure(200)) == (False, True, 2)


def test_the_first_death_is_followed_by_a_restart_at_once_and_others_by_ever_longer_waits() -> None:
    restarts = Restarts(RestartPolicy(Backoff(SECOND_NS), window_ns=60 * SECOND_NS))
    waits = []
    for _ in range(4):
        now_ns = restarts.due_ns
        restarts.note_death(now_ns)
        waits.append((restarts.due_ns - now_ns) // SECOND_NS)
    restarts.note_death(100 * SECOND_NS)

    assert waits == [0, 1, 2, 4]
    assert restarts.is_due(100 * SECOND_NS)


def test_too_many_deaths_in_the_window_are_too_many() -> None:
    restarts = Restarts(RestartPolicy(window_ns=60 * SECOND_NS, max_deaths=2))
    found = []
    for second in (0, 10, 59, 119, 130):
        restarts.note_death(second * SECOND_NS)
        found.append(restarts.is_too_many)

    assert found == [False, False, True, False, False]


def test_a_message_is_new_until_it_is_reported_and_after_the_failure_is_over() -> None:
    once = Once()
    found = [once.is_new(message) for message in ("a", "a", "b", "a")]
    once.clear()

    assert found == [True, False, True, True]
    assert once.is_new("a")


def test_a_message_is_new_again_after_the_period_with_the_number_of_repeats() -> None:
    once = Once(period_ns=10)

    assert [once.repeats_if_new("a", now_ns) for now_ns in (0, 3, 9, 10, 19, 20)] == [
        0, None, None, 2, None, 1,
    ]  # fmt: skip


def test_several_messages_are_remembered_up_to_the_maximum() -> None:
    once = Once(max_messages=3)
    first = [once.is_new(number) for number in (1, 2, 3, 1, 2, 3)]
    once.is_new(4)

    assert first == [True, True, True, False, False, False]
    assert [once.is_new(number) for number in (4, 1)] == [False, True]


def test_threads_may_share_it() -> None:
    """No call fails while others make it forget its messages."""
    once, errors = Once(max_messages=2), list[Exception]()

    def work(seed: int) -> None:
        try:
            for number in range(20_000):
                once.is_new((seed + number) % 5)
        except Exception as error:  # noqa: BLE001  # asserted on below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
