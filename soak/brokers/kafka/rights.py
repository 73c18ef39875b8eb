"""What the user of a plan may do with its topics, asked of the cluster without writing anything.

Source:   authorized operations in answers about topics (KIP-430), and the dry run of a creation. A cluster
          without an authorizer allows everything.
Limits:   what may be done with a topic is known once it exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # their stubs
    AclOperation,
    AdminClient,
    NewTopic,
)

from soak.brokers.kafka.config import KafkaProtocolConfig
from soak.clients.client_settings import is_secret_reference
from soak.clients.kafka_log import error_text
from soak.core.plan.plan import Topic

_NEEDED = {
    AclOperation.DESCRIBE: "Describe",
    AclOperation.READ: "Read",
    AclOperation.WRITE: "Write",
}
_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM")
_CERTIFICATE_SETTINGS = ("ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.location")
_READ_SETTINGS = "DescribeConfigs"
_REFUSALS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_UNANSWERED = {
    KafkaError._TIMED_OUT,  # noqa: SLF001  # its public name
    KafkaError.REQUEST_TIMED_OUT,
}
CHECKED_TOPIC = "soak-check"  # for what is only asked: no topic has the name
_RUN_TOPIC = re.compile(r"soak-(\d{8}T|check(-\d+)?$)")
"""Named after its run: the next has another name."""


def creation_error(
    admin: AdminClient,
    new: NewTopic,
    config: KafkaProtocolConfig,
    timeout_seconds: float,
    brokers: int,
) -> str:
    """Return why the cluster would refuse to create a topic, "" where it would not or did not answer.

    More copies than the cluster has `brokers` are left to `replication_error`: Kafka checks rights before
    copies, so an answer about copies hides no missing right.
    """
    error = _dry_run(admin, new, timeout_seconds)
    if error is None or is_unanswered(error) or is_over_quota(error) or _is_there(error):
        return ""
    if _code(error) == KafkaError.INVALID_REPLICATION_FACTOR and new.replication_factor > brokers:
        return ""
    if is_refused(error):
        # The last two are for `soak clean`, and for the forecast of retention and durability.
        operations = ["Create", *_NEEDED.values(), "Delete", _READ_SETTINGS]
        first = _text(new.topic, operations, config, "create")
        return f"{first}\n{settings_grant(config)}"
    return f"cannot create topic {new.topic}: {error_text(error)}"


WouldCreate: TypeAlias = Callable[[AdminClient, NewTopic, float], bool]


def would_create(admin: AdminClient, new: NewTopic, timeout_seconds: float) -> bool:
    """Return whether the cluster would create a topic as it is, or says no more than that there is one."""
    error = _dry_run(admin, new, timeout_seconds)
    return error is None or _is_there(error)


def _dry_run(admin: AdminClient, new: NewTopic, timeout_seconds: float) -> Exception | None:
    """Return the error of a request to create a topic that is only validated, None without one."""
    (future,) = admin.create_topics(
        [new], validate_only=True, operation_timeout=timeout_seconds
    ).values()
    try:
        future.result(timeout_seconds)
    except (KafkaException, TimeoutError) as error:
        return error
    return None


def topics_error(
    admin: AdminClient, names: Sequence[str], config: KafkaProtocolConfig, timeout_seconds: float
) -> str:
    """Return what the user may not do with topics that exist, for the first where that is anything."""
    if not names:
        return ""
    answers = admin.describe_topics(
        TopicCollection(list(names)),
        include_authorized_operations=True,
        request_timeout=timeout_seconds,
    )
    for name, future in answers.items():
        try:
            allowed = future.result(timeout_seconds).authorized_operations
        except TimeoutError:
            continue
        except KafkaException as error:
            if is_refused(error):
                return _text(name, _NEEDED.values(), config, "see")
            continue
        if allowed is None:  # before Kafka 2.3
            continue
        missing = [word for operation, word in _NEEDED.items() if operation not in allowed]
        if missing:
            return _text(name, missing, config, " and ".join(missing).lower())
    return ""


def unchecked_rights(config: KafkaProtocolConfig, topic: Topic) -> str:
    """Return the rights that are known once the topics exist; "" where they do, or without a login."""
    if topic.use_existing or not _has_login(config):
        return ""
    if topic.count > 1:
        which, name = "topics exist", f"the run's {topic.count} topics"
    else:
        which, name = "topic exists", f"topic {topic.name}" if topic.name else "the run's topic"
    return f"not checked before the {which}: Read, Write and Delete on {name}"


def _has_login(config: KafkaProtocolConfig) -> bool:
    """Return whether clients log in: with SASL, or over TLS with a certificate of their own."""
    protocol = config.common.get("security.protocol", "plaintext").lower()
    has_certificate = any(config.common.get(name) for name in _CERTIFICATE_SETTINGS)
    return protocol.startswith("sasl") or (protocol == "ssl" and has_certificate)


def deletion_error(name: str, error: Exception, config: KafkaProtocolConfig) -> str:
    """Return which right is missing if the cluster refused to delete a topic for that reason, else ""."""
    return _text(name, ["Delete"], config, "delete") if is_refused(error) else ""


def refused_login(config: KafkaProtocolConfig, error: str, mismatch: str) -> str:
    """Return that a broker refused the user; why, unless the `mismatch` of its listener is known.

    A broker does not say whether a name or a password is wrong: the text of the client is left out then.
    """
    who, common = user_name(config), config.common
    if mismatch:
        return f"the broker refused {who}"
    mechanism = common.get("sasl.mechanism", common.get("sasl.mechanisms", ""))
    if not mechanism.upper().startswith(_PASSWORD_MECHANISMS):
        return f"the broker refused {who}: {error}"
    password = common.get("sasl.password", "")
    where = f" ({password})" if is_secret_reference(password) else ""
    return f"the broker refused {who}: wrong password{where}, or another mechanism than {mechanism}"


def is_refused(error: Exception) -> bool:
    """Return whether the cluster refused a request because the user lacks a right."""
    return _code(error) in _REFUSALS


def is_unanswered(error: Exception) -> bool:
    """Return whether the cluster did not say in time what it does with a request: it may still do it."""
    return isinstance(error, TimeoutError) or _code(error) in _UNANSWERED


def is_over_quota(error: Exception) -> bool:
    """Return whether the cluster limits how many partitions are created in a time (KIP-599)."""
    return _code(error) == KafkaError.THROTTLING_QUOTA_EXCEEDED


def _is_there(error: Exception) -> bool:
    return _code(error) == KafkaError.TOPIC_ALREADY_EXISTS


def _code(error: Exception) -> int | None:
    reason = error.args[0] if error.args else None
    return reason.code() if isinstance(reason, KafkaError) else None


def settings_grant(config: KafkaProtocolConfig) -> str:
    """Return the command that lets the user of a plan read the settings of brokers."""
    return _grant(config, [_READ_SETTINGS], "--cluster")


def user_name(config: KafkaProtocolConfig) -> str:
    """Return who needs a right: `user soakd`, or `the user of the plan` where the plan does not name one."""
    known = _known_user(config)
    return f"user {known}" if known else "the user of the plan"


def _known_user(config: KafkaProtocolConfig) -> str:
    user = config.common.get("sasl.username", "")
    return "" if is_secret_reference(user) else user


def _text(name: str, operations: Iterable[str], config: KafkaProtocolConfig, verb: str) -> str:
    pattern = f"--topic {name}"
    if _RUN_TOPIC.match(name):
        pattern = "--topic soak- --resource-pattern-type prefixed"
    grant = _grant(config, operations, pattern)
    return f"{user_name(config)} may not {verb} topic {name}; grant it:\n{grant}"


def _grant(config: KafkaProtocolConfig, operations: Iterable[str], place: str) -> str:
    options = " ".join(f"--operation {operation}" for operation in operations)
    return (
        f"kafka-acls.sh --bootstrap-server {config.bootstrap_servers} --command-config admin.properties "
        f"--add --allow-principal User:{_known_user(config) or '<name>'} {options} {place}"
    )
