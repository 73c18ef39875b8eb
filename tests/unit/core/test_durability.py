"""Levels from settings: tables from the definition, and what must hold for every combination."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.app import guarantees
from soak.brokers import redpanda
from soak.brokers.kafka import config as kafka_config
from soak.brokers.kafka import durability as kafka_durability
from soak.brokers.kafka import topics
from soak.brokers.kafka.topics import ClusterSettings, TopicSettings
from soak.brokers.pulsar import durability as pulsar_durability
from soak.core.cluster import durability
from soak.core.cluster.durability import Durability, SettingValue
from soak.core.plan import text

NEVER = str(2**63 - 1)


def known(text: str | None) -> SettingValue:
    return SettingValue(text, "the test")


def on_kafka(acks: str, copies: int, least: str | None, flush: str | None) -> Durability:
    read = kafka_durability.DurabilitySettings(
        known(acks), known(str(copies)), known(least), known(flush), known(NEVER), known("false")
    )
    return kafka_durability.durability_of(read)


def on_redpanda(acks: str, copies: int, of_topic: str | None, of_cluster: str | None) -> Durability:
    topic = None if of_topic is None else known(of_topic)
    read = redpanda.DurabilitySettings(known(acks), known(str(copies)), topic, known(of_cluster))
    return redpanda.durability_of(read)


def on_pulsar(write: int, ack: int, writes: str | None, syncs: str | None) -> Durability:
    read = pulsar_durability.DurabilitySettings(
        known(str(write)), known(str(ack)), known(writes), known(syncs), known("false")
    )
    return pulsar_durability.durability_of(read)


@pytest.mark.parametrize(
    ("acks", "copies", "least", "flush", "level"),
    [
        ("all", 3, "2", "1", 4),
        ("all", 3, "3", "0", 4),
        ("all", 3, "2", NEVER, 3),
        ("all", 3, "2", "2", 3),
        ("all", 2, "2", NEVER, 3),
        ("all", 5, "3", NEVER, 3),
        ("all", 5, "2", NEVER, 1),
        ("all", 3, "1", NEVER, 1),
        ("all", 2, "1", "1", 2),
        ("all", 1, "1", "1", 2),
        ("all", 1, "2", "1", 2),
        ("1", 3, "2", "1", 1),
        ("1", 2, "2", "1", 1),
        ("1", 1, "1", "1", 2),
        ("1", 3, "2", NEVER, 1),
        ("0", 3, "2", "1", 1),
    ],
)
def test_the_level_of_kafka(acks: str, copies: int, least: str, flush: str, level: int) -> None:
    assert on_kafka(acks, copies, least, flush).level == level


@pytest.mark.parametrize(
    ("brokers", "copies", "least"),
    [
        (0, "replication: 3", "min.insync.replicas: 2"),
        (1, "", ""),
        (2, "replication: 2", "min.insync.replicas: 2"),
        (5, "replication: 3", "min.insync.replicas: 2"),
    ],
)
def test_no_more_copies_are_proposed_than_there_are_brokers(
    brokers: int, copies: str, least: str
) -> None:
    """Of a cluster whose size is unknown, those of production."""
    values = ["all", "1", "1", NEVER, NEVER, "false"]
    read = kafka_durability.DurabilitySettings(*map(known, values), brokers=brokers)

    change = {one.name: one.change for one in kafka_durability.durability_of(read).settings}

    assert (change["replication factor"], change["min.insync.replicas"]) == (copies, least)


def test_what_the_leader_alone_has_flushed_is_not_sure_to_stay_on_its_disk() -> None:
    """A follower that has yet to fetch it may lead, and no drive has died: the words and a note say so."""
    found = on_kafka("1", 3, "2", "1")

    assert durability.local_reason(found) == (
        "a message is acknowledged before it is sure to be on disk"
    )
    assert any("truncates them from its log" in note for note in found.notes)
    assert not {one.name: one.change for one in found.settings}["flush.messages"]
    assert not on_kafka("1", 1, "1", "1").notes


@pytest.mark.parametrize(
    ("acks", "copies", "of_topic", "of_cluster", "level"),
    [
        ("all", 3, None, "false", 4),
        ("all", 3, "false", "true", 4),
        ("all", 3, "true", "disabled", 4),
        ("all", 3, "true", "false", 3),
        ("all", 3, None, "true", 3),
        ("all", 1, None, "false", 2),
        ("all", 1, "true", "false", 1),
        ("1", 3, None, "false", 1),
        ("0", 3, None, "false", 1),
    ],
)
def test_the_level_of_redpanda(
    acks: str, copies: int, of_topic: str | None, of_cluster: str, level: int
) -> None:
    assert on_redpanda(acks, copies, of_topic, of_cluster).level == level


@pytest.mark.parametrize(
    ("of_topic", "of_cluster", "lowest", "highest"),
    [
        (None, None, 3, 4),
        (None, "none", 3, 4),
        (None, "on", 3, 4),
        ("on", "false", 3, 4),
        ("on", "disabled", 4, 4),
        ("TRUE", "false", 3, 3),
        ("true", None, 3, 4),
        ("true", "on", 3, 4),
        ("false", None, 4, 4),
    ],
)
def test_write_caching_that_is_not_known_leaves_a_range_where_it_matters(
    of_topic: str | None, of_cluster: str | None, lowest: int, highest: int
) -> None:
    """An unknown value is not `false`, and a cluster without a known default may override a topic's."""
    found = on_redpanda("all", 3, of_topic, of_cluster)

    assert (found.lowest, found.highest) == (lowest, highest)


def test_whose_word_is_missing_stands_beside_what_the_topic_says() -> None:
    caching = on_redpanda("all", 3, "true", None).settings[-1]

    assert caching.value_read == SettingValue(
        None, "the test says true, and whether the cluster forbids it is unknown: the test"
    )


@pytest.mark.parametrize(
    ("write", "ack", "writes", "syncs", "lowest", "highest"),
    [
        (3, 2, "true", "true", 4, 4),
        (3, 3, "true", "false", 3, 3),
        (3, 2, "false", "true", 3, 3),
        (2, 2, "true", None, 3, 4),
        (3, 2, None, "false", 3, 3),
        (3, 1, "true", "true", 2, 2),
        (1, 1, "true", "true", 2, 2),
        (1, 1, None, None, 1, 2),
        (4, 2, "false", "false", 1, 1),
    ],
)
def test_the_level_of_pulsar(
    write: int, ack: int, writes: str | None, syncs: str | None, lowest: int, highest: int
) -> None:
    found = on_pulsar(write, ack, writes, syncs)

    assert (found.lowest, found.highest) == (lowest, highest)


ACKS = ["0", "1", "all"]  # each list from weak to strong
LEAST = ["1", "2", "3"]
FLUSH = [NEVER, "10", "1"]
CACHING = ["true", "false"]
QUORUM = ["1", "2", "3"]
JOURNAL = ["false", "true"]


@given(st.data(), st.integers(1, 5))
def test_a_stronger_setting_of_kafka_never_lowers_the_level(
    data: st.DataObject, copies: int
) -> None:
    weak, strong = _ordered_pairs(data, (ACKS, LEAST, FLUSH))

    weaker, stronger = (
        on_kafka(weak[0], copies, *weak[1:]),
        on_kafka(strong[0], copies, *strong[1:]),
    )

    assert weaker.lowest <= stronger.lowest
    assert weaker.highest <= stronger.highest


@given(st.data(), st.integers(1, 5))
def test_a_stronger_setting_of_redpanda_never_lowers_the_level(
    data: st.DataObject, copies: int
) -> None:
    weak, strong = _ordered_pairs(data, (ACKS, CACHING))

    assert on_redpanda(weak[0], copies, None, weak[1]).lowest <= (
        on_redpanda(strong[0], copies, None, strong[1]).lowest
    )


@given(st.data(), st.integers(3, 5))
def test_a_stronger_setting_of_pulsar_never_lowers_the_level(
    data: st.DataObject, write: int
) -> None:
    weak, strong = _ordered_pairs(data, (QUORUM, JOURNAL, JOURNAL))

    assert on_pulsar(write, int(weak[0]), *weak[1:]).lowest <= (
        on_pulsar(write, int(strong[0]), *strong[1:]).lowest
    )


@pytest.mark.long
@given(
    st.sampled_from(ACKS),
    st.integers(1, 5),
    st.sampled_from(LEAST),
    st.sampled_from(FLUSH),
    st.data(),
)
def test_an_unknown_setting_leaves_its_level_in_the_range(
    acks: str, copies: int, least: str, flush: str, data: st.DataObject
) -> None:
    """The range holds the level that is found when the setting is known."""
    hidden = data.draw(st.sets(st.sampled_from(["least", "flush"])))
    whole = on_kafka(acks, copies, least, flush)
    seen = on_kafka(
        acks, copies, None if "least" in hidden else least, None if "flush" in hidden else flush
    )

    assert seen.lowest <= whole.lowest <= seen.highest


@pytest.mark.parametrize("copies", [None, 1, 2, 3])
@pytest.mark.parametrize("confirmed", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("is_flushed", [None, False, True])
def test_every_level_has_its_words(
    copies: int | None, confirmed: int | None, *, is_flushed: bool | None
) -> None:
    found = Durability("any", copies, confirmed, is_flushed)

    assert 1 <= found.lowest <= found.highest <= 4
    assert (found.level is None) == ("unknown" in {found.replication, found.local})
    assert durability.replication_reason(found)
    assert durability.local_reason(found)


def test_a_full_answer_names_what_decides_and_what_would_change_it() -> None:
    found = durability.to_json(on_kafka("all", 3, "1", "1"))

    assert (found["level"], found["replication"], found["local"]) == (
        2,
        {
            "state": "async",
            "reason": "an acknowledged message is sure to be on 1 of 3 copies, a majority is 2",
        },
        {"state": "sync", "reason": "a message is acknowledged after it is flushed to disk"},
    )
    settings = found["settings"]
    assert isinstance(settings, list)
    assert settings[2] == {
        "name": "min.insync.replicas",
        "value": "1",
        "where": "the test",
        "decides": ["replication"],
        "change": "min.insync.replicas: 2",
    }
    assert len(str(found["notes"])) > 2  # why acks=all alone guarantees nothing


@pytest.mark.parametrize(
    ("found", "axes"),
    [
        (on_kafka("1", 1, "1", NEVER), ["replication"]),
        (on_kafka("all", 1, "1", NEVER), ["replication"]),
        (on_kafka("1", 3, "2", "1"), ["replication", "local"]),
        (on_kafka("0", 1, "1", "1"), ["replication", "local"]),
        (on_redpanda("1", 1, None, "false"), ["replication", "local"]),
    ],
    ids=["its one copy", "the same, all", "a leader of several", "none", "redpanda"],
)
def test_acks_decide_the_local_side_only_where_they_have_a_part_in_it(
    found: Durability, axes: list[str]
) -> None:
    """On Kafka a topic of one copy is flushed or not whatever acks is, unless there is no acknowledgement."""
    settings = durability.to_json(found)["settings"]

    assert isinstance(settings, list)
    assert (settings[0]["name"], settings[0]["decides"]) == ("acks", axes)


@pytest.mark.parametrize(
    ("one", "other", "may", "word"),
    [
        (on_kafka("all", 3, "2", "1"), on_redpanda("all", 3, None, "false"), True, "comparable: a"),
        (on_kafka("all", 3, "2", NEVER), on_redpanda("all", 3, None, "false"), False, "different"),
        (on_kafka("all", 3, "2", None), on_kafka("all", 3, "2", None), False, "could not be read"),
    ],
)
def test_targets_are_compared_at_one_level_only(
    one: Durability, other: Durability, *, may: bool, word: str
) -> None:
    is_comparable, because = durability.comparability(("a", one), ("b", other))

    assert is_comparable is may
    assert word in because


def test_of_several_topics_the_weakest_speaks() -> None:
    weak, strong = on_kafka("all", 3, "1", NEVER), on_kafka("all", 3, "2", NEVER)

    assert durability.weakest([strong, weak]) is weak


@pytest.mark.parametrize(
    ("producer", "common", "value"),
    [
        ({"acks": "1"}, {}, "1"),
        ({"request.required.acks": "0"}, {"acks": "all"}, "0"),
        ({}, {"acks": "1"}, "1"),
        ({"linger.ms": "1"}, {}, "all"),
        ({"acks": "ALL"}, {}, "all"),
        ({"acks": "-1"}, {}, "all"),
        ({}, {"request.required.acks": "All"}, "all"),
    ],
)
def test_acks_are_found_under_both_names_in_one_spelling(
    producer: dict[str, str], common: dict[str, str], value: str
) -> None:
    config = kafka_config.Config(producer=producer, common=common)

    assert kafka_durability.acks_of(config, ()).value == value


@pytest.mark.parametrize(
    ("section", "where"),
    [
        ("kafka:", "soakd's default"),
        ("kafka: {producer: {linger.ms: 5}}", "soakd's default"),
        ("kafka: {producer: {acks: all}}", "the plan's producer"),
        ("kafka: {producer: {request.required.acks: 1}}", "the plan's producer"),
        ("kafka: {common: {acks: 1}}", "the plan's common"),
        ("redpanda: {bootstrap_servers: 'r:9092'}", "soakd's default"),
    ],
)
def test_acks_name_the_place_that_sets_them(section: str, where: str) -> None:
    """A plan's configuration names every default as if it were the plan's; its text does not."""
    loaded = text.load(f"name: x\nbroker:\n  {section}\n", "plan.yaml")

    keys = guarantees.keys_of_broker(loaded.plan, loaded.document)

    assert kafka_durability.acks_of(loaded.plan.broker_config, keys).where == where


@pytest.mark.parametrize("acks", ["all", "ALL", "-1"])
def test_who_waits_for_all_is_idempotent_however_that_is_spelt(acks: str) -> None:
    """The client takes these three for one."""
    for config in (
        kafka_config.Config(producer={"acks": acks}),
        kafka_config.Config(common={"acks": acks}),
    ):
        assert config.producer["enable.idempotence"] == "true"


@pytest.mark.parametrize("name", ["linger.ms", "queue.buffering.max.ms"])
def test_how_long_a_batch_waits_is_found_under_both_names(name: str) -> None:
    for config in (
        kafka_config.Config(producer={name: "50"}),
        kafka_config.Config(common={name: "50"}),
    ):
        found = config.common | config.producer
        assert {found.get("linger.ms"), found.get("queue.buffering.max.ms")} == {None, "50"}


@pytest.mark.parametrize(
    ("value", "is_noted"),
    [("true", True), ("TRUE", True), ("false, true", True), ("false", False), (None, False)],
)
def test_unclean_elections_are_noted_where_any_broker_has_them_on(
    value: str | None, *, is_noted: bool
) -> None:
    read = kafka_durability.DurabilitySettings(
        known("all"), known("3"), known("2"), known("1"), known(NEVER), known(value)
    )

    notes = kafka_durability.durability_of(read).notes

    assert any("unclean" in note for note in notes) is is_noted


def _cluster(*flushes: str | None) -> ClusterSettings:
    brokers = {
        number: {} if flush is None else {"log.flush.interval.messages": flush}
        for number, flush in enumerate(flushes, 1)
    }
    return ClusterSettings((), brokers, {"broker 2": "broker 2 does not tell: forbidden"})


def test_of_several_brokers_the_weakest_speaks_and_a_silent_one_leaves_it_open() -> None:
    name = "log.flush.interval.messages"

    alike = topics.weakest_broker_number(_cluster("1", "1"), name, max)
    unlike = topics.weakest_broker_number(_cluster("1", NEVER), name, max)
    silent = topics.weakest_broker_number(_cluster("1", None), name, max)

    assert alike == SettingValue("1", f"{name} of every broker")
    assert unlike == SettingValue(NEVER, f"{name} of broker 2, the weakest")
    assert silent == SettingValue(None, "broker 2 does not tell: forbidden")


def test_what_was_set_for_a_topic_goes_before_what_the_brokers_have() -> None:
    topic = TopicSettings("t", 3, {"flush.messages": "1"}, {"min.insync.replicas": "1"})

    read = kafka_durability.settings_of_topic(known("all"), topic, _cluster("5", None))

    assert read.flush_messages == SettingValue("1", "topic t")
    assert read.least_in_sync == SettingValue("1", "topic t, as one broker has it")
    assert read.copies == SettingValue("3", "topic t")


@pytest.mark.parametrize(
    ("whole", "brokers", "lowest", "highest"),
    [
        ({"min.insync.replicas": "2", "flush.messages": "1"}, 3, 1, 4),
        ({"min.insync.replicas": "2", "flush.messages": NEVER}, 3, 1, 3),
        ({"min.insync.replicas": "1", "flush.messages": "1"}, 3, 1, 2),
        ({"min.insync.replicas": "2", "flush.messages": "1"}, 1, 2, 2),
    ],
    ids=["strong", "never flushed", "one in sync", "there is no other"],
)
def test_one_broker_s_word_shows_weakness_alone_where_others_do_not_tell(
    whole: dict[str, str], brokers: int, lowest: int, highest: int
) -> None:
    """Brokers may have different settings, and each answers for the partitions that it leads."""
    topic = TopicSettings("t", brokers, {}, whole)
    cluster = ClusterSettings((topic,), {number: {} for number in range(brokers)}, {})

    found = kafka_durability.durability_of(
        kafka_durability.settings_of_topic(known("all"), topic, cluster)
    )

    assert (found.lowest, found.highest) == (lowest, highest)


def test_of_a_topic_that_does_not_tell_nothing_counts_as_strong() -> None:
    """Brokers with strong defaults say nothing of what was set for the topic itself."""
    why = "topic t does not tell: not authorized"
    brokers = {1: {"min.insync.replicas": "2", "log.flush.interval.messages": "1"}}
    topic = TopicSettings("t", 3, {}, {})
    cluster = ClusterSettings((topic,), brokers, {"topic t": why})

    read = kafka_durability.settings_of_topic(known("all"), topic, cluster)
    found = kafka_durability.durability_of(read)
    caching = redpanda.topic_caching(topic, cluster)

    assert (read.least_in_sync, read.flush_messages) == (
        SettingValue(None, why),
        SettingValue(None, why),
    )
    assert (found.lowest, found.highest) == (1, 4)
    assert caching == SettingValue(None, why)


def test_a_value_is_shown_as_people_read_it() -> None:
    assert [durability.value_text(value) for value in (None, NEVER, "2")] == [
        "unknown",
        "never",
        "2",
    ]


def test_a_topic_that_stores_nothing_has_level_1() -> None:
    found = Durability("pulsar", 0, 0, is_flushed=False)

    assert found.level == 1
    assert durability.replication_reason(found) == "nothing is stored"


def _ordered_pairs(
    data: st.DataObject, scales: tuple[list[str], ...]
) -> tuple[list[str], list[str]]:
    """Return two settings of each scale, of which the second is at least as strong as the first."""
    drawn = [
        sorted(
            (data.draw(st.sampled_from(scale)), data.draw(st.sampled_from(scale))), key=scale.index
        )
        for scale in scales
    ]
    return [pair[0] for pair in drawn], [pair[1] for pair in drawn]
