"""Settings of Kafka's Java client to those of librdkafka: other names, units and defaults at times."""

from __future__ import annotations

import re
from collections.abc import Mapping

from soak.clients.known import librdkafka
from soak.clients.secret import is_in_url, is_reference
from soak.core.plugins import close_to
from soak.omb import java_properties, java_values
from soak.omb.draft import Draft
from soak.omb.source_file import SourceFile

PRODUCER_DEFAULTS = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "0",
    "batch.size": "16384",
    "max.in.flight.requests.per.connection": "5",
}
"""What Java's producer (3.x) does unasked and librdkafka does otherwise."""
KEYED_DEFAULTS = {"partitioner": "murmur2_random"}
"""The same where messages have keys: librdkafka takes CRC32 of them."""
BATCH_SIZE_HERE = 1_000_000
"""librdkafka's own."""
_MOST_IN_FLIGHT = 5  # of an idempotent producer, there and here

_RENAMED = {
    "max.request.size": "message.max.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
}
_BUFFER = "buffer.memory"  # in bytes there, in KiB here
_BUFFER_HERE = "queue.buffering.max.kbytes"
_JAAS = "sasl.jaas.config"
_JAAS_USER = re.compile(
    r"""username\s*=\s*(?:(?P<mark>["'])(?P<quoted>(?:\\.|(?!(?P=mark))[^\\])+)(?P=mark)|(?P<plain>[^"'\s;]+))"""
)
_NEEDLESS = {
    "key.serializer": "messages are bytes here",
    "value.serializer": "messages are bytes here",
    "key.deserializer": "messages are bytes here",
    "value.deserializer": "messages are bytes here",
    "isolation.level": "everything is read, also before a transaction ends",
}
_SECRET = re.compile(r"password|secret|passphrase|\.pem$|\.jwt$|^sasl\.oauthbearer\.config$")


def section(source: SourceFile, key: str, draft: Draft) -> dict[str, str]:
    """Return the settings under a key of a driver file as librdkafka takes them; the rest is noted."""
    found: dict[str, str] = {}
    for name, value in java_properties.parse(source.text(key)).items():
        if name == _JAAS:
            found |= _from_jaas(source, key, value, draft)
        elif name == _BUFFER:
            found[_BUFFER_HERE] = _kibibytes(source, key, value)
        elif name in _NEEDLESS:
            _note(source, key, name, f"left out: {_NEEDLESS[name]}", draft)
        else:
            found |= _one(source, key, name, value, draft)
    return found


def with_defaults(
    producer: Mapping[str, str], common: Mapping[str, str], draft: Draft, name: str
) -> dict[str, str]:
    """Return a producer's settings with the defaults of Java's client where nothing else is said.

    What is `common` is said, too: the benchmark gives it to its producers first.
    """
    kind = draft.body.get("load", {}).get("keys", {}).get("kind", "none")
    defaults = PRODUCER_DEFAULTS | (KEYED_DEFAULTS if kind != "none" else {})
    said = {**common, **producer}
    if _cannot_be_idempotent(said):
        defaults["enable.idempotence"] = "false"
    added = {key: value for key, value in defaults.items() if key not in said}
    if added:
        listed = ", ".join(f"{key} {value}" for key, value in added.items())
        draft.notes.append(f"{name}: producerConfig: as Java's client does unasked: {listed}")
    _note_small_batches({**said, **added}, draft, name)
    return {**producer, **added}


def _cannot_be_idempotent(producer: Mapping[str, str]) -> bool:
    """Say whether Java's client, unasked, is not: by acknowledgements, retries or requests in flight."""
    acks = producer.get("acks", producer.get("request.required.acks", "all"))
    in_flight = java_values.whole(producer.get("max.in.flight.requests.per.connection", ""))
    return (
        acks not in ("all", "-1")
        or java_values.whole(producer.get("retries", "")) == 0
        or (in_flight is not None and in_flight > _MOST_IN_FLIGHT)
    )


def _note_small_batches(producer: Mapping[str, str], draft: Draft, name: str) -> None:
    size = java_values.whole(producer["batch.size"])
    if producer["enable.idempotence"] != "true" or size is None:
        return
    if size < BATCH_SIZE_HERE:
        draft.notes.append(
            f"{name}: producerConfig: batch.size {size}: at full speed an idempotent librdkafka took "
            f"13 us of CPU a message with 131072 and 4.7 with its own {BATCH_SIZE_HERE}: leave it out "
            "where seconds are not trusted"
        )


def _one(source: SourceFile, key: str, name: str, value: str, draft: Draft) -> dict[str, str]:
    here = _RENAMED.get(name, name)
    if here not in librdkafka():
        hint = close_to(name, sorted(librdkafka()))
        _note(source, key, name, f"left out: librdkafka has no such setting{hint}", draft)
        return {}
    is_secret = bool(_SECRET.search(here)) or is_in_url(here, value)
    if is_secret and not is_reference(value):
        reference = "${env:" + here.upper().replace(".", "_") + "}"
        _note(source, key, name, f"a secret stands in no plan: put it into {reference}", draft)
        return {here: reference}
    if "{zone.id}" in value:
        value = value.replace("{zone.id}", "")
        _note(source, key, name, "{zone.id} is left out: there are no zones here", draft)
    taken, why = java_values.taken(here, value)
    if why:
        _note(source, key, name, why, draft)
    return {here: taken}


def _from_jaas(source: SourceFile, key: str, value: str, draft: Draft) -> dict[str, str]:
    """Take the user's name; the password stays where it is."""
    match = _JAAS_USER.search(value)
    if match is None:
        _note(source, key, _JAAS, "left out: see sasl.* in librdkafka's settings", draft)
        return {}
    reference = "${env:SASL_PASSWORD}"
    _note(
        source, key, _JAAS, f"a secret stands in no plan: put the password into {reference}", draft
    )
    user = match["plain"] or re.sub(r"\\(.)", r"\1", match["quoted"])
    return {"sasl.username": user, "sasl.password": reference}


def _kibibytes(source: SourceFile, key: str, value: str) -> str:
    size = java_values.whole(value)
    if size is None or size < 0:
        raise source.error(key, f"{_BUFFER}: {value!r} is not a number of bytes")
    return str(max(1, size // 1024))


def _note(source: SourceFile, key: str, name: str, message: str, draft: Draft) -> None:
    source.note(draft, key, f"{name}: {message}")
