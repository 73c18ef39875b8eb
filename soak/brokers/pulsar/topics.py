"""Pulsar topics: names and policies that a cluster accepts, creation with a mark of the run, deletion."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial

from soak.clients.pulsar_admin import CONFLICT, NOT_FOUND, Admin, RefusedError, topic_path
from soak.core.errors import BrokerError, SettingError, raise_settings, wrong_settings
from soak.core.plan.plan import Topic
from soak.core.plan.plugins import nearest

_NO_LIMIT = -1
_MARK = "soakd"  # the property that holds it
_WITH_PROPERTIES = "application/vnd.partitioned-topic-metadata+json"
_UNKNOWN_KIND = 415  # of content
POLICIES_OFF = (405, 412)  # answers of a cluster without policies of topics
REFUSALS = (401, 403)  # RFC 9110: unauthorized, forbidden
_PERSISTENCE: dict[str, type] = {
    "bookkeeperEnsemble": int,
    "bookkeeperWriteQuorum": int,
    "bookkeeperAckQuorum": int,
    "managedLedgerMaxMarkDeleteRate": float,
}
_RETENTION: dict[str, type] = {"retentionTimeInMinutes": int, "retentionSizeInMB": int}
_QUOTA: dict[str, type] = {"limitSize": int, "limitTime": int, "policy": str}
_SINGLE: dict[str, type] = {"messageTTL": int, "maxMessageSize": int, "deduplicationEnabled": bool}
_KINDS = {**_PERSISTENCE, **_RETENTION, **_QUOTA, **_SINGLE}
"""Topic settings, by their names in the admin interface."""
_OTHER_POLICIES = (
    "set others on the namespace, or on a topic of your own with topic.use_existing: true"
)

_EVICTION = "consumer_backlog_eviction"
_MARK_DELETE_RATE = 1.0  # a cursor's writes a second: the default of brokers

_SHORT = re.compile(r"[^/\s\x00-\x1f]+")
_FULL = re.compile(r"persistent://[-=:.\w]+/[-=:.\w]+/[^/\s\x00-\x1f]+", re.ASCII)
_PARTITION = re.compile(r".*-partition-[0-9]+")


def check_topic(topic: Topic) -> None:
    """Check the name and policies of a plan's topic without a cluster.

    Raises:
        SettingError: a cluster would refuse them. The places are those in the plan's `topic`.
    """
    faults = []
    for name in topic.names if topic.name else ():
        if not (_FULL if "://" in name else _SHORT).fullmatch(name):
            rule = "has no space and no '/', or is written persistent://tenant/namespace/topic"
            faults.append(SettingError(("name",), f"{name!r} is no name of a topic: one {rule}"))
        if _PARTITION.fullmatch(name):
            faults.append(SettingError(("name",), f"{name!r} is the name of a partition"))
    faults += wrong_settings(lambda: policies_of(topic.replication, topic.settings))
    raise_settings(faults)


def policies_of(replication: int, settings: Mapping[str, str]) -> dict[str, object]:
    """Return the bodies to post, by their path below that of a topic.

    `replication` is the ensemble and the write quorum, its majority the acknowledgement quorum, unless
    `settings` say otherwise.

    Raises:
        SettingError: unknown settings, or wrong values. The places are those in the plan's `topic`.
    """
    raise_settings(wrong_settings(*(partial(_value, *one) for one in settings.items())))
    found: dict[str, object] = {
        "persistence": {
            "bookkeeperEnsemble": replication,
            "bookkeeperWriteQuorum": replication,
            "bookkeeperAckQuorum": replication // 2 + 1,
            "managedLedgerMaxMarkDeleteRate": _MARK_DELETE_RATE,
            **_selected(_PERSISTENCE, settings),
        }
    }
    if retention := _selected(_RETENTION, settings):
        found["retention"] = {**dict.fromkeys(_RETENTION, _NO_LIMIT), **retention}
    if quota := _selected(_QUOTA, settings):
        no_limit = {"limitSize": _NO_LIMIT, "limitTime": _NO_LIMIT}
        kind = "message_age" if "limitTime" in quota else "destination_storage"
        found[f"backlogQuota?backlogQuotaType={kind}"] = {**no_limit, **quota}
    for name, value in _selected(_SINGLE, settings).items():
        if name == "messageTTL":  # a parameter, not a body
            found[f"{name}?{name}={value}"] = None
        else:
            found[name] = value
    return found


def names_in(admin: Admin, namespace: str) -> set[str]:
    """Return the topics and partitions of a namespace, such as `persistent://public/default`.

    Raises:
        RefusedError: there is no such namespace, or the user may not list it; with what to do.
        BrokerError: the cluster did not answer in time.
    """
    below, short = topic_path(namespace), namespace.partition("://")[2]
    try:
        return {*admin.get(below), *admin.get(f"{below}/partitioned")}
    except RefusedError as error:
        advice = {
            NOT_FOUND: f"; create it: pulsar-admin namespaces create {short}",
            **dict.fromkeys(
                REFUSALS,
                f"; a run needs the rights of an admin of tenant {short.partition('/')[0]}",
            ),
        }.get(error.status, "")
        text = f"cannot list the topics of namespace {short}: {error}{advice}"
        raise RefusedError(text, error.status) from error


def creation_error(admin: Admin, topic: str) -> str:
    """Return why the cluster would refuse to create a topic, named in full, and to set its policies.

    "" where it would not, or does not say.

    Raises:
        BrokerError: the cluster did not answer in time.
    """
    try:
        names_in(admin, topic.rpartition("/")[0])
    except RefusedError as error:
        return str(error)
    try:
        admin.get(f"{topic_path(topic)}/persistence?applied=true")
    except RefusedError as error:
        if error.status == POLICIES_OFF[0]:  # the other has more than one meaning
            return (
                f"the cluster has no policies of topics, by which a run sets copies: {error}; set"
                " topicLevelPoliciesEnabled of brokers, or create the topic and set topic.use_existing: true"
            )
    return ""


def create_topic(admin: Admin, topic: str, partitions: int, mark: str) -> None:
    """Create one partitioned topic that has the mark from the start.

    Raises:
        BrokerError: it exists, or the cluster refuses.
    """
    where = f"{topic_path(topic)}/partitions"
    try:
        try:
            marked = {"partitions": partitions, "properties": {_MARK: mark}}
            admin.put(where, marked, _WITH_PROPERTIES)
        except RefusedError as error:
            if error.status != _UNKNOWN_KIND:  # before 2.10 topics have no properties
                raise
            admin.put(where, partitions)
    except RefusedError as error:
        reason = "it exists already" if error.status == CONFLICT else str(error)
        raise BrokerError(f"cannot create topic {topic}: {reason}") from error


def set_policies(admin: Admin, topic: str, policies: Mapping[str, object]) -> None:
    """Set the policies of a topic.

    Raises:
        BrokerError: one is refused.
    """
    try:
        for where, body in policies.items():
            admin.post(f"{topic_path(topic)}/{where}", body)
    except RefusedError as error:
        raise BrokerError(f"cannot create topic {topic}: {error}") from error


def mark_of(admin: Admin, topic: str) -> str:
    """Return the mark of a topic; "" for none.

    Raises:
        BrokerError: the cluster did not answer in time.
    """
    try:
        found = admin.get(f"{topic_path(topic)}/partitions")
    except RefusedError as error:
        if error.status == NOT_FOUND:
            return ""
        raise
    properties = found.get("properties") if isinstance(found, dict) else None
    return str((properties or {}).get(_MARK, ""))


def delete_topic(admin: Admin, topic: str) -> None:
    """Delete a topic and its partitions; one that does not exist is no error.

    Raises:
        BrokerError: a client uses it, or the cluster did not answer in time.
    """
    try:
        admin.delete(f"{topic_path(topic)}/partitions")
    except RefusedError as error:
        if error.status != NOT_FOUND:
            raise BrokerError(f"cannot delete topic {topic}: {error}") from error


def may_skip_unread(admin: Admin, topic: str) -> bool:
    """Return whether a limit on age or backlog makes subscriptions skip messages that they have not read.

    They may where the cluster does not tell. Without policies of topics it is asked for the namespace's,
    which leave out what the brokers have.

    Raises:
        BrokerError: the cluster did not answer in time.
    """
    try:
        return _skips(admin, topic_path(topic), "?applied=true")
    except RefusedError as error:
        if error.status not in POLICIES_OFF:
            return True
    namespace = topic.partition("://")[2].rpartition("/")[0]
    try:
        return _skips(admin, f"/admin/v2/namespaces/{namespace}")
    except RefusedError:
        return True


def _skips(admin: Admin, where: str, query: str = "") -> bool:
    if admin.get(f"{where}/messageTTL{query}"):
        return True
    quotas = admin.get(f"{where}/backlogQuotaMap{query}") or {}
    return any(quota["policy"] == _EVICTION for quota in quotas.values())


def _selected(names: Iterable[str], settings: Mapping[str, str]) -> dict[str, object]:
    return {name: _value(name, settings[name]) for name in names if name in settings}


def _value(name: str, text: str) -> object:
    if name not in _KINDS:  # each has a path of its own, so that an unknown one cannot be passed on
        hint = f"{nearest(name, list(_KINDS))}; {_OTHER_POLICIES}"
        raise SettingError(("settings", name), f"is no policy that soakd sets{hint}")
    kind = _KINDS[name]
    if kind is bool:
        if text not in {"true", "false"}:
            raise SettingError(("settings", name), f"must be true or false, not {text!r}")
        return text == "true"
    try:
        return kind(text)
    except ValueError as error:
        raise SettingError(("settings", name), f"must be a number, not {text!r}") from error
