"""How safe an acknowledged message is on Redpanda: acks and write caching decide.

Source: Redpanda's documentation of producers and of topic properties. With acks=all a majority of
the copies (Raft) has flushed a message before it is acknowledged, unless write caching is on; with other
acks the leader answers from memory. min.insync.replicas has no part in it. No Redpanda was to be had
where this was written: the questions to the Admin API and the names of its properties never ran live.
"""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass
from http.client import HTTPException
from urllib.parse import urlsplit

from soak.brokers import _kafka_durability, _redpanda_admin
from soak.brokers._kafka_settings import Cluster, TopicSettings
from soak.brokers.redpanda import Config
from soak.core.durability import Durability, Setting, Told, majority, weakest
from soak.core.errors import BrokerError
from soak.core.plan import Topic
from soak.core.units import SECOND_NS
from soak.core.yaml_text import Place

TOPIC_PROPERTY = "write.caching"
CLUSTER_PROPERTY = "write_caching_default"
_DISABLED = "disabled"  # of the cluster: no topic may turn it on
_IS_FLUSHED = {"true": False, "false": True, _DISABLED: True}  # no other word counts as strong
_UNSEEN = "a node started with --unsafe-bypass-fsync flushes nothing, and no page tells of it"


@dataclass(frozen=True, slots=True)
class Read:
    """What decides on Redpanda, as it was read; `of_topic` is None where the topic has no say."""

    acks: Told
    copies: Told
    of_topic: Told | None
    of_cluster: Told


def read(config: Config, topic: Topic, written: Container[Place]) -> Durability:
    """Return what the topics of a plan promise; of several the weakest.

    Raises:
        BrokerError: no broker answers.
    """
    asked = _kafka_durability.ask(config, topic)
    acks, of_cluster = _kafka_durability.acks_of(config, written), _of_cluster(config)
    existing = [
        judged(Read(acks, _kafka_durability.copies_of(one), _of_topic(one, asked), of_cluster))
        for one in asked.topics
    ]
    planned = topic.settings.get(TOPIC_PROPERTY)
    of_plan = None if planned is None else Told(planned, "the plan's topic")
    copies = _kafka_durability.copies_of(topic)
    return weakest(existing or [judged(Read(acks, copies, of_plan, of_cluster))])


def judged(read: Read) -> Durability:
    """Return the level; a value that was not told leaves it open only where it matters."""
    copies = read.copies.number
    caching = _caching(read)
    if _kafka_durability.waits_for_every_copy(read.acks):
        confirmed = None if copies is None else majority(copies)
        is_flushed = _is_flushed(caching)
    else:
        confirmed = 0 if read.acks.value == "0" else 1
        is_flushed = False
    change = "" if _is_flushed(caching) else f"{TOPIC_PROPERTY}: false"
    return Durability(
        "redpanda",
        copies,
        confirmed,
        is_flushed,
        (
            _kafka_durability.acks_setting(read.acks, ("replication", "local")),
            _kafka_durability.copies_setting(read.copies),
            Setting(TOPIC_PROPERTY, caching, ("local",), change),
        ),
        (_UNSEEN,),
    )


def _caching(read: Read) -> Told:
    """Return what applies: what the topic says, unless the cluster forbids it, else the cluster's word."""
    topic, cluster = read.of_topic, read.of_cluster
    if topic is None or cluster.value == _DISABLED:
        return cluster
    if _is_flushed(topic) is False and _is_flushed(cluster) is None:
        unknown = f"says true, and whether the cluster forbids it is unknown: {cluster.where}"
        return Told(None, f"{topic.where} {unknown}")
    return topic


def _is_flushed(caching: Told) -> bool | None:
    """Return whether an acknowledgement waits for the flush, None where that is not known."""
    return _IS_FLUSHED.get((caching.value or "").lower())


def _of_topic(topic: TopicSettings, cluster: Cluster) -> Told | None:
    why = cluster.silence_of(topic)
    if why:
        return Told(None, why)
    for values, where in ((topic.own, ""), (topic.whole, ", as the cluster has it")):
        if TOPIC_PROPERTY in values:
            return Told(values[TOPIC_PROPERTY].lower(), f"topic {topic.name}{where}")
    return None


def _of_cluster(config: Config) -> Told:
    """Ask the Admin API, which listens where the metrics pages are."""
    if not config.metrics_urls:
        return Told(None, "metrics_urls names no node whose Admin API could be asked")
    page = urlsplit(config.metrics_urls[0])
    url = f"{page.scheme}://{page.netloc}/v1/cluster_config"
    try:
        answer = _redpanda_admin.ask(url, config.common, config.timeout / SECOND_NS)
        value = json.loads(answer)[CLUSTER_PROPERTY]
    except (OSError, HTTPException, ValueError, KeyError, TypeError, BrokerError) as error:
        return Told(None, f"{url} does not tell: {error}")
    if value is None:
        return Told(None, f"{url} does not tell: {CLUSTER_PROPERTY} is null")
    return Told(str(value).lower(), f"{CLUSTER_PROPERTY} of the cluster")
