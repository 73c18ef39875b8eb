"""The release of a Kafka broker, from its answer to ApiVersions, which needs no login.

Source: Kafka's protocol (ApiVersions, version 3) and MetadataVersion.java. No request returns the release
itself, but each broker names the highest `metadata.version` that it supports. Brokers before 3.3 name none.
"""

from __future__ import annotations

import io
import socket
import struct
from bisect import bisect_right
from collections.abc import Mapping

from soak.brokers.kafka.listener import any_certificate, read_answer, security_protocol

_TIMEOUT_SECONDS = 3.0
_FEATURE = b"metadata.version"
_REQUEST = struct.pack(">hhih", 18, 3, 1, 5) + b"soakd\0\x06soakd\x020\0"
_HEAD = struct.Struct(">ih")  # correlation, error
_API = struct.Struct(">hhh")  # key, lowest and highest version
_RANGE = struct.Struct(">hh")
_FIRST_LEVELS = (7, 8, 9, 12, 15, 20, 21, 22, 26, 28, 30)
_RELEASES = ("3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9", "4.0", "4.1", "4.2", "4.3")
"""The release that brought `metadata.version` to each of `_FIRST_LEVELS`."""


def release_of(
    host: str, port: int, common: Mapping[str, str], timeout_seconds: float = _TIMEOUT_SECONDS
) -> str:
    """Return the release of a broker, such as `4.3`; "" where it does not answer or does not say.

    Of a release that is newer than those known here, return its `metadata.version`.
    """
    try:
        with socket.create_connection((host, port), timeout_seconds) as plain:
            if not security_protocol(common).endswith("SSL"):
                return _release(_answer(plain))
            with any_certificate().wrap_socket(plain, server_hostname=host) as secure:
                return _release(_answer(secure))
    except (OSError, ValueError, struct.error):
        return ""


def _answer(connection: socket.socket) -> bytes:
    connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
    return read_answer(connection)


def _release(answer: bytes) -> str:
    """Return the release from an answer; raises `struct.error` or `ValueError` where it is torn."""
    level = _metadata_version(io.BytesIO(answer))
    if level < _FIRST_LEVELS[0]:
        return ""
    if level > _FIRST_LEVELS[-1]:
        return f"after {_RELEASES[-1]} (metadata.version {level})"
    return _RELEASES[bisect_right(_FIRST_LEVELS, level) - 1]


def _metadata_version(answer: io.BytesIO) -> int:
    """Return the highest `metadata.version` that a broker supports; 0 where it names none."""
    _, error = _unpacked(answer, _HEAD)
    if error:
        return 0
    for _ in range(_varint(answer) - 1):
        _unpacked(answer, _API)
        _skip_tags(answer)
    answer.read(4)  # for how long the client is throttled
    for _ in range(_varint(answer)):
        tag, size = _varint(answer), _varint(answer)
        content = io.BytesIO(answer.read(size))
        if tag == 0:
            return _highest(content)
    return 0


def _highest(features: io.BytesIO) -> int:
    for _ in range(_varint(features) - 1):
        name = features.read(_varint(features) - 1)
        _, highest = _unpacked(features, _RANGE)
        _skip_tags(features)
        if name == _FEATURE:
            return highest
    return 0


def _skip_tags(stream: io.BytesIO) -> None:
    for _ in range(_varint(stream)):
        _varint(stream)
        stream.read(_varint(stream))


def _unpacked(stream: io.BytesIO, form: struct.Struct) -> tuple[int, ...]:
    return form.unpack(stream.read(form.size))


def _varint(stream: io.BytesIO) -> int:
    """Return an unsigned number of seven bits a byte."""
    value = 0
    for at in range(5):
        byte = stream.read(1)
        if not byte:
            raise ValueError("the answer is torn")
        value |= (byte[0] & 0x7F) << (7 * at)
        if not byte[0] & 0x80:
            return value
    raise ValueError("a number is too large")
