"""How safe an acknowledged message is on Pulsar: quorums of the topic, journals of the bookies.

Sources: Pulsar's documentation of persistence policies (a topic's, else its namespace's, else the
broker's; a broker acknowledges when the acknowledgement quorum of bookies has answered) and BookKeeper's
ServerConfiguration: a bookie answers after its journal is on disk when journalWriteData and
journalSyncData are on, as both are by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from soak.brokers.pulsar.client import Config
from soak.brokers.pulsar.topics import POLICIES_OFF
from soak.clients.pulsar_admin import NOT_FOUND, Admin, RefusedError, topic_path
from soak.core.cluster.durability import Durability, Setting, SettingValue, majority, weakest
from soak.core.errors import BrokerError
from soak.core.plan.plan import Topic

WANTED_COPIES = 3
BROKER_SETTINGS = "/admin/v2/brokers/configuration/runtime"
_BOOKIE_SETTINGS = "/api/v1/config/server_config"  # without those that have their default


@dataclass(frozen=True, slots=True)
class DurabilitySettings:
    """The settings that decide about durability on Pulsar."""

    write_quorum: SettingValue
    ack_quorum: SettingValue
    writes_journal: SettingValue
    syncs_journal: SettingValue
    deduplication: SettingValue


def read_durability(config: Config, topic: Topic) -> Durability:
    """Return the durability of a plan's topics; of several the weakest.

    A topic that does not exist yet has the settings that the plan would give it.

    Raises:
        BrokerError: the admin interface does not answer.
    """
    names = topic.names if topic.use_existing else topic.names[:1]
    admin = config.admin()
    broker = get_mapping(admin, BROKER_SETTINGS)
    journals = _journals(config, admin)

    def judge(name: str) -> Durability:
        quorums = _quorums(admin, name, topic, broker)
        deduplication = _deduplication(admin, name, topic, broker)
        return durability_of(DurabilitySettings(*quorums, *journals, deduplication))

    return weakest([judge(config.full_name(name)) for name in names])


def durability_of(read: DurabilitySettings) -> Durability:
    """Return the level; an unknown value leaves it open only where it matters."""
    copies, confirmed = read.write_quorum.number, read.ack_quorum.number
    needed = majority(max(copies or WANTED_COPIES, WANTED_COPIES))
    journal = (read.writes_journal.value, read.syncs_journal.value)
    is_flushed = False if "false" in journal else None if None in journal else True
    is_replicated = copies is not None and copies > 1
    is_majority = confirmed is not None and confirmed >= needed
    return Durability(
        "pulsar",
        copies,
        confirmed,
        is_flushed,
        (
            Setting(
                "bookkeeperWriteQuorum",
                read.write_quorum,
                ("replication",),
                "" if is_replicated else f"replication: {WANTED_COPIES}",
            ),
            Setting(
                "bookkeeperAckQuorum",
                read.ack_quorum,
                ("replication",),
                "" if is_majority else f"bookkeeperAckQuorum: {needed}",
            ),
            _journal_setting("journalWriteData", read.writes_journal),
            _journal_setting("journalSyncData", read.syncs_journal),
            Setting("deduplicationEnabled", read.deduplication, ()),
        ),
    )


def _journal_setting(name: str, value: SettingValue) -> Setting:
    return Setting(name, value, ("local",), "" if value.value == "true" else f"{name}: true")


def _quorums(
    admin: Admin, name: str, topic: Topic, broker: Mapping[str, Any]
) -> tuple[SettingValue, SettingValue]:
    """Return the write and the acknowledgement quorum of a topic with this full name."""
    if not topic.name:  # the run creates it
        return _planned(topic)
    try:
        policy, where = _policy(admin, name)
    except RefusedError as error:
        if error.status == NOT_FOUND:
            return _planned(topic)
        unknown = SettingValue(None, f"{name}: {error}")
        return unknown, unknown
    if not policy:
        where = "the broker's configuration"
        policy = {
            f"bookkeeper{kind}Quorum": broker.get(f"managedLedgerDefault{kind}Quorum")
            for kind in ("Write", "Ack")
        }
    write, ack = policy.get("bookkeeperWriteQuorum"), policy.get("bookkeeperAckQuorum")
    return _known(write, where), _known(ack, where)


def _policy(admin: Admin, name: str) -> tuple[Mapping[str, Any], str]:
    """Return the policy of a topic, or else of its namespace, and which of them it is.

    Raises:
        RefusedError: there is no such topic, or the cluster refuses to answer.
    """
    try:
        of_topic = admin.get(f"{topic_path(name)}/persistence?applied=true")
    except RefusedError as error:
        if error.status not in POLICIES_OFF:
            raise
        of_topic = None
    if isinstance(of_topic, dict):
        return of_topic, f"topic {name}"
    namespace = name.removeprefix("persistent://").rpartition("/")[0]
    of_namespace = admin.get(f"/admin/v2/namespaces/{namespace}/persistence")
    return of_namespace if isinstance(of_namespace, dict) else {}, f"namespace {namespace}"


def _planned(topic: Topic) -> tuple[SettingValue, SettingValue]:
    """Return the quorums of a topic that the plan would create, as `topics.create_topic` does."""
    copies = topic.replication
    return (
        SettingValue(topic.settings.get("bookkeeperWriteQuorum", str(copies)), "the plan's topic"),
        SettingValue(
            topic.settings.get("bookkeeperAckQuorum", str(majority(copies))), "the plan's topic"
        ),
    )


def _deduplication(
    admin: Admin, name: str, topic: Topic, broker: Mapping[str, Any]
) -> SettingValue:
    planned = topic.settings.get("deduplicationEnabled")
    if topic.name:
        try:
            of_topic = admin.get(f"{topic_path(name)}/deduplicationEnabled?applied=true")
        except RefusedError as error:
            if error.status not in {NOT_FOUND, *POLICIES_OFF}:
                return SettingValue(None, f"{name}: {error}")
        else:
            if isinstance(of_topic, bool):
                return _known(of_topic, f"topic {name}")
            planned = None  # the topic exists, without a policy
    if planned is not None:
        return SettingValue(planned, "the plan's topic")
    return _known(broker.get("brokerDeduplicationEnabled"), "the broker's configuration")


def _journals(config: Config, admin: Admin) -> tuple[SettingValue, SettingValue]:
    """Return journalWriteData and journalSyncData as the weakest bookie has them."""
    urls = {url.strip().rstrip("/") for url in config.bookie_urls.split(",")} - {""}
    if not urls:
        unknown = SettingValue(None, "bookie_urls names no bookie")
        return unknown, unknown
    pages: dict[str, Mapping[str, Any]] = {}
    reason = ""
    for url in sorted(urls):
        try:
            page = config.bookie_page(url).get(_BOOKIE_SETTINGS)
        except BrokerError as error:
            reason = f"bookie {url} does not answer: {error}"
            continue
        if isinstance(page, dict):
            pages[url] = page
        else:
            reason = f"{url} is not the page of a bookie"
    bookies = get_mapping(admin, "/admin/v2/bookies/all").get("bookies")
    if not bookies:
        reason = "the cluster does not tell how many bookies it has"
    elif len(bookies) > len(urls):
        reason = f"{len(urls)} of {len(bookies)} bookies are in bookie_urls"
    return _weakest("journalWriteData", pages, reason), _weakest("journalSyncData", pages, reason)


def _weakest(name: str, pages: Mapping[str, Mapping[str, Any]], reason: str) -> SettingValue:
    """Return "false" when one bookie has it so; else unknown if there is a `reason` for that."""
    for url, page in pages.items():
        if str(page.get(name, "true")) != "true":
            return SettingValue("false", f"bookie {url}")
    return SettingValue(None, reason) if reason else SettingValue("true", "every bookie")


def get_mapping(admin: Admin, path: str) -> Mapping[str, Any]:
    """Return an answer of the admin interface; {} when it refuses, or answers with something else."""
    try:
        found = admin.get(path)
    except RefusedError:
        return {}
    return found if isinstance(found, dict) else {}


def _known(value: object, where: str) -> SettingValue:
    if value is None:
        return SettingValue(None, f"{where} does not tell")
    return SettingValue(str(value).lower(), where)
