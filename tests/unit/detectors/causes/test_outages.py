"""Brokers that are killed, alone or among three, and the metadata of others: who is named, and who is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.attribution import attribute
from detectors.nearby import Nearby, TimedEvent
from soak.core.model import Change, Explanation, Kind, Series
from tests.support.detection.cause_panels import (
    END,
    ONSET,
    OUTAGE,
    P99,
    STEP,
    K,
    around,
    channel,
    told,
)

RECORDED = channel('probe@h|probe_lag_seconds{probe="round_trip"}', 0.01, 0.01)
"""The probe goes on: without its record there is no question that could get no answer."""
RUN_TOPIC = channel('probe@b1|retention_held_bytes{topic="soak-t"}', 1e7, 1e7)


def stopped(seconds: int, failed: float = 0.0) -> list[Series]:
    """Return what is sent all along, acknowledged but for so many seconds, and what fails after them."""
    is_out = (K >= ONSET) & (ONSET + seconds > K)
    return [
        Series("produce.0@h|sent_messages", K, np.full(END, 300.0)),
        Series("produce.0@h|acked_messages", K, np.where(is_out, 0.0, 300.0)),
        Series("produce.0@h|failed_messages", K, np.where(K == ONSET + 20, failed, 0.0)),
    ]


def page(target: str, silent: range) -> Series:
    return Series(f'probe@h|up{{target="{target}"}}', K, np.where(np.isin(K, silent), 0.0, 1.0))


def trips(target: str, silent: range = range(0)) -> Series:
    ks = K[~np.isin(K, silent)]
    name = f'probe@h|broker_round_trip_seconds{{target="{target}"}}'
    return Series(name, ks, np.full(ks.size, 5e-4))


def refused(target: str) -> tuple[TimedEvent, ...]:
    reason = f"http://{target}/metrics does not answer: [Errno 111] Connection refused"
    return told("target_failed", ONSET + 1, target=target, reason=reason)


def first(found: Nearby, change: Change = OUTAGE) -> Explanation:
    return attribute(change, found)[0]


def test_the_only_broker_killed_is_down_with_its_times() -> None:
    """Nothing is acknowledged for a minute, sends fail, and its page refuses connections."""
    silent = range(ONSET, ONSET + 61)
    found = first(
        around(*stopped(61, 18_000.0), page("b1:9092", silent), events=refused("b1:9092"))
    )
    texts = " ".join(one.text for one in found.evidence)

    assert (found.cause, found.suspect) == ("broker_down", "b1:9092")
    assert found.score > 0.95
    assert "stopped answering at the onset, for 1 min 1 s" in texts
    assert "Sends failed from the onset on: 18,000 messages." in texts
    assert "were refused" in texts


def test_a_broker_that_ends_because_its_drive_failed_is_down_and_its_log_says_why() -> None:
    """There is no cause for a drive that gives errors: the broker's end is what is seen, with the reason."""
    silent = range(ONSET, ONSET + 61)
    failure = told("log_dir_failure", ONSET, broker=1, directory="/data/kafka")
    found = first(
        around(*stopped(61), page("b1:9092", silent), events=(*refused("b1:9092"), *failure))
    )

    assert (found.cause, found.suspect) == ("broker_down", "b1:9092")
    assert "its data folder /data/kafka failed" in " ".join(one.text for one in found.evidence)


def test_of_three_brokers_the_one_that_answers_no_question_is_suspected() -> None:
    """Its page has a name of its own, which is not the broker's address."""
    silent = range(ONSET, ONSET + 43)
    found = first(
        around(
            *stopped(11),
            trips("b1:9092"),
            trips("b2:9092"),
            trips("b3:9092", silent),
            page("third", silent),
            events=told("leader_change", ONSET + 11, topic="soak-t", partition=1, epoch=3),
        )
    )

    assert (found.cause, found.suspect) == ("broker_down", "b3:9092")


IN_ORDER = [range(ONSET - 12, ONSET), range(ONSET + 3, ONSET + 12), range(ONSET + 15, ONSET + 22)]
"""Three brokers are restarted one after the other, each away for some seconds."""


@pytest.mark.parametrize("kind", ["stalls", "step"])
def test_brokers_that_restart_in_order_are_down_and_not_only_what_follows_from_it(
    kind: Kind,
) -> None:
    """Latency stalls as the first is back: its copies are behind, leaders move, and no probe was refused."""
    away = [trips(f"b{n}:9092", silent) for n, silent in enumerate(IN_ORDER, 1)]
    behind = 'probe@h|cluster_under_replicated_partitions{follower="b1:9092"}'
    copies = Series(behind, K, np.where(np.isin(K, IN_ORDER[0]), 62.0, 0.0))
    moves = told("leader_change", ONSET, topic="soak-t", partition=1, epoch=3)
    found = first(around(*away, copies, events=moves), replace(STEP, kind=kind))
    texts = " ".join(one.text for one in found.evidence)

    assert (found.cause, found.suspect) == ("broker_down", "b1:9092, b2:9092, b3:9092")
    assert "b2:9092 stopped answering 3 s after the onset, for 9 s." in texts
    assert "as where somebody restarts them in order" in texts


@pytest.mark.parametrize(
    "silences",
    [
        [range(ONSET - 12, ONSET)],
        [range(ONSET - 12, ONSET), range(ONSET - 6, ONSET + 6)],
        [range(ONSET - 12, ONSET), range(ONSET + 80, ONSET + 90)],
        [range(ONSET - 250, ONSET - 240), range(ONSET - 230, ONSET - 220)],
        [range(ONSET - 50, ONSET - 40), range(ONSET - 30, ONSET - 20)],
    ],
    ids=["one", "at once", "long after each other", "long before", "before"],
)
def test_brokers_that_are_away_otherwise_were_not_restarted_in_order(silences: list[range]) -> None:
    away = [trips(f"b{n}:9092", silent) for n, silent in enumerate(silences, 1)]
    others = [trips("b8:9092"), trips("b9:9092")]

    found = attribute(STEP, around(*away, *others))

    assert "restarts them in order" not in " ".join(
        one.text for cause in found for one in cause.evidence
    )


def test_a_broker_that_falls_silent_twice_is_not_restarted_in_order() -> None:
    twice = [*range(ONSET - 12, ONSET), *range(ONSET + 20, ONSET + 30)]
    ks = K[~np.isin(K, twice)]
    again = Series(
        'probe@h|broker_round_trip_seconds{target="b1:9092"}', ks, np.full(ks.size, 5e-4)
    )

    found = attribute(STEP, around(again, trips("b2:9092", range(ONSET + 3, ONSET + 12))))

    assert "restarts them in order" not in " ".join(
        one.text for cause in found for one in cause.evidence
    )


def test_a_page_that_a_server_could_not_scrape_is_called_after_its_pod() -> None:
    """Every 15 s; the server itself answers all along."""
    ks = K[::15]
    up = [
        Series(
            f'probe@h|up{{instance="10.244.0.{n}:9404",pod="my-cluster-kafka-{n}",target="all"}}',
            ks,
            np.where((n == 1) & (ks >= ONSET) & (ks < ONSET + 60), 0.0, 1.0),
        )
        for n in range(3)
    ]
    found = first(around(*stopped(61, 18_000.0), page("all", range(0)), *up))
    texts = " ".join(one.text for one in found.evidence)

    assert (found.cause, found.suspect) == ("broker_down", "my-cluster-kafka-1")
    assert "The metrics page of my-cluster-kafka-1 stopped answering" in texts


def test_an_outage_in_which_all_brokers_answer_is_no_broker_s_end() -> None:
    found = attribute(OUTAGE, around(*stopped(30, 9_000.0), trips("b1:9092"), trips("b2:9092")))

    assert "broker_down" not in [one.cause for one in found]


@pytest.mark.parametrize("ends", [(22, 22, 22), (300, 300, 300)], ids=["back", "still silent"])
def test_brokers_that_all_fall_silent_in_one_second_are_cut_off(ends: tuple[int, ...]) -> None:
    """No process ends or stands still in all of them at once; the way to them is what they share."""
    silent = [trips(f"b{i}:9092", range(ONSET, ONSET + end)) for i, end in enumerate(ends, start=1)]
    found = first(around(*stopped(ends[0]), *silent, RECORDED))

    assert found.cause == "network"
    assert "All brokers stopped answering in one second" in found.evidence[0].text


@pytest.mark.parametrize("failed", [0.0, 6_000.0])
def test_the_only_broker_asked_that_is_silent_and_refuses_nothing_may_be_cut_off(
    failed: float,
) -> None:
    """A process that ends refuses connections; a host that is off, or a way that is cut, does not."""
    silent = trips("b1:9092", range(ONSET, ONSET + 22))
    found = first(around(*stopped(22, failed), silent, RECORDED))

    assert found.cause == "unknown"
    assert "b1:9092 stopped answering at the onset, for 22 s" in found.evidence[0].text
    assert "whether its host answers" in " ".join(one.text for one in found.evidence)


@pytest.mark.parametrize(
    "noticed",
    [
        {"events": told("leader_change", ONSET + 9, topic="soak-t", partition=1, epoch=3)},
        {"events": told("log_dir_failure", ONSET, broker=1, directory="/data/kafka")},
        {"events": refused("b1:9092")},
    ],
    ids=["leaders moved", "drive failed", "refused"],
)
def test_the_only_broker_asked_is_down_where_something_else_says_so(
    noticed: dict[str, Any],
) -> None:
    silent = trips("b1:9092", range(ONSET, ONSET + 22))
    found = first(around(*stopped(22), silent, RECORDED, **noticed))

    assert (found.cause, found.suspect) == ("broker_down", "b1:9092")


@pytest.mark.parametrize(("begins", "times"), [((0, 8, 16), 1), ((0, 4, 8), 0)])
def test_brokers_that_take_turns_are_said_to_be_restarted_in_order(
    begins: tuple[int, ...], times: int
) -> None:
    """Where two are away at once, nobody waited for the first to come back."""
    silent = [
        trips(f"b{i}:9092", range(ONSET + begin, ONSET + begin + 6))
        for i, begin in enumerate(begins, start=1)
    ]
    found = first(around(*stopped(8), *silent, events=refused("b1:9092")))

    assert found.cause == "broker_down"
    assert sum("restarts them in order" in one.text for one in found.evidence) == times


def test_brokers_that_refuse_connections_one_after_the_other_are_down() -> None:
    """As where somebody ends all of them."""
    silent = [trips(f"b{i}:9092", range(ONSET + i, END)) for i in (1, 2, 3)]
    found = first(around(*stopped(END - ONSET), *silent, RECORDED, events=refused("b1:9092")))

    assert found.cause == "broker_down"


def test_a_broker_that_times_out_and_goes_on_stood_still_however_long() -> None:
    """Its leaders moved meanwhile; a process that had ended would have refused connections."""
    silent = range(ONSET, ONSET + 45)
    late = told("target_failed", ONSET + 6, target="b3", reason="b3: no complete answer within 5 s")
    moved = told("leader_change", ONSET + 9, topic="soak-t", partition=1, epoch=3)
    found = first(
        around(
            *stopped(11),
            trips("b1:9092"),
            trips("b3:9092", silent),
            page("b3:7071", silent),
            events=(*late, *moved),
        )
    )

    assert (found.cause, found.suspect) == ("broker_pause", "b3:9092")


def test_a_client_that_gives_up_says_nothing_of_the_process() -> None:
    """It waits as long for a broker that refuses connections; only a page tells these apart."""
    silent = range(ONSET, ONSET + 63)
    gave_up = told("probe_failed", ONSET + 9, probe="retention_kafka", reason="no answer in time")
    moved = told("leader_change", ONSET + 15, topic="soak-t", partition=1, epoch=3)
    found = first(
        around(*stopped(15), trips("b1:9092"), trips("b3:9092", silent), events=(*gave_up, *moved))
    )

    assert (found.cause, found.suspect) == ("broker_down", "b3:9092")


def storm(topic: str, epoch: int, partitions: int = 500) -> tuple[TimedEvent, ...]:
    return tuple(
        replace(one)
        for partition in range(partitions)
        for one in told(
            "leader_change",
            ONSET + partition % 5,
            topic=topic,
            partition=partition,
            epoch=epoch,
            leader=1,
        )
    )


@pytest.mark.parametrize(("topic", "epoch"), [("many", 0), ("many", 4), ("soak-t", 0)])
def test_elections_of_other_topics_or_of_new_partitions_move_no_leader(
    topic: str, epoch: int
) -> None:
    found = attribute(STEP, around(RUN_TOPIC, events=storm(topic, epoch)))

    assert found[0].cause == "metadata_storm"
    assert found[0].suspect == f"topic {topic}"
    assert "leader_move" not in [one.cause for one in found]


def test_a_few_elections_of_other_topics_are_neither() -> None:
    (found,) = attribute(STEP, around(RUN_TOPIC, events=storm("other", 3, partitions=4)))

    assert found.cause == "unknown"
    assert any("Leader move is ruled out" in one.text for one in found.against)


@pytest.mark.parametrize(("before", "cause"), [(400.0, "metadata_storm"), (0.0, "unknown")])
def test_partitions_that_a_started_broker_loads_are_no_new_ones(before: float, cause: str) -> None:
    """Its page says that it has none until its logs are loaded."""
    count = 'probe@h|kafka_server_replicamanager_partitioncount{target="b1"}'

    (found, *_) = attribute(STEP, around(RUN_TOPIC, channel(count, before, 500.0)))

    assert found.cause == cause


def test_many_new_partitions_are_named_before_the_cpu_that_they_take() -> None:
    """2,000 beside 400; no log is read."""
    count = 'probe@h|kafka_server_replicamanager_partitioncount{target="b1"}'
    seen = [
        channel("probe@b1|host_cpu_ratio", 0.3, 0.97),
        channel("probe@b1|node_pressure_cpu_waiting_seconds", 0.02, 0.6),
        channel('probe@b1|fsync_latency_seconds{directory="/d",quantile="0.99"}', 2e-3, 2e-3),
    ]
    few, many = (
        attribute(STEP, around(RUN_TOPIC, *seen, channel(count, 400.0, after)))
        for after in (500.0, 2_400.0)
    )

    assert [one.cause for one in few] == ["broker_cpu", "metadata_storm"]
    assert [one.cause for one in many] == ["metadata_storm", "broker_cpu"]


def test_leaders_of_the_run_that_move_are_named_beside_elections_of_others() -> None:
    own = told("leader_change", ONSET, topic="soak-t", partition=1, epoch=7)
    found = first(around(RUN_TOPIC, events=(*own, *storm("other", 3, partitions=4))), STEP)

    assert (found.cause, found.suspect) == ("leader_move", "soak-t")


def test_all_leaders_that_move_at_once_are_one_move() -> None:
    """As when somebody balances the leaders of all topics: those of others are a part of it."""
    own = told("leader_change", ONSET, ONSET + 1, topic="soak-t", partition=1, epoch=7)
    found = attribute(STEP, around(RUN_TOPIC, events=(*own, *storm("other", 3))))

    assert [one.cause for one in found] == ["leader_move"]


def test_a_page_that_answers_again_without_copies_behind_is_no_broker_that_came_back() -> None:
    """A busy host answers its pages now and then."""
    name = 'probe@h|kafka_server_replicamanager_underreplicatedpartitions{target="b1"}'
    calm = Series(name, K, np.zeros(END))

    found = attribute(STEP, around(calm, page("b3:7071", range(ONSET - 30, ONSET))))

    assert found[0].cause == "unknown"


def test_pauses_that_new_metadata_makes_come_after_it() -> None:
    """In each second from the onset on a long pause, and 500 partitions to be made."""
    pauses = told("gc_pause", *range(ONSET, END), pause_seconds=0.1)
    events = (*storm("many", 0), *pauses)
    found = attribute(STEP, around(RUN_TOPIC, channel(P99, 0.004, 0.06), events=events))

    assert [one.cause for one in found] == ["metadata_storm", "gc_pause"]


def test_copies_that_catch_up_after_a_broker_came_back() -> None:
    name = 'probe@h|kafka_server_replicamanager_underreplicatedpartitions{target="b1"}'
    behind = Series(name, K, np.where((K >= ONSET - 30) & (K < ONSET + 50), 12.0, 0.0))
    back = page("b3:7071", range(ONSET - 30, ONSET))
    found = first(around(behind, back), STEP)

    assert (found.cause, found.suspect) == ("under_replicated", "b3:7071")


def behind(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Series:
    """Return the copies that are behind as the cluster's list of topics has them, every five seconds."""
    name = 'probe@b1|cluster_under_replicated_partitions{follower="b3:9092"}'
    return Series(name, K[::5], values[::5])


def test_copies_are_known_without_any_page() -> None:
    """Then that none is behind rules it out, and else the broker that holds them is named."""
    (calm,) = attribute(STEP, around(behind(np.zeros(END))))
    late = behind(np.where((K >= ONSET - 30) & (K < ONSET + 50), 12.0, 0.0))
    found = first(around(late, page("b3:7071", range(ONSET - 30, ONSET))), STEP)

    assert "Under replicated is ruled out: No copy was behind." in [
        one.text for one in calm.against
    ]
    assert (found.cause, found.suspect) == ("under_replicated", "b3:9092")
    assert "12 partitions of broker b3:9092 were behind" in found.evidence[0].text


def failing(reason: str, *ks: int, messages: int = 100) -> tuple[TimedEvent, ...]:
    return told("send_errors", *ks, reason=reason, messages=messages)


def test_messages_that_are_refused_for_lack_of_a_right_are_no_broker_s_fault() -> None:
    """The reason of the client decides, whatever else is silent."""
    refused = failing("Broker: Topic authorization failed", *range(ONSET, ONSET + 20))
    late = failing("Local: Message timed out", ONSET + 3, messages=5)
    (found, *_) = attribute(STEP, around(events=(*refused, *late)))

    assert found.cause == "access_denied"
    assert "Of 2,005 messages that failed from the onset on, 2,000 were refused: " in (
        found.evidence[0].text
    )


@pytest.mark.parametrize(
    "events",
    [
        failing("Local: Message timed out", ONSET),
        failing("Broker: Topic authorization failed", ONSET - 50),
        told("send_errors", ONSET, reason="Broker: Topic authorization failed", messages="many"),
        (
            *failing("Broker: Topic authorization failed", ONSET, messages=10),
            *failing("Local: Message timed out", ONSET + 1),
        ),
    ],
    ids=["another reason", "long before", "no number", "few of them"],
)
def test_other_failures_are_no_lack_of_rights(events: tuple[TimedEvent, ...]) -> None:
    assert "access_denied" not in [one.cause for one in attribute(STEP, around(events=events))]


def unread(reason: str, *ks: int, errors: int = 10, **place: str) -> tuple[TimedEvent, ...]:
    return told("receive_errors", *ks, reason=reason, errors=errors, **place)


def test_consumers_that_are_refused_for_lack_of_a_right_are_no_broker_s_fault() -> None:
    """Of the errors of consumers alone: the producers kept their right."""
    text = "Fetch from broker 1 failed: Broker: Topic authorization failed"
    denied = unread(text, *range(ONSET, ONSET + 20), partition="soak-t-1")
    lost = unread("b1:9092/1: Disconnected", ONSET, errors=1)
    (found, *_) = attribute(STEP, around(events=(*denied, *lost)))

    assert found.cause == "access_denied"
    assert (
        "Of 201 errors of consumers from the onset on, 200 were refused: " in found.evidence[0].text
    )


def test_refusals_on_both_sides_are_one_cause_with_two_signs() -> None:
    reason = "Broker: Topic authorization failed"
    (found, *_) = attribute(STEP, around(events=(*failing(reason, ONSET), *unread(reason, ONSET))))

    assert found.cause == "access_denied"
    assert [one.text.split(" from ")[0] for one in found.evidence[:2]] == [
        "Of 100 messages that failed",
        "Of 10 errors of consumers",
    ]


REFUSED = "b2:9092/2: Connect to {} failed: Connection refused"


def test_a_broker_that_refuses_a_consumer_is_down_though_no_probe_asks_it() -> None:
    """Neither round trips nor pages are watched; the consumer's client names the broker."""
    refusals = unread(REFUSED.format("ipv4#10.0.0.2:9092"), ONSET + 1, broker="b2:9092")
    found = first(around(*stopped(30, 9_000.0), events=refusals))

    assert (found.cause, found.suspect) == ("broker_down", "b2:9092")
    assert "Connections to b2:9092 were refused" in " ".join(one.text for one in found.evidence)


def test_the_other_address_of_localhost_says_nothing_when_it_refuses() -> None:
    """Its client tries ::1 as well, where a broker that listens on 127.0.0.1 alone refuses."""
    other = unread(REFUSED.format("ipv6#[::1]:9092"), ONSET + 1, broker="b2:9092")
    texts = [
        evidence.text
        for one in attribute(OUTAGE, around(*stopped(30, 9_000.0), events=other))
        for evidence in one.evidence
    ]

    assert not any("were refused" in text for text in texts)


@pytest.mark.parametrize(
    "reason",
    [
        "b2:9092/2: Connect to ipv4#10.0.0.2:9092 failed: No route to host",
        "b2:9092/2: Failed to resolve 'b2:9092': Name or service not known",
        "Resolve error: asio.netdb:1 : Host not found (authoritative)",
    ],
)
def test_consumers_without_a_way_to_a_broker_are_a_matter_of_the_network(reason: str) -> None:
    found = attribute(STEP, around(events=unread(reason, ONSET + 1, broker="b2:9092")))

    assert (found[0].cause, found[0].suspect) == ("network", "b2:9092")


# --- of several brokers one, as its clients see it


def led(leader: int, silent: range = range(0), client: str = "produce.0@h") -> list[Series]:
    """Return a leader's address, and its median but for seconds in which it acknowledged nothing."""
    ks = K[~np.isin(K, silent)]
    median = f'{client}|publish_latency_seconds{{leader="{leader}",quantile="0.5"}}'
    info = f'{client}|leader_info{{address="b{leader}:9092",leader="{leader}"}}'
    return [Series(median, ks, np.full(ks.size, 2e-3)), Series(info, K, np.ones(END))]


def counted(
    silent: range, share: float, rate: float = 300.0, client: str = "produce.0@h"
) -> list[Series]:
    """Return what is sent, what is acknowledged but for a share in some seconds, and how long it waits."""
    is_silent = np.isin(K, silent)
    return [
        Series(f"{client}|sent_messages", K, np.full(END, rate)),
        Series(f"{client}|acked_messages", K, np.where(is_silent, (1.0 - share) * rate, rate)),
        Series(f"{client}|publish_waiting_seconds", K, np.where(is_silent, K - silent.start, 0)),
    ]


LEADER_5 = replace(OUTAGE, series=f'{OUTAGE.series}{{leader="5"}}', after=48.0)


def of_six(*asked: int) -> list[Series]:
    """Return six brokers, of which the fifth acknowledges nothing for 48 s, and questions to some others."""
    out = range(ONSET, ONSET + 48)
    leaders = [series for at in range(1, 7) for series in led(at, out if at == 5 else range(0))]
    return [*counted(out, 1 / 6), *leaders, *(trips(f"b{at}:9092") for at in asked)]


def test_one_of_six_brokers_that_ends_is_down_though_most_is_acknowledged() -> None:
    """No question was put to it; what it leads is not acknowledged, and consumers are refused."""
    refusals = unread(REFUSED.format("ipv4#10.0.0.5:9092"), ONSET + 1, broker="b5:9092")
    failed = Series("produce.0@h|failed_messages", K, np.where(K == ONSET + 20, 900.0, 0.0))
    found = first(around(*of_six(1, 2, 3), failed, events=refusals), LEADER_5)
    texts = " ".join(one.text for one in found.evidence)

    assert (found.cause, found.suspect) == ("broker_down", "b5:9092")
    assert "Acknowledgements of leader 5 stopped for 48 s, beginning at the onset." in texts


def test_brokers_that_are_restarted_one_after_the_other_are_all_named() -> None:
    """One refused consumers and was asked nothing; a question to the next got no answer soon after."""
    refusals = unread(REFUSED.format("ipv4#10.0.0.5:9092"), ONSET + 1, broker="b5:9092")
    failed = Series("produce.0@h|failed_messages", K, np.where(K == ONSET + 20, 900.0, 0.0))
    next_one = trips("b2:9092", range(ONSET + 7, ONSET + 22))
    found = first(around(*of_six(1, 3), next_one, failed, events=refusals), LEADER_5)

    assert (found.cause, found.suspect) == ("broker_down", "b2:9092, b5:9092")


def test_a_broker_that_nobody_asks_is_not_ruled_out_by_the_answers_of_others() -> None:
    (found,) = attribute(LEADER_5, around(*of_six(1, 2, 3)))

    assert found.cause == "unknown"
    assert not [one for one in found.against if "Broker down is ruled out" in one.text]
    assert "Not enough for broker down" in " ".join(one.text for one in found.evidence)


def test_a_broker_that_answers_questions_is_not_down_though_it_acknowledges_nothing() -> None:
    moved = told("leader_change", ONSET + 9, topic="soak-t", partition=1, epoch=3)
    found = attribute(LEADER_5, around(*of_six(5), events=moved))

    assert "broker_down" not in [one.cause for one in found]


def test_a_broker_of_which_only_the_load_balancer_is_asked_is_down() -> None:
    """The balancer goes on answering for the others."""
    out = range(ONSET, ONSET + 11)
    leaders = [series for at in (1, 2, 3) for series in led(at, out if at == 2 else range(0))]
    moved = told("leader_change", ONSET + 9, topic="soak-t", partition=1, epoch=3)
    found = first(around(*counted(out, 1 / 3), *leaders, trips("lb:9092"), events=moved))

    assert (found.cause, found.suspect) == ("broker_down", "b2:9092")
    assert not found.against


def test_the_end_of_the_only_broker_is_seen_in_a_load_of_five_messages_a_second() -> None:
    """So few are no rate to compare with, but the outage itself is known."""
    few = counted(range(ONSET, ONSET + 61), 1.0, rate=5.0)
    refusals = unread(REFUSED.format("ipv4#10.0.0.1:9092"), ONSET + 1, broker="b1:9092")
    failed = Series("produce.0@h|failed_messages", K, np.where(K == ONSET + 20, 100.0, 0.0))
    found = first(around(*few, failed, page("other", range(0)), events=refusals))

    assert (found.cause, found.suspect) == ("broker_down", "b1:9092")
    assert "Acknowledgements stopped for at least 1 min, " in found.evidence[1].text


def test_a_broker_that_fell_silent_long_before_is_not_said_to_answer() -> None:
    gone = trips("b1:9092", range(ONSET - 70, END))
    found = attribute(OUTAGE, around(*stopped(30, 9_000.0), gone))
    texts = [text.text for one in found for text in (*one.evidence, *one.against)]

    assert not [text for text in texts if "throughout" in text]


# --- what nobody asked, or recorded, is no silence


def asked(
    *targets: str, silent: range, source: str = "probe@h", is_recorded: bool = True
) -> list[Series]:
    """Return the answers to one probe, and its own record of the seconds without one."""
    answered = [
        replace(one, name=one.name.replace("probe@h", source))
        for one in (trips(target, silent) for target in targets)
    ]
    own = replace(RECORDED, name=RECORDED.name.replace("probe@h", source))
    return [*answered, own] if is_recorded else answered


def texts_of(found: Nearby, change: Change) -> str:
    explained = attribute(change, found)
    return " ".join(text.text for one in explained for text in (*one.evidence, *one.against))


THREE = ("b1:9092", "b2:9092", "b3:9092")


@pytest.mark.parametrize("change", [STEP, OUTAGE], ids=["step", "outage"])
def test_the_end_of_a_probe_is_no_silence_of_the_brokers(change: Change) -> None:
    """It may have ended with its host; nothing was asked from then on."""
    ended = asked(*THREE, silent=range(ONSET, END), is_recorded=False)
    said = texts_of(around(*stopped(30), *ended), change)

    assert "in one second" not in said
    assert "stopped answering" not in said


def test_brokers_that_answer_another_host_are_not_silent() -> None:
    out = range(ONSET, ONSET + 22)
    here, there = (
        asked(*THREE, silent=one, source=f"probe@h{one.stop}") for one in (out, range(0))
    )
    found = attribute(OUTAGE, around(*stopped(22), *here, *there))

    assert not {"network", "broker_down"} & {one.cause for one in found}


def test_brokers_that_acknowledge_all_messages_meanwhile_are_not_silent() -> None:
    """Only the way of the probe was cut, or it stood still itself."""
    out = asked(*THREE, silent=range(ONSET, ONSET + 40))

    assert [one.cause for one in attribute(STEP, around(*stopped(0), *out))] == ["unknown"]


def test_of_three_brokers_with_six_only_those_are_said_to_be_silent_that_are_asked() -> None:
    leaders = [one for at in range(1, 7) for one in led(at, range(ONSET, ONSET + 22))]
    found = first(around(*stopped(22), *asked(*THREE, silent=range(ONSET, ONSET + 22)), *leaders))

    assert found.cause == "network"
    assert "All brokers that are asked stopped answering in one second" in found.evidence[0].text


def test_a_page_that_times_out_on_a_busy_host_is_no_broker_that_stands_still() -> None:
    """Nobody asked the broker itself; what reads its page has to wait for a processor as well."""
    cpu = channel("probe@b1|host_cpu_ratio", 0.3, 0.97)
    flushes = channel('probe@b1|fsync_latency_seconds{directory="/d",quantile="0.99"}', 2e-3, 2e-3)
    late = told("target_failed", ONSET + 1, target="b1", reason="b1: no complete answer within 2 s")
    busy = page("b1", range(ONSET, ONSET + 3))
    found = attribute(STEP, around(cpu, flushes, busy, events=late))

    assert [one.cause for one in found] == ["broker_cpu"]


# --- what clients alone can tell


def test_all_leaders_that_stop_in_one_second_are_no_single_broker_s_end() -> None:
    """Only one client is watched: its way was cut, or its host, or the whole cluster."""
    out = range(ONSET, ONSET + 60)
    leaders = [one for at in range(1, 7) for one in led(at, out)]
    failed = Series("produce.0@h|failed_messages", K, np.where(K == ONSET + 20, 900.0, 0.0))
    (found,) = attribute(OUTAGE, around(*counted(out, 1.0), *leaders, failed))
    texts = " ".join(one.text for one in found.evidence)

    assert found.cause == "unknown"
    assert "All 6 leaders stopped acknowledging in one second, at the onset, for 1 min" in texts
    assert "round trips to the brokers (probe round_trip)" in texts


def test_one_of_two_clients_that_all_leaders_stop_to_answer_lost_its_way() -> None:
    out = range(ONSET, ONSET + 60)
    cut = [one for at in (1, 2, 3) for one in led(at, out)]
    fine = [one for at in (1, 2, 3) for one in led(at, client="produce.1@h2")]
    both = (*counted(out, 1.0), *counted(range(0), 0.0, client="produce.1@h2"))
    (found,) = attribute(OUTAGE, around(*cut, *fine, *both))

    assert (found.cause, found.suspect) == ("network", "h")
    assert found.evidence[0].text == (
        "No leader acknowledged anything to produce.0@h for 1 min, beginning at the onset, while each did so "
        "to other clients."
    )


def test_of_leaders_that_all_wait_for_the_copies_of_one_the_one_that_stays_away_is_down() -> None:
    """With acks=all one broker's end stops all, until the cluster goes on without it."""
    out = range(ONSET, ONSET + 11)
    leaders = [one for at in (1, 2, 3) for one in led(at, range(ONSET, END) if at == 3 else out)]
    failed = Series("produce.0@h|failed_messages", K, np.where(K == ONSET + 9, 900.0, 0.0))
    found = first(around(*counted(out, 1.0), *leaders, failed))

    assert (found.cause, found.suspect) == ("broker_down", "b3:9092")
    assert not found.against


def test_pages_that_fall_silent_with_all_leaders_name_no_broker_either() -> None:
    out = range(ONSET, ONSET + 60)
    leaders = [one for at in (1, 2, 3) for one in led(at, out)]
    pages = [page(f"b{at}", out) for at in (1, 2, 3)]
    found = attribute(OUTAGE, around(*counted(out, 1.0), *leaders, *pages))

    assert [one.cause for one in found] == ["unknown"]


# --- what is no broker, or not the one that is silent

KMINION = channel('probe@h|kminion_end_to_end_messages_produced{target="kminion"}', 10.0, 10.0)
CATCHING_UP = np.where((K >= ONSET - 30) & (K < ONSET + 50), 12.0, 0.0)
AWAY = range(ONSET - 30, ONSET)


def addresses(*leaders: int) -> list[Series]:
    """Return where these leaders are, as their clients know it."""
    return [led(one)[1] for one in leaders]


@pytest.mark.parametrize(
    "others",
    [
        [page("b3:7071", range(ONSET - 3, ONSET))],
        [page("kminion", AWAY), KMINION],
        [page("b2:7071", AWAY), *addresses(2, 3)],
        [trips("b2:9092", AWAY), RECORDED, *addresses(2, 3)],
    ],
    ids=["a few seconds", "an exporter", "another page", "another broker"],
)
def test_copies_that_are_behind_are_not_caught_up_where_their_broker_was_not_away(
    others: list[Series],
) -> None:
    found = attribute(STEP, around(behind(CATCHING_UP), *others))

    assert "under_replicated" not in [one.cause for one in found]


def test_copies_that_are_behind_all_along_are_not_caught_up() -> None:
    found = attribute(STEP, around(behind(np.full(END, 12.0)), page("b3:7071", AWAY)))

    assert "under_replicated" not in [one.cause for one in found]


@pytest.mark.parametrize(
    ("others", "event"),
    [
        ([page("kminion", range(0)), KMINION], refused("kminion")),
        ([page("b1", range(0)), *addresses(1, 3)], refused("b1")),
        (
            [
                page("all", range(0)),
                Series('probe@h|up{instance="b1:9404",target="all"}', K, np.ones(END)),
            ],
            refused("all"),
        ),
        ([], told("probe_failed", ONSET + 1, probe="round_trip", reason="the login is refused")),
    ],
    ids=["an exporter", "another broker", "a server that scrapes", "a login"],
)
def test_only_a_broker_that_is_silent_is_gone_when_it_refuses_connections(
    others: list[Series], event: tuple[TimedEvent, ...]
) -> None:
    """A broker stands still meanwhile, and another process was gone."""
    silent = range(ONSET, ONSET + 45)
    late = told("target_failed", ONSET + 6, target="b3", reason="b3: no complete answer within 5 s")
    still = [trips("b1:9092"), trips("b3:9092", silent), page("b3", silent)]
    found = first(around(*stopped(11), *still, *others, events=(*late, *event)))

    assert (found.cause, found.suspect) == ("broker_pause", "b3:9092")


def test_brokers_that_are_all_cut_off_are_so_though_an_exporter_refuses_connections() -> None:
    silent = [trips(f"b{at}:9092", range(ONSET, ONSET + 22)) for at in (1, 2, 3)]
    exporter = [page("kminion", range(0)), KMINION]
    found = first(around(*stopped(22), *silent, *exporter, RECORDED, events=refused("kminion")))

    assert found.cause == "network"


def moved_leaders() -> tuple[TimedEvent, ...]:
    return told("leader_change", ONSET + 9, topic="soak-t", partition=1, epoch=3)


def test_an_exporter_that_is_silent_is_not_the_broker_that_is_down() -> None:
    """KMinion asks the brokers for each of its answers, so it gives none while one of them is away."""
    seen = [*stopped(30, 9_000.0), page("kminion", range(ONSET, ONSET + 40)), KMINION]
    found = first(around(*seen, events=moved_leaders()))

    assert (found.cause, found.suspect) == ("broker_down", "")


def test_a_collector_that_is_silent_is_no_broker_though_its_metrics_name_their_hosts() -> None:
    """One page has the metrics of several hosts, each with an instance of its own."""
    hosts = [
        channel(f'probe@h|node_load1{{instance="b{n}",target="collector"}}', 1.0, 1.0)
        for n in (1, 2)
    ]
    seen = [*stopped(30, 9_000.0), page("collector", range(ONSET, ONSET + 40)), *hosts]
    found = first(around(*seen, events=moved_leaders()))

    assert (found.cause, found.suspect) == ("broker_down", "")


def test_an_exporter_that_times_out_does_not_say_that_a_broker_is_there() -> None:
    """The broker was killed, and is back after 20 s; no page of it is read."""
    silent = range(ONSET, ONSET + 20)
    late = told(
        "target_failed", ONSET + 6, target="kminion", reason="no complete answer within 5 s"
    )
    trip = [trips("b1:9092"), trips("b3:9092", silent)]
    seen = [*stopped(11), *trip, page("kminion", silent), KMINION]
    found = first(around(*seen, events=(*late, *moved_leaders())))

    assert (found.cause, found.suspect) == ("broker_down", "b3:9092")


@pytest.mark.parametrize(("is_asked", "is_down"), [(True, False), (False, True)])
def test_a_page_that_is_silent_while_its_broker_answers_is_no_broker_s_end(
    *, is_asked: bool, is_down: bool
) -> None:
    """It has become too long to be read in time, and leaders move and copies fall behind meanwhile."""
    events = (*told("leader_change", ONSET + 1), *told("isr_shrink", ONSET + 5))
    seen = [page("b1:7071", range(ONSET, ONSET + 60)), *([trips("b1:9092")] if is_asked else [])]
    found = attribute(STEP, around(*seen, events=events))

    assert ("broker_down" in [one.cause for one in found]) is is_down


def test_a_bookie_that_is_silent_is_down_though_the_broker_beside_it_answers() -> None:
    """Both are on one host, each with a page of its own."""
    events = (*told("leader_change", ONSET + 1), *told("isr_shrink", ONSET + 5))
    name = 'probe@h|bookie_journal_JOURNAL_SYNC_count{target="b1:8000"}'
    seen = [page("b1:8000", range(ONSET, ONSET + 60)), trips("b1:6650"), channel(name, 90.0, 90.0)]
    found = attribute(STEP, around(*seen, events=events))

    assert "broker_down" in [one.cause for one in found]


@pytest.mark.parametrize(
    ("node_silent", "is_named"), [(range(0), True), (range(ONSET, ONSET + 45), False)]
)
def test_a_broker_does_not_stand_still_where_its_host_is_silent_as_well(
    node_silent: range, *, is_named: bool
) -> None:
    """Its packets are lost, or the whole host stands still: node_exporter there gives no answer either."""
    silent = range(ONSET, ONSET + 45)
    late = told(
        "target_failed", ONSET + 6, target="b3:7071", reason="no complete answer within 5 s"
    )
    pages = [page("b3:7071", silent), page("b3:9100", node_silent)]
    node = channel('probe@h|node_load1{target="b3:9100"}', 1.0, 1.0)
    seen = [*stopped(11), trips("b1:9092"), trips("b3:9092", silent), *pages, node]
    found = attribute(OUTAGE, around(*seen, events=late))

    assert ("broker_pause" in [one.cause for one in found]) is is_named


def test_a_broker_whose_page_tells_of_collections_does_not_stand_still_for_another_reason() -> None:
    """No log is read; they take six tenths of the time, and it answers nothing for nine seconds."""
    silent = range(ONSET, ONSET + 9)
    late = told(
        "target_failed", ONSET + 6, target="b3:7071", reason="no complete answer within 5 s"
    )
    name = 'probe@h|jvm_gc_collection_seconds{gc="G1 Old Generation",target="b3:7071"}'
    seen = [*stopped(9), trips("b1:9092"), trips("b3:9092", silent), page("b3:7071", silent)]
    found = attribute(OUTAGE, around(*seen, channel(name, 0.01, 0.6), events=late))

    assert [one.cause for one in found[:2]] == ["gc_pause", "broker_pause"]
