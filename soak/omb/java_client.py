"""Settings of Kafka's Java client as librdkafka takes them: other names, units and defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping

from soak.clients.client_settings import is_secret_in_url, is_secret_reference, librdkafka_settings
from soak.core.plugins import close_to
from soak.omb.plan_import import Draft, SourceFile

_ENTRY = re.compile(r"(?P<key>(?:\\.|[^\s=:\\])+)\s*[=:\s]\s*(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|(?P<other>.))", re.DOTALL)
_NAMED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Return the settings in their order; the last of a name stands. A name alone has an empty value."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _ENTRY.fullmatch(line)
        key, value = (match["key"], match["value"]) if match else (line, "")
        found[_unescaped(key)] = _unescaped(value)
    return found


def _logical_lines(text: str) -> list[str]:
    """Return lines that say something, joined where an odd number of backslashes ends one."""
    found: list[str] = []
    open_line = ""
    for raw in text.splitlines():
        line = open_line + raw.lstrip()
        if not open_line and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            open_line = line[:-1]
            continue
        open_line = ""
        found.append(line.rstrip())
    return [*found, open_line] if open_line else found


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(
        lambda m: chr(int(m["code"], 16)) if m["code"] else _NAMED.get(m["other"], m["other"]), text
    )


# --- Values that Kafka's Java client takes and librdkafka refuses, to the nearest that it takes.

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_MOST = 2**31 - 1
_SPANS = {
    "batch.size": (1, _MOST),
    "connections.max.idle.ms": (0, _MOST),  # -1 there is 0 here: never
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
    "socket.receive.buffer.bytes": (0, 100_000_000),  # -1 there is 0 here: the system's own
    "socket.send.buffer.bytes": (0, 100_000_000),
}
"""What librdkafka 2.16 takes of settings of which Java's client takes more, by the names here."""
_NOTHING = {"ssl.endpoint.identification.algorithm": "none"}
"""What an empty value is called here."""


def parse_whole(value: str) -> int | None:
    """Return a whole number as Java reads it, or None."""
    return int(value) if _WHOLE.fullmatch(value.strip()) else None


def accepted_value(name: str, value: str) -> tuple[str, str]:
    """Return the value that librdkafka takes, and why it is another one, or ""."""
    if not value and name in _NOTHING:
        return _NOTHING[name], f"empty is {_NOTHING[name]} here"
    number = parse_whole(value)
    if number is None or name not in _SPANS:
        return value, ""
    low, high = _SPANS[name]
    fitting = min(max(number, low), high)
    if fitting == number:
        return value, ""
    return str(fitting), f"{number} is {fitting} here: librdkafka takes {low} to {high}"


# --- Settings of Kafka's Java client to those of librdkafka: other names, units and defaults at times.

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
_MAX_IN_FLIGHT = 5  # of an idempotent producer, there and here

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
_UNNEEDED = {
    "key.serializer": "messages are bytes here",
    "value.serializer": "messages are bytes here",
    "key.deserializer": "messages are bytes here",
    "value.deserializer": "messages are bytes here",
    "isolation.level": "everything is read, also before a transaction ends",
}
_SECRET = re.compile(r"password|secret|passphrase|\.pem$|\.jwt$|^sasl\.oauthbearer\.config$")


def convert_section(source: SourceFile, key: str, draft: Draft) -> dict[str, str]:
    """Return the settings under a key of a driver file as librdkafka takes them; the rest is noted."""
    found: dict[str, str] = {}
    for name, value in parse_properties(source.text(key)).items():
        if name == _JAAS:
            found |= _from_jaas(source, key, value, draft)
        elif name == _BUFFER:
            found[_BUFFER_HERE] = _kibibytes(source, key, value)
        elif name in _UNNEEDED:
            _note(source, key, name, f"left out: {_UNNEEDED[name]}", draft)
        else:
            found |= _convert_setting(source, key, name, value, draft)
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
    in_flight = parse_whole(producer.get("max.in.flight.requests.per.connection", ""))
    return (
        acks not in ("all", "-1")
        or parse_whole(producer.get("retries", "")) == 0
        or (in_flight is not None and in_flight > _MAX_IN_FLIGHT)
    )


def _note_small_batches(producer: Mapping[str, str], draft: Draft, name: str) -> None:
    size = parse_whole(producer["batch.size"])
    if producer["enable.idempotence"] != "true" or size is None:
        return
    if size < BATCH_SIZE_HERE:
        draft.notes.append(
            f"{name}: producerConfig: batch.size {size}: at full speed an idempotent librdkafka took "
            f"13 us of CPU a message with 131072 and 4.7 with its own {BATCH_SIZE_HERE}: leave it out "
            "where seconds are not trusted"
        )


def _convert_setting(
    source: SourceFile, key: str, name: str, value: str, draft: Draft
) -> dict[str, str]:
    here = _RENAMED.get(name, name)
    if here not in librdkafka_settings():
        hint = close_to(name, sorted(librdkafka_settings()))
        _note(source, key, name, f"left out: librdkafka has no such setting{hint}", draft)
        return {}
    is_secret = bool(_SECRET.search(here)) or is_secret_in_url(here, value)
    if is_secret and not is_secret_reference(value):
        reference = "${env:" + here.upper().replace(".", "_") + "}"
        _note(source, key, name, f"a secret stands in no plan: put it into {reference}", draft)
        return {here: reference}
    if "{zone.id}" in value:
        value = value.replace("{zone.id}", "")
        _note(source, key, name, "{zone.id} is left out: there are no zones here", draft)
    taken, why = accepted_value(here, value)
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
    size = parse_whole(value)
    if size is None or size < 0:
        raise source.error(key, f"{_BUFFER}: {value!r} is not a number of bytes")
    return str(max(1, size // 1024))


def _note(source: SourceFile, key: str, name: str, message: str, draft: Draft) -> None:
    source.note(draft, key, f"{name}: {message}")
