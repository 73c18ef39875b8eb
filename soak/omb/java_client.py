"""Settings of Kafka's Java client as librdkafka accepts them: other names, units, defaults and bounds.

A driver file holds them in the syntax of Java properties.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import javaproperties

from soak.clients.client_settings import (
    is_secret_in_url,
    is_secret_reference,
    librdkafka_settings,
    loads_code,
)
from soak.core.plan.plugins import close_to
from soak.omb.plan_import import Draft, SourceFile

PRODUCER_DEFAULTS = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "0",
    "batch.size": "16384",
    "max.in.flight.requests.per.connection": "5",
}
"""Defaults of Java's producer (3.x) that librdkafka does not have."""
KEYED_DEFAULTS = {"partitioner": "murmur2_random"}
"""The same for messages with keys: librdkafka's default is their CRC32."""
LIBRDKAFKA_BATCH_SIZE = 1_000_000

_MAX_IN_FLIGHT = 5  # of an idempotent producer of either client
_RENAMED = {
    "max.request.size": "message.max.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
}
_FIRST_OFFSET = "auto.offset.reset"
_BUFFER = "buffer.memory"  # in bytes
_LIBRDKAFKA_BUFFER = "queue.buffering.max.kbytes"
_JAAS = "sasl.jaas.config"
_JAAS_USER = re.compile(
    r"""username\s*=\s*(?:(?P<mark>["'])(?P<quoted>(?:\\.|(?!(?P=mark))[^\\])+)(?P=mark)|(?P<plain>[^"'\s;]+))"""
)
_UNNEEDED = {
    "key.serializer": "soakd sends bytes",
    "value.serializer": "soakd sends bytes",
    "key.deserializer": "soakd receives bytes",
    "value.deserializer": "soakd receives bytes",
    "isolation.level": "soakd reads everything, also before a transaction ends",
    "transactional.id": "soakd sends no transactions",
}
_SECRET = re.compile(r"password|secret|passphrase|\.pem$|\.jwt$|^sasl\.oauthbearer\.config$")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_MOST = 2**31 - 1
_BOUNDS = {
    "batch.size": (1, _MOST),
    "connections.max.idle.ms": (0, _MOST),  # -1 (never) becomes 0
    "fetch.max.bytes": (1_000_000, _MOST - 512),  # not below its `message.max.bytes`
    "fetch.min.bytes": (1, 100_000_000),
    "max.in.flight.requests.per.connection": (1, 1_000_000),
    "max.partition.fetch.bytes": (1, 1_000_000_000),
    "max.poll.interval.ms": (1, 86_400_000),
    "message.max.bytes": (1_000, 1_000_000_000),
    "metadata.max.age.ms": (1, 86_400_000),
    "request.timeout.ms": (1, 900_000),
    "retry.backoff.ms": (1, 300_000),
    "socket.connection.setup.timeout.ms": (1_000, _MOST),
    "socket.receive.buffer.bytes": (0, 100_000_000),  # -1 (the system's) becomes 0
    "socket.send.buffer.bytes": (0, 100_000_000),
}
"""Bounds of librdkafka 2.16 for settings to which Java's client gives wider ones."""
_EMPTY = {"ssl.endpoint.identification.algorithm": "none"}
"""librdkafka's value where Java's client has an empty one."""

_WEAKER = frozenset(
    {
        ("enable.ssl.certificate.verification", "false"),
        ("ssl.endpoint.identification.algorithm", ""),
        ("ssl.endpoint.identification.algorithm", "none"),
    }
)


def parse_properties(source: SourceFile, key: str) -> dict[str, str]:
    """Return the Java properties under a key of a driver file; the last of several values counts.

    Raises:
        PlanError: an escape sequence is wrong.
    """
    try:
        found = javaproperties.loads(source.text(key))
    except javaproperties.InvalidUEscapeError as error:
        raise source.error(key, f"not Java properties: {error}") from error
    return {name: value.strip() for name, value in found.items()}  # as Kafka's client does


def convert_section(source: SourceFile, key: str, draft: Draft) -> dict[str, str]:
    """Return the settings under a key of a driver file as librdkafka accepts them."""
    found: dict[str, str] = {}
    for name, value in parse_properties(source, key).items():
        if name == _JAAS:
            found |= _from_jaas(source, key, value, draft)
        elif name == _BUFFER:
            found[_LIBRDKAFKA_BUFFER] = _kibibytes(source, key, value)
        elif name in _UNNEEDED:
            _note(source, key, name, f"omitted: {_UNNEEDED[name]}", draft)
        else:
            found |= _convert_setting(source, key, name, value, draft)
    return found


def with_defaults(
    producer: Mapping[str, str], common: Mapping[str, str], draft: Draft, name: str
) -> dict[str, str]:
    """Return a producer's settings with the defaults of Java's client for those that are not set.

    A setting in `common` counts as set: the benchmark passes these to its producers first.
    """
    kind = draft.body.get("load", {}).get("keys", {}).get("kind", "none")
    defaults = PRODUCER_DEFAULTS | (KEYED_DEFAULTS if kind != "none" else {})
    given = {**common, **producer}
    if _cannot_be_idempotent(given):
        defaults["enable.idempotence"] = "false"
    added = {key: value for key, value in defaults.items() if key not in given}
    if added:
        listed = ", ".join(f"{key} {value}" for key, value in added.items())
        draft.notes.append(f"{name}: producerConfig: defaults of Java's client: {listed}")
    _note_small_batches({**given, **added}, draft, name)
    return {**producer, **added}


def _cannot_be_idempotent(producer: Mapping[str, str]) -> bool:
    """Return whether acks, retries or requests in flight keep Java's client from being idempotent."""
    acks = producer.get("acks", producer.get("request.required.acks", "all"))
    in_flight = _parse_whole(producer.get("max.in.flight.requests.per.connection", ""))
    return (
        acks not in ("all", "-1")
        or _parse_whole(producer.get("retries", "")) == 0
        or (in_flight is not None and in_flight > _MAX_IN_FLIGHT)
    )


def _note_small_batches(producer: Mapping[str, str], draft: Draft, name: str) -> None:
    size = _parse_whole(producer["batch.size"])
    if producer["enable.idempotence"] != "true" or size is None:
        return
    if size < LIBRDKAFKA_BATCH_SIZE:
        draft.notes.append(
            f"{name}: producerConfig: batch.size {size}: at full speed an idempotent librdkafka took "
            f"13 us of CPU a message with 131072 and 4.7 with its own {LIBRDKAFKA_BATCH_SIZE}: omit it "
            "where intervals are not valid"
        )


def _convert_setting(
    source: SourceFile, key: str, name: str, value: str, draft: Draft
) -> dict[str, str]:
    converted = _RENAMED.get(name, name)
    if converted not in librdkafka_settings():
        hint = close_to(name, sorted(librdkafka_settings()))
        _note(source, key, name, f"omitted: librdkafka has no such setting{hint}", draft)
        return {}
    if loads_code(converted):
        _note(source, key, name, "omitted: a plan must not run code or write files", draft)
        return {}
    if (converted, value.lower()) in _WEAKER:
        _note(source, key, name, f"{value}: the server's certificate is not fully checked", draft)
    is_secret = bool(_SECRET.search(converted)) or is_secret_in_url(converted, value)
    if is_secret and not is_secret_reference(value):
        reference = "${env:" + converted.upper().replace(".", "_") + "}"
        _note(source, key, name, f"a plan holds no secret: put it into {reference}", draft)
        return {converted: reference}
    if "{zone.id}" in value:
        value = value.replace("{zone.id}", "")
        _note(source, key, name, "{zone.id} is removed: soakd has no zones", draft)
    accepted, reason = _accepted_value(converted, value)
    if reason:
        _note(source, key, name, reason, draft)
    return {converted: accepted}


def _accepted_value(name: str, value: str) -> tuple[str, str]:
    """Return the nearest value that librdkafka and a plan accept, and why it is another one, or ""."""
    if name == _FIRST_OFFSET:
        why = f"{value} becomes earliest: messages that a consumer skips would count as lost"
        return "earliest", "" if value.lower() == "earliest" else why
    if not value and name in _EMPTY:
        return _EMPTY[name], f"an empty value becomes {_EMPTY[name]}"
    number = _parse_whole(value)
    if number is None or name not in _BOUNDS:
        return value, ""
    low, high = _BOUNDS[name]
    nearest = min(max(number, low), high)
    if nearest == number:
        return value, ""
    return str(nearest), f"{number} becomes {nearest}: librdkafka accepts {low} to {high}"


def _from_jaas(source: SourceFile, key: str, value: str, draft: Draft) -> dict[str, str]:
    """Return the user's name, and a reference in place of the password."""
    match = _JAAS_USER.search(value)
    if match is None:
        _note(source, key, _JAAS, "omitted: see sasl.* in librdkafka's settings", draft)
        return {}
    reference = "${env:SASL_PASSWORD}"
    _note(source, key, _JAAS, f"a plan holds no secret: put the password into {reference}", draft)
    user = match["plain"] or re.sub(r"\\(.)", r"\1", match["quoted"])
    return {"sasl.username": user, "sasl.password": reference}


def _kibibytes(source: SourceFile, key: str, value: str) -> str:
    size = _parse_whole(value)
    if size is None or size < 0:
        raise source.error(key, f"{_BUFFER}: {value!r} is not a number of bytes")
    return str(max(1, size // 1024))


def _parse_whole(value: str) -> int | None:
    """Return a whole number as Java parses it, or None."""
    return int(value) if _WHOLE.fullmatch(value.strip()) else None


def _note(source: SourceFile, key: str, name: str, message: str, draft: Draft) -> None:
    source.note(draft, key, f"{name}: {message}")
