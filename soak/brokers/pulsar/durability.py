"""How safe an acknowledged message is on Pulsar: quorums of the topic, journals of the bookies.

Sources: Pulsar's documentation of persistence policies (a topic's, else its namespace's, else the
broker's; a broker acknowledges when the acknowledgement quorum of bookies has answered) and BookKeeper's
ServerConfiguration: a bookie answers after its journal is on disk when journalWriteData and
journalSyncData are on, as both are unless it was told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

from soak.brokers.pulsar import broker as pulsar
from soak.clients.pulsar_admin import NOT_FOUND, Admin, RefusedError, topic_path
from soak.core.clock import SystemClock
from soak.core.cluster.durability import Durability, Setting, SettingValue, majority, weakest
from soak.core.errors import BrokerError
from soak.core.plan.plan import Topic
from soak.core.plan.text import KeyPath

WANTED_COPIES = 3
_STORED = "persistent://"
_WITHOUT_TOPIC_POLICIES = (405, 412)  # what a cluster says that has them switched off
_BROKER = "/admin/v2/brokers/configuration/runtime"
_BOOKIE = "/api/v1/config/server_config"  # what was set on a bookie; what was not has its default


@dataclass(frozen=True, slots=True)
class DurabilitySettings:
    """What decides on Pulsar, as it was read."""

    write_quorum: SettingValue
    ack_quorum: SettingValue
    writes_journal: SettingValue
    syncs_journal: SettingValue
    deduplication: SettingValue


def read_durability(
    config: pulsar.Config, topic: Topic, _written: Container[KeyPath] = ()
) -> Durability:
    """Return what the topics of a plan promise; of several the weakest.

    A topic that does not exist yet is judged as the plan would make it.

    Raises:
        BrokerError: the admin interface does not answer.
    """
    names = topic.names if topic.use_existing else topic.names[:1]
    full = [name if "://" in name else f"{_STORED}{config.namespace}/{name}" for name in names]
    connected = pulsar.connect(config, SystemClock())
    admin = connected._admin()  # noqa: SLF001  # with token and TLS
    broker = _get_mapping(admin, _BROKER)
    journals = _journals(config.bookie_urls, connected._page_at, admin)  # noqa: SLF001  # with TLS
    return weakest(
        [
            durability_of(
                DurabilitySettings(
                    *_quorums(admin, name, topic, broker),
                    *journals,
                    _dedup(admin, name, topic, broker),
                )
            )
            for name in full
        ]
    )


def durability_of(read: DurabilitySettings) -> Durability:
    """Return the level; a value that was not told leaves it open only where it matters."""
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
            _of_journal("journalWriteData", read.writes_journal),
            _of_journal("journalSyncData", read.syncs_journal),
            Setting("deduplicationEnabled", read.deduplication, ()),
        ),
    )


def _of_journal(name: str, told: SettingValue) -> Setting:
    return Setting(name, told, ("local",), "" if told.value == "true" else f"{name}: true")


def _quorums(
    admin: Admin, name: str, topic: Topic, broker: Mapping[str, Any]
) -> tuple[SettingValue, SettingValue]:
    """Return write and acknowledgement quorum of a topic, named in full."""
    if not topic.name:  # the run gives it one
        return _planned(topic)
    try:
        policy, where = _policy(admin, name)
    except RefusedError as error:
        if error.status == NOT_FOUND:
            return _planned(topic)
        why = SettingValue(None, f"{name}: {error}")
        return why, why
    if not policy:
        where = "the broker's configuration"
        policy = {
            f"bookkeeper{kind}Quorum": broker.get(f"managedLedgerDefault{kind}Quorum")
            for kind in ("Write", "Ack")
        }
    write, ack = policy.get("bookkeeperWriteQuorum"), policy.get("bookkeeperAckQuorum")
    return _known(write, where), _known(ack, where)


def _policy(admin: Admin, name: str) -> tuple[Mapping[str, Any], str]:
    """Return what is set for a topic or else for its namespace, and which of them it was.

    Raises:
        RefusedError: there is no such topic, or the cluster does not tell us.
    """
    try:
        of_topic = admin.get(f"{topic_path(name)}/persistence?applied=true")
    except RefusedError as error:
        if error.status not in _WITHOUT_TOPIC_POLICIES:
            raise
        of_topic = None
    if isinstance(of_topic, dict):
        return of_topic, f"topic {name}"
    namespace = _namespace(name)
    of_namespace = admin.get(f"/admin/v2/namespaces/{namespace}/persistence")
    return of_namespace if isinstance(of_namespace, dict) else {}, f"namespace {namespace}"


def _planned(topic: Topic) -> tuple[SettingValue, SettingValue]:
    """Return the quorums of a topic that the plan would make, as `_pulsar_topics` makes it."""
    copies = topic.replication
    return (
        SettingValue(topic.settings.get("bookkeeperWriteQuorum", str(copies)), "the plan's topic"),
        SettingValue(
            topic.settings.get("bookkeeperAckQuorum", str(majority(copies))), "the plan's topic"
        ),
    )


def _dedup(admin: Admin, name: str, topic: Topic, broker: Mapping[str, Any]) -> SettingValue:
    planned = topic.settings.get("deduplicationEnabled")
    found: object = None
    try:
        if topic.name:
            found = admin.get(f"{topic_path(name)}/deduplicationEnabled?applied=true")
            planned = None  # it is there, and its own
    except RefusedError as error:
        if error.status not in {NOT_FOUND, *_WITHOUT_TOPIC_POLICIES}:
            return SettingValue(None, f"{name}: {error}")
    if isinstance(found, bool):
        return _known(found, f"topic {name}")
    if planned is not None:
        return SettingValue(planned, "the plan's topic")
    return _known(broker.get("brokerDeduplicationEnabled"), "the broker's configuration")


def _journals(
    bookie_urls: str, page_at: Callable[[str], Admin], admin: Admin
) -> tuple[SettingValue, SettingValue]:
    """Return journalWriteData and journalSyncData as the weakest bookie has them."""
    urls = {url.strip().rstrip("/") for url in bookie_urls.split(",")} - {""}
    if not urls:
        why = SettingValue(None, "bookie_urls names no bookie that could be asked")
        return why, why
    pages: dict[str, Mapping[str, Any]] = {}
    silent = ""
    for url in sorted(urls):
        try:
            page = page_at(url).get(_BOOKIE)
        except BrokerError as error:
            silent = f"bookie {url} does not tell: {error}"
            continue
        if isinstance(page, dict):
            pages[url] = page
        else:
            silent = f"{url} is no bookie's page"
    there = _get_mapping(admin, "/admin/v2/bookies/all").get("bookies")
    if there is None:
        silent = "the cluster does not tell how many bookies it has"
    elif len(there) > len(urls):
        silent = f"{len(urls)} of {len(there)} bookies are in bookie_urls"
    return _weakest("journalWriteData", pages, silent), _weakest("journalSyncData", pages, silent)


def _weakest(name: str, pages: Mapping[str, Mapping[str, Any]], silent: str) -> SettingValue:
    """Return "false" when one bookie has it so; else what is known when `silent` gives a reason for less."""
    for url, page in pages.items():
        if str(page.get(name, "true")) != "true":
            return SettingValue("false", f"bookie {url}")
    return SettingValue(None, silent) if silent else SettingValue("true", "every bookie")


def _get_mapping(admin: Admin, path: str) -> Mapping[str, Any]:
    """Return an answer that may be refused, or be no mapping, as an empty one."""
    try:
        found = admin.get(path)
    except RefusedError:
        return {}
    return found if isinstance(found, dict) else {}


def _namespace(name: str) -> str:
    return name.removeprefix(_STORED).rpartition("/")[0]


def _known(value: object, where: str) -> SettingValue:
    if value is None:
        return SettingValue(None, f"{where} does not tell")
    return SettingValue(str(value).lower(), where)
